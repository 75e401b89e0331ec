"""The story of a run as its journal tells it."""

import json
import random
from pathlib import Path

from recoverrun.reports.postmortem import Postmortem, cells, identity_ranges, postmortem
from recoverrun.reports.postmortem_json import to_json
from recoverrun.reports.status import status_of
from rendezvous.journal.reader import read_run
from rendezvous.journal.writer import journal_path
from tests.unit import journals
from tests.unit.journals import two_steps


def _found(run_dir: Path) -> Postmortem:
    return postmortem(read_run(run_dir))


def test_what_was_redone_is_told_by_identity(tmp_path: Path) -> None:
    (loss,) = _found(journals.one_loss(tmp_path)).losses

    assert identity_ranges(loss.again) == "1:0-2"
    assert [(m.replica, identity_ranges(m.identities)) for m in loss.moved] == [
        (0, "1:0-1"),
        (2, "1:2-3"),
    ]
    assert loss.redone == 3


def test_the_timeline_never_hides_a_loss(tmp_path: Path) -> None:
    found = _found(journals.one_loss(tmp_path))

    for columns in (1, 2, 7, 80):
        row = cells(found.lanes[1], began=found.began, latest=found.latest, columns=columns)
        assert len(row) == columns
        assert row.count("lost") == 1


def test_any_damage_gives_a_page_and_never_a_traceback(tmp_path: Path) -> None:
    journals.one_loss(tmp_path)
    path = journal_path(tmp_path, "gpu-01")
    lines = path.read_text().splitlines()
    rng = random.Random(11)
    values: list[object] = [None, -1, 10**300, "x", [], {}, [[1]], {"1": 10**9}, True, 1e308]

    for _ in range(150):
        damaged = list(lines)
        for _ in range(3):
            place = rng.randrange(len(damaged))
            record = json.loads(damaged[place])
            record[rng.choice(sorted(record))] = rng.choice(values)
            damaged[place] = json.dumps(record)
        path.write_text("\n".join(damaged) + "\n")
        log = read_run(tmp_path)
        json.dumps(to_json(postmortem(log)))
        status_of(log, journals.WALL)


def test_a_promise_that_held_is_not_weakened(tmp_path: Path) -> None:
    scene = two_steps(tmp_path)
    scene.write("notice.give", "something else", rank=0, event="notice.give")

    assert to_json(_found(scene.close()))["weakened"] is None
