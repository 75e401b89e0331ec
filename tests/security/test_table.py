"""The table is whole: each of its 64 rows is a test of that name, or the page says why not."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/security.md"
ROWS = set(range(1, 65))


def _tested() -> set[int]:
    paths = [path for path in HERE.parent.rglob("test_*.py") if path != Path(__file__)]
    sources = [path.read_text() for path in paths]
    names = [
        match[1]
        for source in sources
        for match in re.finditer(r"(?:def test_|id=f?\"|ids=\[f\")([^\"(]*)", source)
    ]
    return {int(row) for name in names for row in re.findall(r"(?:row|and)[-_](\d+)", name)}


def _elsewhere() -> set[int]:
    listed = PAGE.read_text().split("## Bad inputs")[1]
    return {int(row) for row in re.findall(r"^\| (\d+) \|", listed, re.MULTILINE)}


def test_every_row_is_tested_or_the_page_says_why_not() -> None:
    assert _tested() | _elsewhere() == ROWS
    assert not _tested() & _elsewhere()
