"""Copy the tables of docs/benchmarks to the pages that show them.

A table is known by its script, the head of its first column and the first sentence below it. If a
page says that the file has more, only the rows are copied that begin as one of the page's. Read the
text beside a new table again, and that of its picture.
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
        (key, (shown, _)), = tables_of(match[0]).items()
        if key not in tables:
            raise ValueError('docs/benchmarks/%s.md has no table that begins with %r, with a '
                             'caption that begins with %r' % key)
        rows, caption = tables[key]
        if '`docs/benchmarks/%s.md` has more' % match[3] in page:
            begins = {row.split('|')[1] for row in shown}
            rows = rows[:2] + [row for row in rows[2:] if row.split('|')[1] in begins]
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
