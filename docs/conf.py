"""Sphinx's configuration of the documentation; `make docs` builds it."""

import re

from docutils import nodes
from sphinx.addnodes import pending_xref

import svrg_optimization

project = 'svrg-optimization'
author = 'The svrg-optimization authors'
version = release = svrg_optimization.__version__
html_title = '%s %s' % (project, version)

extensions = ['sphinx.ext.autodoc', 'sphinx.ext.autosummary', 'sphinx-mathjax-offline',
              'numpydoc', 'myst_nb']
# The tables of the benchmarks are on the page on performance.
exclude_patterns = ['_build', 'benchmarks']

html_theme = 'furo'
html_static_path = ['_static']
html_css_files = ['custom.css']
html_show_copyright = html_show_sourcelink = html_copy_source = False
pygments_style = 'friendly'

myst_enable_extensions = ['colon_fence', 'deflist', 'dollarmath']
myst_heading_anchors = 3
nb_execution_mode = 'off'

# Methods are listed on the page itself, for MXNet's would come with them.
numpydoc_show_class_members = False
# A default is shown as it is written, and not with paths of this machine.
autodoc_preserve_defaults = True
autosummary_generate = False

nitpicky = True
nitpick_ignore_regex = [('py:.*', r'mxnet\..*')]


def number_citations(app, doctree):
    """Show a docstring's citations by their numbers.

    numpydoc gives them labels like R1a2b3c4d5e6f-1, which are unique, and in
    reStructuredText below Markdown it takes back those of the references alone.
    """
    for reference in doctree.findall(pending_xref):
        number = re.fullmatch(r'\[R[0-9a-f]{12}-(\d+)\]', reference.astext())
        if number:
            reference.children = []
            reference += nodes.inline('', '[%s]' % number[1])


def setup(app):
    app.connect('doctree-read', number_citations)
