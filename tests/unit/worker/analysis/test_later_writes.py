"""Names that a script writes after it has made its objects."""

import ast
from textwrap import dedent

import pytest

from recoverrun.worker.analysis.later_writes import written_later


@pytest.mark.parametrize(
    ("source", "later"),
    [
        ("class Feed:\n    def __init__(self): self.at = 0", False),
        ("class Feed:\n    def go(self): self.at += 1", True),
        ("class Feed:\n    def go(self): del self.at", True),
        ("feed.at = 3", True),
        ("def move():\n    global at\n    at = 1", True),
        ("at = 3\nfor at in rows: print(self.at)", False),
        ("feed.more = feed.at", False),
    ],
)
def test_attributes_and_variables_of_modules(source: str, later: bool) -> None:
    assert written_later([ast.parse(dedent(source))], {"at"}) is later
