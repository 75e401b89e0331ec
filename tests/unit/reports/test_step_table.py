"""Steps as rows."""

import csv
from pathlib import Path

from recoverrun.reports.history import History, history
from recoverrun.reports.step_table import HEADS, step_rows
from rendezvous.journal.reader import read_run
from tests.unit import journals


def test_each_step_has_a_row(tmp_path: Path) -> None:
    facts = history(read_run(journals.one_loss(tmp_path)))

    rows = [*csv.DictReader("".join(step_rows(facts)).splitlines())]

    assert [int(row["step"]) for row in rows] == list(range(40))
    assert {row["microbatches"] for row in rows} == {"12"}
    assert [rows[n]["live_replicas"] for n in (11, 12)] == ["3", "2"]
    assert (rows[12]["redone"], rows[12]["taken_over"], rows[13]["taken_over"]) == ("3", "1", "4")


def test_without_steps_there_are_heads() -> None:
    assert [*step_rows(History())] == [",".join(HEADS) + "\n"]
