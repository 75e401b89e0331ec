"""The console's lines about losses."""

from recoverrun.launcher.output.announcements import announcement
from rendezvous.protocol.effects import Record

RECOVERED = {
    "redone": [[1, 0], [1, 1]],
    "total_ms": 157.9,
    "agree_ms": 38.7,
    "rebuild_ms": 7.6,
    "redo_ms": 115.4,
    "reduce_ms": 0.1,
    "vote_ms": 0.9,
}


def test_a_loss_names_the_replica_its_ranks_and_the_cause() -> None:
    record = Record("replica.lost", "rank 3 was ended by signal 9", {"slot": 1, "ranks": [2, 3]})

    assert announcement(record) == "✖ replica 1 (ranks 2, 3) is lost: rank 3 was killed by SIGKILL"


def test_a_recovery_says_what_was_redone_and_where_the_time_went() -> None:
    record = Record("recovery.done", "step 4 is committed without replica 1", RECOVERED)

    assert announcement(record) == (
        "⇄ step 4 is committed without replica 1 ✓ 2 microbatches redone, 158 ms in all "
        "(agree 39 · rebuild 8 · redo 115 · reduce 0 · vote 1)"
    )


def test_a_plain_terminal_gets_plain_signs() -> None:
    record = Record("replica.lost", "rank 3 was ended by signal 9", {"slot": 1, "ranks": [2, 3]})

    assert announcement(record, ascii_only=True).isascii()


def test_what_only_the_journal_needs_stays_there() -> None:
    assert announcement(Record("worker.spawn", "rank 0", {"rank": 0})) == ""


def test_words_of_a_worker_cannot_move_the_cursor() -> None:
    record = Record("notice.give", "\x1b[2Jgone", {"rank": 0})

    assert "\x1b" not in announcement(record)
