"""The story of a run as its journal tells it."""

import json
import random
from pathlib import Path

import pytest

from recoverrun.reports.postmortem import Postmortem, cells, identity_ranges, postmortem, verdict
from recoverrun.reports.postmortem_json import to_json
from recoverrun.reports.status_lines import plain_lines
from rendezvous.journal.reader import read_run
from rendezvous.journal.writer import journal_path
from rendezvous.protocol.exit_codes import ExitCode
from tests.unit import journals
from tests.unit.journals import two_steps
from tests.unit.run_status import status_of


def _found(run_dir: Path) -> Postmortem:
    return postmortem(read_run(run_dir))


def test_a_fault_beside_those_of_other_losses_is_not_the_only_one(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    story.start()
    story.steps(0, 4)
    for slot, rank in enumerate((1, 3)):
        story.exit(rank, signal=9)
        story.lose(slot, rank, f"rank {rank} was killed by SIGKILL")
        story.wait(60)

    found = _found(story.close())

    assert {loss.cause.root.why_first for loss in found.losses} == {"the only fault of this loss"}


def test_what_was_redone_is_told_by_identity(tmp_path: Path) -> None:
    (loss,) = _found(journals.one_loss(tmp_path)).losses

    assert identity_ranges(loss.again) == "1:0-2"
    assert [(m.replica, identity_ranges(m.identities)) for m in loss.moved] == [
        (0, "1:0-1"),
        (2, "1:2-3"),
    ]
    assert loss.redone == 3


def test_what_a_lost_replica_had_taken_over_is_redone_for_its_loss(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    story.start()
    story.steps(0, 4)
    for step, slot, root, again in [
        (5, 1, 3, [(1, 0), (1, 1)]),
        (9, 2, 5, [(1, 2), (1, 3), (2, 0)]),
    ]:
        story.exit(root, signal=9)
        story.kill(root - 1)
        story.lose(slot, root, f"rank {root} was killed")
        story.exit(root - 1, signal=9, ours=True)
        story.decide(step)
        story.commit(step, redone=len(again), ms=900.0)
        story.recovered(step, {slot: root}, again)
        story.steps(step + 1, step + 3)
    story.end()
    story.close()

    found = _found(tmp_path)

    assert [identity_ranges(loss.again) for loss in found.losses] == ["1:0-1", "1:2-3, 2:0"]
    assert sum(loss.redone for loss in found.losses) == found.redone == 5


def test_work_that_survivors_do_from_a_loss_on_is_not_told_as_redone(tmp_path: Path) -> None:
    run_dir = journals.one_loss(tmp_path)

    found, status = _found(run_dir), status_of(read_run(run_dir), journals.WALL)

    # One of four in the struck step had been finished; the 27 steps after it had four more each.
    assert (found.redone, found.taken_over) == (3, 1 + 27 * 4)
    assert (status.redone_microbatches, status.taken_over_microbatches) == (3, 1 + 27 * 4)
    assert (found.lost_s, status.lost_s) == (0.3846, 0.3846)


def test_a_run_that_was_not_protected_is_not_told_as_one_of_no_steps(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    story.start()
    story.end()
    story.close()

    words = verdict(_found(tmp_path))

    assert words == "completed without a protected step, nothing was lost"


def test_a_journal_whose_beginning_was_cut_off_does_not_say_that_nothing_was_lost(
    tmp_path: Path,
) -> None:
    journal = journal_path(journals.clean(tmp_path), "gpu-01")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[len(lines) // 2 :]))

    words = verdict(_found(tmp_path))

    assert words == "completed with no step that can be read"


@pytest.mark.parametrize(
    ("promise", "after"), [("rollback", ""), ("unprotected", ""), ("equal-count", " after 0 steps")]
)
def test_steps_are_counted_only_where_ranks_vote_on_them(
    promise: str, after: str, tmp_path: Path
) -> None:
    story = journals.Story(tmp_path)
    story.start()
    story.write("promise.state", "the script is not known", promise=promise, microbatches=0)
    story.end(ExitCode.INTERRUPTED, reason="SIGINT was sent to the launcher on gpu-01")
    story.close()

    assert verdict(_found(tmp_path)) == f"stopped with exit code 130 (stopped by SIGINT){after}"


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
            names = sorted(record) if isinstance(record, dict) else range(len(record))
            record[rng.choice(names)] = rng.choice(values)
            damaged[place] = json.dumps(record)
        path.write_text("\n".join(damaged) + "\n")
        log = read_run(tmp_path)
        json.dumps(to_json(postmortem(log)))
        status_of(log, journals.WALL)


def test_a_promise_that_held_is_not_weakened(tmp_path: Path) -> None:
    story = two_steps(tmp_path)
    story.write("notice.give", "something else", rank=0, event="notice.give")

    assert to_json(_found(story.close()))["weakened"] is None


def _filled_up(run_dir: Path) -> journals.Story:
    """Two steps, then a disk that takes nothing but the word that it does not."""
    story = two_steps(run_dir)
    since = journals.WALL + story.now
    story.write("journal.drop", "the disk took no records: full", records=5, since=since, step=3)
    return story


def test_records_that_are_missing_are_told_with_their_first_step(tmp_path: Path) -> None:
    story = _filled_up(tmp_path)
    story.end()

    found = _found(story.close())

    assert verdict(found) == (
        "completed 3 recorded steps; records are missing from step 3 on: the disk refused 5 or more"
    )
    assert found.proof.verdict == "unproved"
    told = to_json(found)
    assert (told["missing_records"], told["missing_from_step"]) == (5, 3)


def test_a_run_whose_disk_was_full_is_not_called_dead(tmp_path: Path) -> None:
    found = _found(_filled_up(tmp_path).close())

    assert "its launcher died" not in verdict(found)
    assert "missing from step 3 on" in verdict(found)


def test_nobody_knows_what_the_time_of_missing_records_was_for(tmp_path: Path) -> None:
    story = two_steps(tmp_path)
    story.wait(50.0)
    story.write("journal.drop", "the disk took no records: full", records=5, step=3)
    story.wait(1.0)
    story.end()

    buckets = _found(story.close()).goodput.buckets

    assert buckets["unknown"] >= 50e6
    assert 1e6 <= buckets["ending"] < 2e6


def test_steps_that_a_drop_swallowed_are_not_skipped_ones(tmp_path: Path) -> None:
    story = _filled_up(tmp_path)
    story.commit(9)
    story.end()

    proof = _found(story.close()).proof

    assert not proof.violations
    assert any("steps 3-8 missing" in doubt for doubt in proof.unproved)


def test_the_first_missing_step_is_known_also_where_no_record_names_it(tmp_path: Path) -> None:
    story = two_steps(tmp_path)
    story.write("journal.drop", "the disk took no records", records=1)

    assert _found(story.close()).missing_from == 3


def test_a_silence_is_told_with_what_the_disk_did(tmp_path: Path) -> None:
    story = _filled_up(tmp_path)
    story.close()

    now = status_of(read_run(tmp_path), journals.WALL + 3600)

    assert any("the disk took none" in line for line in plain_lines(now) if "silence" in line)
