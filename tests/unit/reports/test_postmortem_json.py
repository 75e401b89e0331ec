"""The postmortem for programs."""

import json
from pathlib import Path

from recoverrun.reports.postmortem import postmortem
from recoverrun.reports.postmortem_json import to_json
from rendezvous.journal.reader import read_run
from tests.unit import journals


def test_the_json_holds_the_whole_story(tmp_path: Path) -> None:
    story = json.loads(json.dumps(to_json(postmortem(read_run(journals.one_loss(tmp_path))))))

    assert story["schema"] == 1
    assert story["invariant"]["verdict"] == "proved"
    (loss,) = story["losses"]
    assert (loss["replica"], loss["root_rank"], loss["total_ms"]) == (1, 3, 384.6)
    assert loss["redone_identities"] == [[1, 0], [1, 1], [1, 2]]
