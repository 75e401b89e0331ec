"""`python -m tests.truth.differential`: without a loss, is a run the run under torchrun?

Every script of `make compat` is run under both launchers, and an observer that belongs to neither
(`observer/sitecustomize.py`) notes what each rank is given, computes and prints. With two replicas
all of it must be the same, bit for bit. Where three or more are wanted (`--as-it-is`), a sum may be
ordered otherwise: then numbers may be apart by a bound of the precision that they are held in.
"""

import argparse
import dataclasses
import importlib.util
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recoverrun.reports.history import history
from rendezvous.journal.reader import read_run
from tests.bench import jobs
from tests.compat.row import Row
from tests.compat.rows import ROWS
from tests.e2e.plain import unspoilt

ROOT = Path(__file__).resolve().parents[2]
OBSERVER = Path(__file__).parent / "observer"
WITHIN_S = {"torchrun": 50.0, "recoverrun": 120.0}
BOUNDS = {"torch.float64": 1e-12, "torch.float32": 1e-5, "torch.float16": 1e-2}
BOUNDS["torch.bfloat16"] = 1e-1

# What a script prints of how long it took is no result.
CLOCKS = re.compile(
    r"(?i)[0-9.,]+ ?(ms|s|it/s|\w*tok\w*/s)\b|'?\w*(runtime|per_second)\w*'?: '?[0-9.]+'?"
)
Event = tuple[str, list[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The notes of one rank."""

    events: tuple[Event, ...]
    printed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    code: int | None
    ranks: tuple[Notes, ...]
    said: str

    @property
    def kinds(self) -> str:
        """The number of things that were compared, by kind."""
        events = [kind for notes in self.ranks for kind, _ in notes.events]
        return ", ".join(f"{events.count(kind)} {kind}" for kind in sorted(set(events)))


def paired(row: Row) -> Row:
    """The row with two replicas; those of several ranks are two as they are."""
    sharded = row.ranks > 3 and not row.name.startswith(("ddp-", "by-hand", "recipe-ddp"))
    return row if sharded else dataclasses.replace(row, ranks=2)


def observe(
    row: Row, launcher: str, folder: Path, *, values: bool, options: tuple[str, ...] = ()
) -> Observed:
    """One run; its journal, if it leaves any, is in FOLDER/journal. `options` are ours alone."""

    def attempt(number: int) -> Observed:
        place = folder / str(number)
        notes = place / "notes"
        notes.mkdir(parents=True)
        own = (f"--run-dir={folder / 'journal'}", *options) if launcher == "recoverrun" else ()
        script = Path(row.command[1])
        ran = jobs.run(
            launcher,
            row.ranks,
            str(script),
            row.arguments,
            directory=place,
            options=own,
            timeout_s=WITHIN_S[launcher],
            PYTHONPATH=os.pathsep.join((str(OBSERVER), str(ROOT))),
            OBSERVER_LOG=str(notes),
            OBSERVER_VALUES=str(int(values)),
            CUDA_VISIBLE_DEVICES="",
        )
        ranks = tuple(_notes(notes, rank) for rank in range(row.ranks))
        return Observed(code=ran.code, ranks=ranks, said=ran.output + ran.errors)

    # No run of ours is excused for a wait.
    hung = (lambda ran: ran.code is None) if launcher == "torchrun" else (lambda _: False)
    return unspoilt(attempt, lambda ran: ran.said, hung)


def _notes(folder: Path, rank: int) -> Notes:
    log, out = folder / f"{rank}.jsonl", folder / f"{rank}.out"
    lines = log.read_text().splitlines() if log.exists() else []
    printed = out.read_text(errors="replace").splitlines() if out.exists() else []
    return Notes(
        events=tuple((kind, content) for kind, content in map(json.loads, lines)),
        printed=tuple(CLOCKS.sub("#", line) for line in printed),
    )


# ------------------------------------------------------------------------------- comparison


def differences(one: Observed, two: Observed, *, bitwise: bool) -> Iterator[str]:
    """The first difference of each rank."""
    if one.code or two.code or None in (one.code, two.code):  # a script that fails says little
        yield f"exit code {one.code} and {two.code}"
    for rank, (left, right) in enumerate(zip(one.ranks, two.ranks, strict=True)):
        if not left.events:
            yield f"rank {rank}: nothing was noted"
        yield from itertools.islice(_of_rank(rank, left, right, bitwise=bitwise), 1)
        for number, lines in enumerate(itertools.zip_longest(left.printed, right.printed)):
            if lines[0] != lines[1] and bitwise:
                yield f"rank {rank} printed in line {number + 1}: {lines[0]!r} and {lines[1]!r}"
                break


def _of_rank(rank: int, left: Notes, right: Notes, *, bitwise: bool) -> Iterator[str]:
    counts: dict[str, int] = {}
    for one, two in itertools.zip_longest(left.events, right.events):
        if one is None or two is None:
            yield f"rank {rank}: {_named(one)} and {_named(two)} after {_counted(counts)}"
            return
        counts[one[0]] = counts.get(one[0], 0) + 1
        where = f"rank {rank}, {one[0]} {counts[one[0]]}"
        if one[0] != two[0] or len(one[1]) != len(two[1]):
            yield f"{where}: {_named(one)} and {_named(two)}"
            return
        scale = _scale(one[1])
        for number, (a, b) in enumerate(zip(one[1], two[1], strict=True)):
            if a != b and (bitwise or not _close(a, b, scale)):
                yield f"{where}, tensor {number}: {_shown(a)} and {_shown(b)}"


def _close(one: object, two: object, scale: float) -> bool:
    """True if two tensors are the same but for another order of sums."""
    match one, two:
        case [str(shape), str(), list(a)], [str(other), str(), list(b)] if shape == other:
            bound = BOUNDS[shape.partition("[")[0]] * scale
            return all(abs(x - y) <= bound for x, y in zip(a, b, strict=True))
    return False


def _scale(content: list[object]) -> float:
    """The largest number of an event."""
    numbers = [abs(x) for one in content if isinstance(one, list) for x in one[2:] for x in x]
    return max(numbers, default=0.0)


def _named(event: Event | None) -> str:
    return "nothing" if event is None else f"{event[0]} of {len(event[1])}"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing"


def _shown(content: object) -> str:
    match content:
        case [str(shape), str(digest), *values]:
            numbers = values[0][:3] if values and isinstance(values[0], list) else ""
            return " ".join(filter(None, (shape, digest, str(numbers))))
    return str(content)


# ------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    row: Row
    problems: tuple[str, ...]
    unsteady: bool  # two runs under torchrun differ as well
    compared: str
    promise: str
    reason: str
    taken: int = 0  # snapshots that were safe

    @property
    def line(self) -> str:
        promise = self.promise or "no promise"
        if self.promise != self.row.promise:
            promise += f" as {self.reason}"
        how = f"{self.row.ranks} ranks, {promise}: {self.compared}"
        if self.taken:
            how += f", {self.taken} snapshots"
        if self.unsteady:
            return f"{self.row.name}: torchrun differs from itself ({how}): {self.problems[0]}"
        if self.problems:
            return f"{self.row.name}: DIFFERENT ({how}): {'; '.join(self.problems[:3])}"
        return f"{self.row.name}: the same ({how})"


def tried(row: Row, folder: Path, *, bitwise: bool = True, every: int = 0) -> Verdict:
    """Run `row` under both launchers; under torchrun once more where they differ. With `every`
    snapshots are taken at every so many steps.
    """
    plain = observe(row, "torchrun", folder / "torchrun", values=not bitwise)
    options = (f"--snapshot-every={every}",) if every else ()
    ours = observe(row, "recoverrun", folder / "recoverrun", values=not bitwise, options=options)
    problems = tuple(differences(plain, ours, bitwise=bitwise))
    unsteady = False
    if problems:
        again = observe(row, "torchrun", folder / "again", values=not bitwise)
        unsteady = not plain.code and any(differences(plain, again, bitwise=bitwise))
        if None in (plain.code, ours.code) or plain.code or ours.code:
            problems += ("torchrun: " + plain.said[-600:], "recoverrun: " + ours.said[-2000:])
    entries = read_run(folder / "recoverrun" / "journal")
    facts = history(entries)
    return Verdict(
        taken=len(list(entries.of("snapshot.safe"))),
        row=row,
        problems=problems,
        unsteady=unsteady,
        compared=plain.kinds,
        promise=facts.promise,
        reason=facts.promise_reason,
    )


def wanted(parts: str) -> list[Row]:
    return [row for row in ROWS if any(part in row.name for part in parts.split(","))]


def compare(rows: list[Row], *, as_it_is: bool = False, every: int = 0) -> int:
    """Try all of them, print a line for each; how many differ."""
    different = 0
    for row in rows:
        if row.goes_back and not every:
            continue  # without snapshots it is another row's job
        if row.needs and importlib.util.find_spec(row.needs) is None:
            print(f"{row.name}: {row.needs} is not installed", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            as_run = row if as_it_is or row.goes_back else paired(row)
            verdict = tried(as_run, Path(folder), bitwise=not as_it_is, every=every)
        different += bool(verdict.problems) and not verdict.unsteady
        print(verdict.line, flush=True)
    return different


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.truth.differential")
    parser.add_argument("--rows", default="", help="parts of names, separated by commas")
    parser.add_argument("--as-it-is", action="store_true", help="as many replicas as compat has")
    parser.add_argument("--every", type=int, default=0, help="steps from snapshot to snapshot")
    args = parser.parse_args()
    return min(compare(wanted(args.rows), as_it_is=args.as_it_is, every=args.every), 1)


if __name__ == "__main__":
    sys.exit(main())
