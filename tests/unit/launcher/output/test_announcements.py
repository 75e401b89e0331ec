"""The console's lines about losses."""

from dataclasses import replace

import pytest

from recoverrun.launcher.output.announcements import Announcer, announcement, started
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.records import Json, Record

RECOVERED: dict[str, Json] = {
    "step": 4,
    "redone": [[1, 0], [1, 1]],
    "total": 8,
    "live": 3,
    "of": 4,
    "total_ms": 157.9,
}


def test_a_loss_names_the_replica_its_ranks_and_the_cause() -> None:
    record = Record("replica.lost", "rank 3 was ended by signal 9", {"slot": 1, "ranks": [2, 3]})

    assert announcement(record) == "✖ replica 1 (ranks 2, 3) is lost: rank 3 was killed by SIGKILL"


def test_pids_are_told_in_the_order_of_ranks() -> None:
    assert started({0: 4100}) == "rank 0: pid 4100"
    assert started({4: 4100, 5: 4101, 6: 4102, 7: 4103}) == "ranks 4-7: pids 4100-4103"
    assert started({0: 32767, 1: 32768, 2: 301}) == "ranks 0-2: pids 32767, 32768, 301"


def test_a_recovery_says_what_it_means() -> None:
    record = Record("recovery.done", "step 4 is committed without replica 1", RECOVERED)

    assert announcement(record) == (
        "✓ step 4 complete, 8/8 microbatches (2 redone, +158 ms) · continuing on 3 of 4 replicas"
    )


def test_a_loss_that_no_step_met_any_more_is_over_too() -> None:
    record = Record("recovery.done", "whole already", {"step": 9, "redone": [], "total_ms": 12.0})

    assert announcement(record) == "✓ step 9 complete (nothing redone, +12 ms)"


def test_a_plain_terminal_gets_plain_signs() -> None:
    record = Record("replica.lost", "rank 3 was ended by signal 9", {"slot": 1, "ranks": [2, 3]})

    assert announcement(record, ascii_only=True).isascii()


@pytest.mark.parametrize("event", ["suspect", "clear", "quiet", "part", "stick"])
def test_what_is_seen_of_hangs_is_said(event: str) -> None:
    assert announcement(Record(f"hang.{event}", "rank 1 waits", {})) == "! rank 1 waits"


def test_that_a_rank_hangs_is_said_once_with_its_loss() -> None:
    lost = Record("replica.lost", "rank 3 hangs, at train.py:9 f", {"slot": 1, "ranks": [3]})

    assert announcement(Record("hang.condemn", "rank 3 hangs", {"rank": 3})) == ""
    assert announcement(lost) == "✖ replica 1 (rank 3) is lost: rank 3 hangs, at train.py:9 f"


def test_what_only_the_journal_needs_stays_there() -> None:
    assert announcement(Record("worker.spawn", "rank 0", {"rank": 0})) == ""


def test_who_is_killed_after_its_script_is_told_by_the_signals_name() -> None:
    words = "was ended by signal 9 after its script had ended"
    record = Record("notice.give", words, {"rank": 2})

    assert announcement(record) == "! rank 2: was killed by SIGKILL after its script had ended"


def test_how_often_snapshots_are_taken_is_no_warning() -> None:
    words = "a snapshot every 12 steps: one costs 2.0 ms, a step 20.1"

    record = Record("notice.give", words, {"rank": 0, "event": "snapshot.pace"})
    assert announcement(record) == words


def test_words_of_a_worker_cannot_move_the_cursor() -> None:
    record = Record("notice.give", "\x1b[2Jgone", {"rank": 0})

    assert "\x1b" not in announcement(record)


# ------------------------------------------------------------------------------- many at once


def _loss(rank: int, why: str = "was ended by signal 9") -> Record:
    return Record("replica.lost", f"rank {rank} {why}", {"slot": rank, "ranks": [rank]})


def _said(*records: Record, at: float = 0.0) -> list[str]:
    said: list[str] = []
    announcer = Announcer(said.append)
    for record in records:
        announcer.hear(record, at)
    announcer.tick(at + 1.0)
    return said


def test_replicas_that_are_lost_alike_are_one_line() -> None:
    change = Record("view.change", "", {"generation": 2})
    records = [one for rank in range(64) for one in (_loss(rank), change)]

    assert _said(*records) == [
        "✖ replicas 0-63 (ranks 0-63) are lost, all alike, the first: rank 0 was killed by SIGKILL"
    ]


def test_other_reasons_have_other_lines_up_to_a_few() -> None:
    words = ["was ended by signal 9", "exited with code 1: a", "exited with code 1: b", "c", "d"]

    said = _said(*(_loss(rank, why) for rank, why in enumerate(words)))

    assert said == [
        "✖ replica 0 (rank 0) is lost: rank 0 was killed by SIGKILL",
        "✖ replica 1 (rank 1) is lost: rank 1 exited with code 1: a",
        "✖ replica 2 (rank 2) is lost: rank 2 exited with code 1: b",
        "✖ 2 more replicas lost for other reasons",
    ]


def test_losses_are_told_before_what_became_of_them_and_are_not_held_for_long() -> None:
    said: list[str] = []
    announcer = Announcer(said.append)
    announcer.hear(_loss(3), 7.0)
    announcer.tick(7.1)
    assert said == []
    announcer.tick(7.2)
    assert len(said) == 1

    announcer.hear(_loss(4), 9.0)
    announcer.hear(Record("recovery.done", "", RECOVERED), 9.05)
    announcer.hear(_loss(5), 9.06)
    announcer.hear(Record("run.end", "", {"exit_code": ExitCode.BELOW_MINIMUM}), 9.07)
    assert [line[:11] for line in said[1:]] == ["✖ replica 4", "✓ step 4 co", "✖ replica 5"]
    assert announcer.losses == 3


def test_what_is_only_part_of_a_nodes_account_is_said_by_the_node_that_coordinates() -> None:
    said: list[str] = []
    announcer = Announcer(said.append)
    for record in (_loss(3), Record("recovery.done", "", RECOVERED)):
        announcer.hear(replace(record, fields={**record.fields, "part": True}), 7.0)
    announcer.tick(9.0)
    assert (said, announcer.losses) == ([], 0)


def _as_part(record: Record, **more: Json) -> Record:
    return replace(record, fields={**record.fields, "part": True, **more})


def test_who_takes_over_tells_of_the_losses_before_at_the_end() -> None:
    announcer = Announcer(lambda line: None)
    announcer.hear(_as_part(_loss(3)), 7.0)
    announcer.hear(Record("leader.succeed", "node b coordinates", {"tenure": 2}), 8.0)

    assert announcer.losses == 1


def test_a_loss_that_a_lost_coordinator_may_not_have_told_is_told() -> None:
    said = _said(_as_part(_loss(3, "is gone"), inherited=True), _loss(5, "is gone"))

    assert said == ["✖ replicas 3, 5 (ranks 3, 5) are lost, all alike, the first: rank 3 is gone"]


def test_who_takes_over_names_the_coordinator_that_left_and_how_its_loss_was_made_good() -> None:
    why = "SIGTERM was sent to the launcher on b"
    left = Record("node.lost", f"b: {why}", {"name": "b", "ranks": [3, 4]})
    takeover = Record("leader.succeed", f"node a coordinates: {why}", {"tenure": 2, "former": "b"})
    said: list[str] = []
    announcer = Announcer(said.append)

    for record in (left, _loss(3), Record("recovery.done", "", RECOVERED)):
        announcer.hear(_as_part(record), 7.0)
    assert said == []
    announcer.hear(takeover, 8.0)

    assert said[0] == f"✖ replica 3 (rank 3) is lost: node b is lost: {why}"
    assert [line[:14] for line in said[1:]] == ["✓ step 4 compl", "⇄ node a coord"]


def test_who_takes_over_leaves_to_its_coordinator_what_was_not_made_good() -> None:
    left = Record("node.lost", "b: SIGTERM", {"name": "b", "ranks": [3]})
    takeover = Record("leader.succeed", "node a coordinates", {"tenure": 2, "former": "b"})

    assert _said(_as_part(left), _as_part(_loss(3)), takeover) == ["⇄ node a coordinates"]


def test_who_takes_over_names_no_node_that_left_before() -> None:
    left = Record("node.lost", "c: SIGTERM", {"name": "c", "ranks": [5]})
    takeover = Record("leader.succeed", "node a coordinates", {"tenure": 2, "former": "b"})

    assert _said(_as_part(left), takeover) == ["⇄ node a coordinates"]


def test_a_node_is_named_that_is_lost_while_all_begin_again() -> None:
    lost = Record("node.lost", "b: its launcher has ended", {"name": "b", "ranks": [2]})
    begins = Record("job.restart", "rank 1 was killed", {"attempt": 1, "restarts": 0, "of": 0})
    place = Record("node.join", "node a joins", {"name": "a", "nproc": 1})

    assert _said(lost, begins) == [], "its replica's loss tells of it, or why all begin again"
    assert _said(begins, lost, place, lost) == ["✖ node b (rank 2) is lost: its launcher has ended"]
