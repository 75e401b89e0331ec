"""The table of docs/compatibility.md, as it was and with what is known now."""

import re
import sys
from collections.abc import Iterable, Mapping

import torch

COLUMNS = {
    "name": "script",
    "with": "with",
    "promise": "promise",
    "forward": "forward",
    "reduce": "reduce",
    "vote": "vote",
    "apart": "max \\|Δw\\|",
    "back": "comes back",
    "why": "what the run says of it",
}
NOT_TRIED = "not tried"
HEAD = """\
# What is served, and how well

Written by `make compat`. Every row is a script that nobody changed. It is run without a loss, and
then with one rank killed in the forward pass, in the middle of the reduction and in the vote; the
final parameters of all survivors are compared with those of the run without a loss.

For the column *comes back* a rank is killed in a run with [`--return`](arrivals.md): the first rank
in one, and another one in a second. It says `yes` where its replica takes part again to the end,
and the weights of all ranks are what the promise asks for: equal between replicas to the bit, and
with `exact-samples` those of the run without a loss. Otherwise it says what the run said, or what
went wrong. Survivors wait between two steps for the fresh process, as scripts
here are over in a second.

Rows whose promise is `rollback` have one replica, and are run with
[`--snapshot-every`](snapshots.md). A rank is killed in three runs, in another step each: all ranks
go back to a snapshot, and the final parameters of all are, bit for bit, those of the run without a
loss. Where nobody votes a kill of any phase strikes as the update of its step begins.

"""
BETWEEN = re.compile(r"(?<!\\)\|")


class Table:
    """Cells by row and column."""

    def __init__(self, page: str) -> None:
        self._rows: dict[str, dict[str, str]] = {}
        columns: list[str] = []
        for line in page.splitlines():
            if not line.startswith("|") or line.startswith("|-"):
                continue
            cells = [cell.strip() for cell in BETWEEN.split(line)[1:-1]]
            if not columns:
                keys = {title: key for key, title in COLUMNS.items()}
                columns = [keys[title] for title in cells]
            else:
                self._rows[cells[0]] = dict(zip(columns, cells, strict=True))

    def note(self, name: str, cells: Mapping[str, str]) -> None:
        """What is known of row `name` now, by column; other cells stay."""
        self._rows[name] = {**self._rows.get(name, {"name": name}), **cells}

    def line(self, name: str) -> str:
        row = self._rows[name]
        return _line(row.get(key, NOT_TRIED) for key in COLUMNS)

    def page(self, names: Iterable[str]) -> str:
        """The page with the rows of these `names`, in that order, as far as any is known."""
        head = [_line(COLUMNS.values()), "|" + "---|" * len(COLUMNS)]
        lines = [*head, *(self.line(name) for name in names if name in self._rows)]
        foot = f"\nPython {sys.version.split()[0]}, torch {torch.__version__}, gloo, CPU.\n"
        return HEAD + "\n".join(lines) + "\n" + foot


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
