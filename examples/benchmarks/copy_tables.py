"""Copy the tables of docs/benchmarks to the pages that show them.

A table is known by its script, the head of its first column and the first sentence below it. Read
the text beside a new table again, and that of its picture.
"""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / 'docs'
TABLE = re.compile(r'((?:^\|.*\n)+)\n((?:.+\n)*?\(`python examples/benchmarks/(\w+)\.py`; .*\n)',
                   re.MULTILINE)


def tables_of(text):
    """Return the lines and the caption of each table, by script, first head and first sentence."""
    return {(name, table.split('|')[1].strip(), re.split(r'\.\s', caption)[0]):
            (table.splitlines(True), caption) for table, caption, name in TABLE.findall(text)}


def with_tables(page, tables):
    """Return the text of a page with these tables in the place of its own."""
    def copied(match):
        key, = tables_of(match[0])
        if key not in tables:
            raise ValueError('docs/benchmarks/%s.md has no table that begins with %r, with a '
                             'caption that begins with %r' % key)
        rows, caption = tables[key]
        return ''.join(rows) + '\n' + caption
    return TABLE.sub(copied, page)


def main():
    tables = {key: table for result in (DOCS / 'benchmarks').glob('*.md')
              for key, table in tables_of(result.read_text(encoding='utf-8')).items()}
    for page in DOCS.glob('*.md'):
        text = page.read_text(encoding='utf-8')
        copied = with_tables(text, tables)
        if copied != text:
            page.write_text(copied, encoding='utf-8')
            print('%s has new tables: read the text beside them again' % page)


if __name__ == '__main__':
    main()
