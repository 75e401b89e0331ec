"""Common parts of steps are read once, and judged once; nothing else is."""

from pathlib import Path

from recoverrun.reports.history import history
from recoverrun.reports.proof import prove
from rendezvous.journal.reader import read_run
from rendezvous.journal.step_lines import FULL_EVERY
from rendezvous.journal.writer import journal_path
from tests.unit import journals


def test_steps_on_short_lines_share_their_account(tmp_path: Path) -> None:
    commits = history(read_run(journals.one_loss(tmp_path))).commits

    assert commits[20].done is commits[30].done is not None
    assert commits[2].quota is commits[9].quota
    assert commits[2].raw != commits[20].raw


def test_a_step_after_a_whole_one_is_judged_by_itself_if_it_says_anything_else(
    tmp_path: Path,
) -> None:
    story = journals.Story(tmp_path)
    story.start()
    story.steps(0, 3)
    story.commit(4, {0: [(0, 0)] * 4, 1: [(1, i) for i in range(4)], 2: [(2, i) for i in range(4)]})
    story.steps(5, 6)
    story.commit(7, total=11)
    log = read_run(story.close())

    proof = prove(history(log), log)

    assert [one.step for one in proof.violations] == [4, 7]
    assert (proof.steps, proof.exact) == (8, 6)


def test_short_lines_of_an_impossible_record_are_refused_with_it(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    story.start()
    story.steps(0, FULL_EVERY + 3)
    path = journal_path(story.close(), "gpu-01")
    first = f'"total":{journals.TOTAL},'.encode()
    damaged = path.read_bytes().replace(first, b'"total":4000000000000,', 1)
    path.write_bytes(damaged)

    steps = [commit.step for commit in history(read_run(tmp_path)).commits]

    assert steps[0] > 0
    assert steps[-1] == FULL_EVERY + 3
