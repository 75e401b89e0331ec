"""`make compat`: every row with a kill in each of three phases, as the table of the docs.

At its end every row is compared with torchrun, without a loss (`tests.truth.differential`).
"""

import argparse
import importlib.metadata
import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from tests.compat.row import PHASES, Row
from tests.compat.rows import ROWS
from tests.compat.trials import Outcome, judge, run
from tests.truth.differential import compare

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
SURVIVES, ABSENT = "survives", "no such point"
HEAD = """\
# What is served, and how well

Written by `make compat`. Every row is a script that nobody changed. It is run without a loss, and
then with one rank killed in the forward pass, in the middle of the reduction and in the vote; the
final parameters of all survivors are compared with those of the run without a loss.

| script | with | promise | forward | reduce | vote | max \\|Δw\\| | what the run says of it |
|---|---|---|---|---|---|---|---|
"""


def kill(row: Row, phase: str) -> str:
    """Another rank and step for each phase; the first rank is among them."""
    place = PHASES.index(phase)
    victims = row.victims or tuple(range(row.ranks))
    return f"r{victims[(place * 2) % len(victims)]}@step:{2 + place}:{phase}"


def tried(row: Row, folder: Path) -> Iterator[Outcome]:
    plain = folder / "plain"
    trial = run(row, plain)
    if row.refused:
        yield judge(row, plain, plain, "", trial)
        return
    for phase in PHASES:
        inject = kill(row, phase)
        yield judge(row, plain, folder / phase, inject, run(row, folder / phase, inject))


def cell(outcome: Outcome) -> str:
    """What came of one kill."""
    if not outcome.problems:
        return SURVIVES
    missed = outcome.problems[0].startswith("never struck")
    return ABSENT if missed else outcome.problems[0]


def line(row: Row, outcomes: list[Outcome]) -> str:
    promise = outcomes[0].trial.history.promise or "none"
    cells = [cell(one) for one in outcomes]
    apart = max(one.apart for one in outcomes)
    package = row.needs or "torch"
    version = importlib.metadata.version(package)
    exact = promise == "exact-samples" and not row.taken_back
    shown = f"{apart:.0e}" if exact else "other samples"
    if row.refused and not outcomes[0].problems:
        cells, shown = ["as torchrun"] * len(PHASES), "nothing is made up"
    said = "" if exact else reason(outcomes[0])
    cells = [row.name, f"{package} {version}", promise, *cells, shown, said]
    return f"| {' | '.join(cells)} |"


def reason(outcome: Outcome) -> str:
    """Why the promise is not a better one, without the folder in which the script lay."""
    trial = outcome.trial
    said = trial.weakened if outcome.row.taken_back else trial.history.promise_reason
    return re.sub(r"/\S*/", "", said).replace("|", "\\|")


def page(lines: Mapping[str, str], before: str) -> str:
    """The page with these lines, and those of all other rows as they were."""
    known = {one.split(" | ")[0].removeprefix("| "): one for one in before.splitlines()}
    rows = {**known, **lines}
    table = [rows[row.name] for row in ROWS if row.name in rows]
    foot = f"\nPython {sys.version.split()[0]}, torch {torch.__version__}, gloo, CPU.\n"
    return HEAD + "\n".join(table) + "\n" + foot


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat")
    parser.add_argument("--rows", default="", help="these alone: parts of names, with commas")
    parser.add_argument("--print", action="store_true", help="do not write the page")
    args = parser.parse_args()
    wanted = [row for row in ROWS if any(part in row.name for part in args.rows.split(","))]
    lines, problems = dict[str, str](), 0
    for row in wanted:
        if row.needs and importlib.util.find_spec(row.needs) is None:
            print(f"{row.name}: {row.needs} is not installed", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as directory:
            outcomes = list(tried(row, Path(directory)))
        problems += sum(cell(one) not in (SURVIVES, ABSENT) for one in outcomes)
        lines[row.name] = line(row, outcomes)
        print(lines[row.name], flush=True)
    if not args.print:
        PAGE.write_text(page(lines, PAGE.read_text()))
    return min(problems + compare(wanted), 1)


if __name__ == "__main__":
    sys.exit(main())
