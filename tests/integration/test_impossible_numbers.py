"""Journals with numbers that no run can have: every report of them is made, and soon.

Numbers in records of each kind are replaced, one at a time. Reports may say that the
line cannot be read, or what it says: they take no memory for what a number says, and end.
"""

import io
import json
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from recoverrun.reports.failure_report import failure_report
from recoverrun.reports.history import history
from recoverrun.reports.postmortem import postmortem
from recoverrun.reports.postmortem_json import to_json as postmortem_json
from recoverrun.reports.postmortem_screen import render as postmortem_screen
from recoverrun.reports.postmortem_screen import render_proof
from recoverrun.reports.status import to_json as status_json
from recoverrun.reports.status_lines import plain_lines
from recoverrun.reports.status_screen import render as status_screen
from rendezvous.journal.bounds import BOUNDS
from rendezvous.journal.reader import read_run
from rendezvous.protocol.number_bounds import COUNT_MOST, RANK_MOST
from rendezvous.protocol.records import Json
from tests.unit import journals
from tests.unit.run_status import status_of

NUMBERS: tuple[Json, ...] = (
    -1, 0, 1 << 20, RANK_MOST, COUNT_MOST, 4_000_000_000_000, 1 << 63, 10**400, -(10**12), 1e308,
)  # fmt: skip
MEMORY_BYTES = 64 << 20
SECONDS = 60.0
SLOTS = 50
CASES = 30  # of each run
Place = tuple[str | int, ...]


def _all_reports(run_dir: Path) -> None:
    log = read_run(run_dir)
    console = Console(file=io.StringIO(), width=100)
    found, now = postmortem(log), status_of(log, journals.WALL + 60)
    console.print(postmortem_screen(found, everything=True))
    console.print(render_proof(found.proof, everything=True))
    console.print(status_screen(now))
    for text in (json.dumps(postmortem_json(found)), status_json(now), *plain_lines(now)):
        console.print(text[:100])
    failure_report(log, history(log).exit_code or 1, run_dir)


def _numbers(value: Json, path: Place = ()) -> Iterator[Place]:
    """The places of numbers in a record."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _numbers(inner, (*path, place))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def _with(value: Json, path: Place, number: Json) -> Json:
    """The record with another number at `path`."""
    if not path:
        return number
    first, *rest = path
    if isinstance(value, dict):
        return {k: _with(v, tuple(rest), number) if k == first else v for k, v in value.items()}
    assert isinstance(value, list), "paths are those of the record"
    return [_with(v, tuple(rest), number) if i == first else v for i, v in enumerate(value)]


def _damaged(lines: list[Json], rng: random.Random) -> Iterator[list[Json]]:
    """The journal with one number in the place of another, for one line of each kind."""
    kinds: dict[str, list[int]] = {}
    for place, line in enumerate(lines):
        assert isinstance(line, dict), "a record"
        kinds.setdefault(str(line["ev"]), []).append(place)
    for places in kinds.values():
        place = rng.choice(places)
        fields = {path[:2] if path[0] == "done" else path for path in _numbers(lines[place])}
        for path in sorted(fields, key=str):
            for number in NUMBERS:
                yield [*lines[:place], _with(lines[place], path, number), *lines[place + 1 :]]


def _resident_bytes() -> int:
    """The most that this process ever had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture
def bounded() -> Iterator[None]:
    """The test takes no more memory than there are journals, nor time without end."""
    before, began = _resident_bytes(), time.process_time()
    yield
    assert _resident_bytes() - before < MEMORY_BYTES
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.rest) if name != "one_loss" else name
             for name in journals.RUNS],
)  # fmt: skip
def test_no_number_in_a_journal_costs_more_than_its_line(
    tmp_path: Path, bounded: None, name: str
) -> None:
    (path, *_) = sorted(journals.RUNS[name](tmp_path).glob("events.*.jsonl"))
    whole = [line for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    lines = [json.loads(line) for line in whole]

    rng = random.Random(name)
    for damaged in rng.sample(list(_damaged(lines, rng)), CASES):
        path.write_text("".join(json.dumps(line) + "\n" for line in damaged))
        _all_reports(tmp_path)


@pytest.mark.parametrize("field", ["total", "microbatches", "quota"])
def test_many_steps_of_the_largest_numbers_are_counted_with(
    tmp_path: Path, bounded: None, field: str
) -> None:
    story = journals.two_steps(tmp_path)
    most: Json = BOUNDS[field][1]
    if field == "quota":
        most = {str(slot): most for slot in range(SLOTS)}
    for step in range(2, 60):
        story.commit(step, **{field: most})
    story.close()

    _all_reports(tmp_path)
