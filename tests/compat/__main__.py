"""`make compat`: every row with a kill in each of three phases, as the table of the docs.

Then a rank is killed whose replica is to come back (`--returns` does that alone), and at the end
every row is compared with torchrun, without a loss (`tests.truth.differential`).
"""

import argparse
import importlib.metadata
import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.compat import gone_back, lost_and_back
from tests.compat.row import PHASES, Row
from tests.compat.rows import ROWS
from tests.compat.table import Table
from tests.compat.trials import Outcome, described, judge, run
from tests.truth.differential import compare
from tests.warm.launchers import LAUNCHERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
SURVIVES, ABSENT, GOES_BACK = "survives", "no such point", "all go back"
WELL = (SURVIVES, ABSENT, GOES_BACK)

STAYS = re.compile(r"^a lost replica does not come back: ")
"""The beginning of a sentence of the run, which the column says by its title."""


def kill(row: Row, phase: str) -> str:
    """Another rank and step for each phase; the first rank is among them."""
    place = PHASES.index(phase)
    victims = row.victims or tuple(range(row.ranks))
    return f"r{victims[(place * 2) % len(victims)]}@step:{2 + place}:{phase}"


def tried(row: Row, folder: Path) -> Iterator[Outcome]:
    plain = folder / "plain"
    if row.goes_back:
        yield from gone_back.tried(row, folder)
        return
    run(row, plain)
    for phase in PHASES:
        inject = kill(row, phase)
        yield judge(row, plain, folder / phase, inject, run(row, folder / phase, inject))


def cell(outcome: Outcome) -> str:
    """The outcome of one kill."""
    if not outcome.problems:
        return GOES_BACK if outcome.row.goes_back else SURVIVES
    missed = outcome.problems[0].startswith("never struck")
    return ABSENT if missed else outcome.problems[0]


def in_phases(kills: Sequence[str]) -> str:
    """The outcome of a kill in each phase, said once where it is the same."""
    if len(set(kills)) == 1:
        return kills[0]
    return "; ".join(f"{phase}: {came}" for phase, came in zip(PHASES, kills, strict=True))


def cells(row: Row, outcomes: list[Outcome]) -> dict[str, str]:
    """The outcomes of a row's kills, by column."""
    promise = outcomes[0].trial.history.promise or "none"
    kills = [cell(one) for one in outcomes]
    apart = max(one.apart for one in outcomes)
    exact = row.goes_back or (promise == "exact-samples" and not row.taken_back)
    shown = f"{apart:.0e}" if exact else "other samples"
    return {
        "with": f"{row.needs} {importlib.metadata.version(row.needs)}" if row.needs else "",
        "promise": promise,
        "killed": in_phases(kills),
        "apart": shown,
        "why": "" if exact and not row.goes_back else reason(outcomes[0]),
    }


def reason(outcome: Outcome) -> str:
    """Why the promise is not a better one, without the folder in which the script lay."""
    trial = outcome.trial
    said = trial.weakened if outcome.row.taken_back else trial.history.promise_reason
    return told(said)


def told(sentence: str) -> str:
    """As a cell of the table: without folders, on one line."""
    sentence = sentence.partition("\n")[0]
    return re.sub(r"/\S*/", "", sentence).replace("|", "\\|")


def returned(row: Row, folder: Path) -> tuple[str, list[str]]:
    """The return of a lost replica: if it takes part, and what is wrong with how it does."""
    if row.goes_back:
        return "all go back", []
    (folder / "plain").mkdir(exist_ok=True)
    if not (folder / "plain" / "witness").exists():
        run(row, folder / "plain")
    words, problems = dict[str, int](), list[str]()
    for victim in lost_and_back.victims(row):
        place = folder / f"returns{victim}"
        outcome = lost_and_back.tried(row, folder / "plain", place, victim)
        said, found = lost_and_back.said(outcome, folder / "plain", place, victim)
        words.setdefault(STAYS.sub("no: ", told(said)), victim)
        if found:
            print(f"{row.name}, rank {victim}: {described(outcome)}", *found, sep="\n", flush=True)
            problems += [f"rank {victim}: {told(one)}" for one in found]
    if len(words) == 1 and not problems:
        return next(iter(words)), []
    return "; ".join([*problems, *(f"rank {n}: {one}" for one, n in words.items())]), problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat")
    parser.add_argument("--rows", default="", help="these alone: parts of names, with commas")
    parser.add_argument("--print", action="store_true", help="do not write the page")
    parser.add_argument("--returns", action="store_true", help="only whether replicas come back")
    parser.add_argument("--cold", action="store_true", help="all processes are new ones")
    args = parser.parse_args()
    wanted = [row for row in ROWS if any(part in row.name for part in args.rows.split(","))]
    with LAUNCHERS.forked(not args.cold):
        problems = _tabled(wanted, args)
    if not args.returns:
        problems += compare(wanted)
    return min(problems, 1)


def _tabled(wanted: Sequence[Row], args: argparse.Namespace) -> int:
    """Try the rows, and write down what came of them; the number of problems."""
    table, problems = Table(PAGE.read_text()), 0
    for row in wanted:
        if row.needs and importlib.util.find_spec(row.needs) is None:
            print(f"{row.name}: {row.needs} is not installed", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            if not args.returns:
                outcomes = list(tried(row, folder))
                problems += sum(cell(one) not in WELL for one in outcomes)
                table.note(row.name, cells(row, outcomes))
            back, wrong = returned(row, folder)
        problems += len(wrong)
        table.note(row.name, {"back": back})
        print(table.line(row.name), flush=True)
        if not args.print:
            PAGE.write_text(table.page(row.name for row in ROWS))
    return problems


if __name__ == "__main__":
    sys.exit(main())
