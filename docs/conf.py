"""Sphinx's configuration of the documentation; `make docs` builds it."""

import os
import re
import shutil
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref

import svrg_optimization

project = 'svrg-optimization'
author = 'The svrg-optimization authors'
version = release = svrg_optimization.__version__
html_title = '%s %s' % (project, version)

extensions = ['sphinx.ext.autodoc', 'sphinx-mathjax-offline', 'numpydoc', 'myst_nb']
# The tables of the benchmarks are on the page on measurements.
exclude_patterns = ['_build', 'benchmarks']

html_theme = 'furo'
html_static_path = ['_static']
html_css_files = ['custom.css']
html_show_copyright = html_show_sourcelink = html_copy_source = False
pygments_style = 'friendly'

myst_enable_extensions = ['colon_fence', 'deflist', 'dollarmath']
myst_heading_anchors = 3
nb_execution_mode = 'off'
smartquotes = False  # it would curl the quotes of code in docstrings

# Methods are listed on the page itself, for MXNet's would come with them.
numpydoc_show_class_members = False

# Files outside of this folder that are pages too: they are copied for the build.
DOCS = Path(__file__).resolve().parent
COPIES = DOCS / 'repository'
COPIED = ['CONTRIBUTING.md', 'SECURITY.md', 'examples/README.md', 'examples/svrg_vs_sgd.ipynb']

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


def break_heads(app, doctree):
    """Let the heads of tables break after an underscore: wide tables fit beside the sidebar."""
    for head in doctree.findall(nodes.thead):
        for text in list(head.findall(nodes.Text)):
            if not isinstance(text.parent, nodes.literal):
                text.parent.replace(text, nodes.Text(text.replace('_', '_\u200b')))


def copy_pages(app, config):
    """Copy the pages from outside to where Sphinx finds them."""
    for name in COPIED:
        (COPIES / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(DOCS.parent / name, COPIES / name)
    (COPIES / '.gitignore').write_text('*\n', encoding='utf-8')


def remove_copies(app, exception):
    """Remove the copies, and the notebook's pictures that MyST-NB puts beside the output."""
    shutil.rmtree(COPIES, ignore_errors=True)
    shutil.rmtree(Path(app.outdir).parent / 'jupyter_execute', ignore_errors=True)


def adapt_links(app, docname, source):
    """Adapt the links of a copied page, and links to one, to where its copy is."""
    page = Path(app.env.doc2path(docname))
    if page.suffix != '.md':
        return
    original = DOCS.parent / page.relative_to(COPIES) if COPIES in page.parents else page

    def rewrite(link):
        target = Path(os.path.normpath(original.parent / link[1]))
        if not target.is_file():
            return link[0]
        name = os.path.relpath(target, DOCS.parent)
        if name == 'README.md':  # the site begins with its own page
            return '](%s)' % os.path.relpath(DOCS / 'index.md', page.parent)
        if name in COPIED:
            target = COPIES / name
        return '](%s%s)' % (os.path.relpath(target, page.parent), link[2])

    source[0] = re.sub(r'\]\(([^()\s#]+)(#[^()\s]*|)\)', rewrite, source[0])


def name_defaults(app, what, name, obj, options, signature, returned):
    """Name the modules and objects among the defaults, without paths and addresses."""
    if signature:
        signature = re.sub(r"<(?:module '(\w+)' from '[^']*'|[\w.]*?(\w+) object at \w+)>",
                           lambda match: match.group(1) or match.group(2), signature)
    return signature, returned


def setup(app):
    app.connect('autodoc-process-signature', name_defaults)
    app.connect('config-inited', copy_pages)
    app.connect('source-read', adapt_links)
    app.connect('build-finished', remove_copies)
    app.connect('doctree-read', number_citations)
    app.connect('doctree-read', show_captions)
    app.connect('doctree-read', break_heads)
