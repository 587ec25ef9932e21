"""Pages of the documentation, and what they show."""

import re

from processes import ROOT

DOCS = ROOT / 'docs'


def text_of(page):
    return page.read_text(encoding='utf-8')


def blocks_of(page, language='python'):
    return re.findall(r'^```%s\n(.*?)^```' % language, text_of(page), re.MULTILINE | re.DOTALL)
