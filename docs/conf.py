"""Sphinx's configuration of the documentation; `make docs` builds it."""

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
html_show_copyright = html_show_sourcelink = html_copy_source = False
pygments_style = 'friendly'

myst_enable_extensions = ['colon_fence', 'deflist', 'dollarmath']
myst_heading_anchors = 3
nb_execution_mode = 'off'

# Methods are listed on the page itself, for MXNet's would come with them.
numpydoc_show_class_members = False
autodoc_member_order = 'bysource'
autosummary_generate = False

nitpicky = True
nitpick_ignore_regex = [('py:.*', r'mxnet\..*')]
