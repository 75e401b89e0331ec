"""The words about hangs: sentences for people, and fields that the journal's table names."""

from dataclasses import replace

import pytest

from rendezvous.coordinator.hang_watch import NAMED, PHASES, HangWatch, sentence
from rendezvous.coordinator.hang_watch import _record as record
from rendezvous.coordinator.members import Membership
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.journal.events import EVENTS
from rendezvous.membership.hang_events import (
    AllQuiet,
    Cleared,
    Condemned,
    Parted,
    Stuck,
    Suspected,
    Tick,
)
from rendezvous.protocol.hang_messages import Progress
from rendezvous.protocol.progress_page import Phase

CONDEMNED = Condemned(
    hang=1, rank=3, lag_s=5.21, phase=Phase.DATA, step=12, what="the vote",
    words="at train.py:131 load_batch", proof="still",
)  # fmt: skip
SUSPECTED = Suspected(
    hang=1, rank=3, waiting=(0, 1), lag_s=5.0, phase=Phase.DATA, step=12, words="", limit_s=5.0
)
CLEARED = Cleared(hang=1, rank=3, lag_s=7.0, phase=Phase.DATA)
STUCK = Stuck(what="the vote", lag_s=5.0, meet=True)
PARTED = Parted(
    hang=1, places=((0, "the vote", "a.py:1"), (1, "the vote", "a.py:1"), (2, "x", "")), lag_s=5.0
)
QUIET = AllQuiet(hang=1, quiet_s=61.2, phase=Phase.BETWEEN, step=9, words="at e.py:4 f", over=False)


@pytest.mark.parametrize("found", [CONDEMNED, SUSPECTED, CLEARED, STUCK, PARTED, QUIET])
def test_a_record_has_the_fields_that_the_table_names(
    found: Suspected | Cleared | Condemned | Stuck | Parted | AllQuiet,
) -> None:
    made = record(found)

    event = EVENTS[made.event]
    assert set(event.required) <= set(made.fields) <= {*event.required, *event.optional}
    assert made.reason == sentence(found)


def test_every_phase_has_words() -> None:
    assert PHASES.keys() == set(Phase)


def test_one_that_is_proved_to_hang_is_said_to_hang_and_others_are_late() -> None:
    assert sentence(CONDEMNED) == (
        "rank 3 hangs, at train.py:131 load_batch (step 12, fetching data): "
        "others waited 5.2 s for it in the vote"
    )
    late = Condemned(
        hang=1, rank=3, lag_s=50.0, phase=Phase.DATA, step=12, what="the vote", words="",
        proof="none",
    )  # fmt: skip
    assert sentence(late).startswith("rank 3 is late (step 12")


def test_places_are_said_once_for_all_ranks_that_are_there() -> None:
    assert sentence(PARTED).endswith("ranks 0, 1 in the vote (a.py:1); rank 2 in x")


def test_before_any_script_has_come_to_its_training_no_step_is_named() -> None:
    starting = replace(QUIET, phase=Phase.FIRST, step=0, started=False)

    assert sentence(starting) == "no rank has reached its training loop for 61 s (at e.py:4 f)"


def test_of_many_ranks_the_number_is_said() -> None:
    many = Suspected(
        hang=1, rank=3, waiting=tuple(range(NAMED + 1)), lag_s=5.0, phase=Phase.DATA, step=1,
        words="", limit_s=5.0,
    )  # fmt: skip

    assert f"has kept {NAMED + 1} ranks waiting" in sentence(many)


def test_if_nobody_is_to_look_messages_are_not_heard() -> None:
    watch = HangWatch(RecoveryPolicy(on_hang="off"))
    members = Membership(world=(0, 1), live_ranks={0, 1})
    mark = Progress(
        rank=0, incarnation=0, serial=1, age_ms=9000, phase=1, step=1, index=0, waits=False
    )

    for event in (mark, Tick()):
        verdict = watch.step(event, members, protected=True, now=100.0)
        assert not verdict.effects and not verdict.losses and verdict.stop is None
    assert watch.deadline() is None
