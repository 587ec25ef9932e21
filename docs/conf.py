"""Sphinx's configuration of the documentation; `make docs` builds it from the repository's root."""

import re

from docutils import nodes
from sphinx.addnodes import pending_xref

import svrg_optimization

project = 'svrg-optimization'
author = 'The svrg-optimization authors'
version = release = svrg_optimization.__version__
html_title = '%s %s' % (project, version)

extensions = ['sphinx.ext.autodoc', 'sphinx-mathjax-offline', 'sphinx_copybutton', 'numpydoc',
              'myst_nb']
autodoc_typehints = 'none'  # the text of a docstring says what is allowed
root_doc = 'docs/index'
include_patterns = ['docs/*.md', 'docs/benchmarks/*.md', 'examples/README.md', 'examples/*.ipynb',
                    'CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md']

html_theme = 'furo'
html_static_path = ['_static']
html_extra_path = ['_static/index.html']
html_css_files = ['custom.css']
html_show_copyright = html_show_sourcelink = html_copy_source = False
pygments_style, pygments_dark_style = 'friendly', 'github-dark'
toc_object_entries_show_parents = 'hide'
copybutton_selector = 'div:not(.highlight-text) > div.highlight > pre'  # text is output

myst_enable_extensions = ['colon_fence', 'deflist', 'dollarmath']
myst_heading_anchors = 3
nb_execution_mode = 'off'
smartquotes = False  # it would curl the quotes of code in docstrings

# Methods are listed on the page itself, for MXNet's would come with them.
numpydoc_show_class_members = False

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


def show_captions(app, doctree):
    """Show the text of a picture, which says what to conclude from it, below it too."""
    for image in list(doctree.findall(nodes.image)):
        paragraph = image.parent
        if image.get('alt') and isinstance(paragraph, nodes.paragraph) and len(paragraph) == 1:
            figure = nodes.figure('', image.deepcopy(), nodes.caption('', image['alt']))
            doctree.set_id(figure)
            paragraph.replace_self(figure)


def name_defaults(app, what, name, obj, options, signature, returned):
    """Name the modules and objects among the defaults, without paths and addresses."""
    if signature:
        signature = re.sub(r"<(?:module '(\w+)' from '[^']*'|[\w.]*?(\w+) object at \w+)>",
                           lambda match: match.group(1) or match.group(2), signature)
    return signature, returned


def setup(app):
    app.connect('autodoc-process-signature', name_defaults)
    app.connect('doctree-read', number_citations)
    app.connect('doctree-read', show_captions)
