"""The table of docs/compatibility.md, as it was and with what is known now."""

import re
import sys
from collections.abc import Collection, Iterable, Mapping

import torch

COLUMNS = {
    "name": "script",
    "with": "with",
    "promise": "promise",
    "killed": "a rank is killed",
    "apart": "max \\|Δw\\|",
    "back": "comes back",
    "why": "what the run says of it",
}
NOT_TRIED = "not tried"
HEAD = """\
# What is served, and how well

Written by `make compat`. Every row is an unchanged script, run with the torch of the last line and
with the package that its row names.

- *A rank is killed*: in the forward pass, in the middle of the reduction and in the vote, one run
  each (`no such point`: the script never comes to that phase). *max |Δw|* is the largest difference
  of a final parameter of any survivor from the run without a loss.
- *Comes back*: two more runs with [`--return`](arrivals.md), with kills of the first rank and of
  another one. `yes`: the replica takes part again to the end, and final weights are bit for bit
  equal between replicas and, with `exact-samples`, those of the run without a loss. Survivors wait
  for the fresh process, as scripts here are over in a second.
- Rows with the promise `rollback` have one replica, or cannot finish a step without the lost one
  (the last column says why), and run with [`--snapshot-every`](snapshots.md). Three kills, each in
  another step: all ranks go back to a snapshot, and final parameters are, bit for bit, those of the
  run without a loss. Where nobody votes, a kill strikes as the update of its step begins.

"""
BETWEEN = re.compile(r"(?<!\\)\|")

FULL = {"promise": "exact-samples", "killed": "survives", "back": "yes", "why": ""}
"""The cells of a row that is served in full: its table has the other columns alone."""

FULL_HEAD = """\
## Served in full

The promise is `exact-samples`, the kill is survived in every phase, and the replica comes back.

"""
OTHERS_HEAD = """
## With a limit

"""


class Table:
    """Cells by row and column."""

    def __init__(self, page: str) -> None:
        self._rows: dict[str, dict[str, str]] = {}
        keys = {title: key for key, title in COLUMNS.items()}
        columns: list[str] = []
        for line in page.splitlines():
            if not line.startswith("|") or line.startswith("|-"):
                continue
            cells = [cell.strip() for cell in BETWEEN.split(line)[1:-1]]
            if cells[0] == COLUMNS["name"]:
                columns = [keys[title] for title in cells]
            else:
                self._rows[cells[0]] = {**FULL, **dict(zip(columns, cells, strict=True))}

    def note(self, name: str, cells: Mapping[str, str]) -> None:
        """Keep what is known of row `name` now, by column; other cells stay."""
        self._rows[name] = {**self._rows.get(name, {"name": name}), **cells}

    def line(self, name: str) -> str:
        return self._line(name, COLUMNS)

    def page(self, names: Iterable[str]) -> str:
        """The page with the rows of these `names`, in that order, as far as any is known."""
        known = [name for name in names if name in self._rows]
        full = [name for name in known if FULL.items() <= self._rows[name].items()]
        others = [name for name in known if name not in full]
        foot = f"\nPython {sys.version.split()[0]}, torch {torch.__version__}, gloo, CPU.\n"
        shown = [key for key in COLUMNS if key not in FULL]
        tables = FULL_HEAD + self._drawn(full, shown) + OTHERS_HEAD + self._drawn(others, COLUMNS)
        return HEAD + tables + foot

    def _drawn(self, names: Iterable[str], keys: Collection[str]) -> str:
        head = [_line(COLUMNS[key] for key in keys), "|" + "---|" * len(keys)]
        return "\n".join([*head, *(self._line(name, keys) for name in names)]) + "\n"

    def _line(self, name: str, keys: Iterable[str]) -> str:
        row = self._rows[name]
        return _line(row.get(key, NOT_TRIED) for key in keys)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
