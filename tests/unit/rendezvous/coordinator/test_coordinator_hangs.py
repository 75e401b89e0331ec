"""Ranks that hang: the coordinator loses them like others, or ends the job."""

import pytest

from rendezvous.coordinator.coordinator import Tick
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.coordinator.step_decisions import CONTEXTS_WAIT_S
from rendezvous.membership.hang_events import OnHang
from rendezvous.membership.hang_limits import LEAST_S, UNSEEN_S
from rendezvous.membership.standstill import TICK_S
from rendezvous.protocol.effects import Effect, Inspection, KillRanks, StopJob
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.hang_messages import Evidence, Progress, Stack
from rendezvous.protocol.messages import ContextBuffer, Exited, Farewell
from rendezvous.protocol.progress_page import NO_LIMIT_MS, Phase, members
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import View
from tests.unit.coordination import (
    PAIRS,
    THREE,
    Job,
    decisions_of,
    events,
    exit_code,
    fields_of,
    told,
    waits,
)

QUIETS = ("hang.suspect", "hang.clear", "hang.condemn", "hang.stick", "hang.part", "hang.quiet")


class Hanging:
    """A job some of whose ranks stand still; their launchers answer at once."""

    def __init__(
        self,
        replicas: tuple[tuple[int, ...], ...] = THREE,
        minimum: int = 1,
        on_hang: OnHang = "recover",
        hang_limit_s: float = 0.0,
        *,
        begun: bool = True,
    ) -> None:
        policy = RecoveryPolicy(
            min_replicas=minimum, on_hang=on_hang, hang_limit_s=hang_limit_s
        )  # fmt: skip
        self.job = Job(replicas, policy=policy, begun=begun)
        self.world = [rank for replica in replicas for rank in replica]
        self.done: list[Effect] = []
        self.marks: dict[int, Progress] = {}

    def quiet(self, *ranks: int, phase: Phase = Phase.MICROBATCH) -> None:
        for rank in ranks:
            self._told(Progress(
                rank=rank, incarnation=0, serial=4, age_ms=1500, phase=phase, step=3, index=0,
                waits=False,
            ))  # fmt: skip

    def waiting(
        self, *ranks: int, serial: int = 4, what: str = "the vote", channel: int = 1
    ) -> None:
        for rank in ranks:
            self._told(Progress(
                rank=rank, incarnation=0, serial=serial, age_ms=1500, phase=Phase.SETTLE, step=3,
                index=0, waits=True, channel=channel, number=1,
                generation=self.job.machine.generation, limit_ms=NO_LIMIT_MS,
                ranks=members(self.world), what=what,
            ))  # fmt: skip

    def _told(self, mark: Progress) -> None:
        self.marks[mark.rank] = mark
        self.done += self.job.tell(mark)

    def run(self, seconds: float) -> list[Effect]:
        before = len(self.done)
        until = self.job.now + seconds
        while self.job.now < until:
            self.job.now += TICK_S
            effects = self.job.feed(Tick())
            self.done += effects
            for effect in effects:
                if isinstance(effect, Inspection):
                    self._look(effect)
        return self.done[before:]

    def _look(self, inspection: Inspection) -> None:
        inspect = inspection.inspect
        for rank in inspect.ranks:
            self.done += self.job.tell(
                Evidence(
                    rank=rank, incarnation=0, hang=inspect.hang, look=inspect.look,
                    stacks=inspect.stacks, serial=self.marks[rank].serial, state="S", cpu_ms=0,
                    kernel="",
                ),
                Stack(
                    rank=rank, generation=self.job.machine.generation, hang=inspect.hang,
                    look=inspect.look, digest=1, frame=f"train.py:{rank} f", turns=False,
                    within=False,
                ),
            )  # fmt: skip


def kills(effects: list[Effect]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(e.kill.ranks, e.kill.hung) for e in effects if isinstance(e, KillRanks)]


def stops(effects: list[Effect]) -> list[StopJob]:
    return [effect for effect in effects if isinstance(effect, StopJob)]


def test_a_rank_that_hangs_is_lost_with_its_replica_and_named_as_the_one_that_hangs() -> None:
    hanging = Hanging(PAIRS)
    hanging.quiet(3)
    hanging.waiting(0, 1, 4, 5)
    effects = hanging.run(LEAST_S)

    assert kills(effects) == [((2, 3), (3,))]
    lost = fields_of(effects, "replica.lost")
    assert (lost["slot"], lost["root_rank"]) == (1, 3)
    condemned = fields_of(effects, "hang.condemn")
    assert (condemned["rank"], condemned["where"], condemned["proof"]) == (
        3, "at train.py:3 f", "still",
    )  # fmt: skip
    (view, *_) = told(effects, View).values()
    assert isinstance(view, View) and view.live == (0, 2) and view.losses == (3,)
    assert not stops(effects)


@pytest.mark.parametrize("left", [False, True])
def test_all_that_is_missing_is_suspect_until_it_is_known_what_it_hung_in(left: bool) -> None:
    hanging = Hanging()
    hanging.quiet(1)
    hanging.waiting(0, 2)
    hanging.run(LEAST_S)
    job = hanging.job
    if left:
        begun = ((1, 7, 0, 0, 0),)
        job.tell(ContextBuffer(rank=1, incarnation=0, contexts=(), begun=begun, by_itself=True))
        job.end(1)
    effects = job.tell(waits(0, (0, 0), generation=2), waits(2, (2, 0), generation=2))
    job.now += CONTEXTS_WAIT_S
    decisions = decisions_of([*effects, *job.feed(Tick())])

    suspects = () if left else ((1, 0),)
    assert [decision.suspects for decision in decisions.values()] == [suspects] * 2


def test_its_end_is_no_second_loss() -> None:
    hanging = Hanging()
    hanging.quiet(1)
    hanging.waiting(0, 2)
    hanging.run(LEAST_S)

    assert "replica.lost" not in events(hanging.job.end(1))


def test_two_that_hang_at_once_are_lost_in_one_generation() -> None:
    hanging = Hanging(((0,), (1,), (2,), (3,)))
    hanging.quiet(1, 3)
    hanging.waiting(0, 2)
    effects = hanging.run(LEAST_S)

    assert kills(effects) == [((1,), (1,)), ((3,), (3,))]
    assert events(effects).count("view.change") == 1
    assert hanging.job.machine.members.live == (0, 2)


@pytest.mark.parametrize("minimum", [2, 3])
def test_below_the_minimum_the_job_ends_with_82(minimum: int) -> None:
    hanging = Hanging(minimum=minimum)
    hanging.quiet(0, 1)
    hanging.waiting(2)
    effects = hanging.run(LEAST_S)

    assert exit_code(effects) == ExitCode.HANG
    assert "rank 0 hangs, at train.py:0 f" in stops(effects)[0].stop.reason


def test_one_that_hangs_as_another_is_lost_is_lost_too() -> None:
    hanging = Hanging()
    hanging.job.end(0)
    hanging.job.tell(waits(2))
    hanging.quiet(1)
    hanging.waiting(2)
    effects = hanging.run(LEAST_S + 1.0)

    assert kills(effects) == [((1,), (1,))]
    assert hanging.job.machine.members.live == (2,)


def test_a_stuck_operation_begins_a_generation_with_the_same_members() -> None:
    hanging = Hanging()
    hanging.waiting(0, 1, 2)
    effects = hanging.run(LEAST_S + 1.0)

    assert "hang.stick" in events(effects) and "view.change" in events(effects)
    assert hanging.job.machine.generation == 2
    assert hanging.job.machine.members.live == (0, 1, 2)
    assert not stops(effects)


def test_one_that_stays_stuck_ends_the_job_with_82() -> None:
    hanging = Hanging()
    for serial, seconds in ((4, LEAST_S + 1.0), (5, 3 * LEAST_S + 1.0), (6, UNSEEN_S + 1.0)):
        hanging.waiting(0, 1, 2, serial=serial)  # all have joined again
        effects = hanging.run(seconds)

    assert exit_code(effects) == ExitCode.HANG
    assert hanging.job.machine.generation == 3


def test_ranks_that_have_parted_end_the_job_with_93_and_both_places() -> None:
    hanging = Hanging()
    hanging.waiting(0, 1)
    hanging.waiting(2, what="a barrier", channel=7)
    effects = hanging.run(LEAST_S + 1.0)

    assert exit_code(effects) == ExitCode.DO_NOT_REQUEUE
    reason = stops(effects)[0].stop.reason
    assert "rank 0 in the vote (at train.py:0 f)" in reason
    assert "rank 2 in a barrier (at train.py:2 f)" in reason


def test_one_that_came_back_and_parts_from_the_others_is_lost_and_nobody_else_comes() -> None:
    hanging = Hanging()
    hanging.job.machine.members.births[2] = 1
    hanging.waiting(0, 1)
    hanging.waiting(2, what="a barrier", channel=7)
    effects = hanging.run(LEAST_S + 1.0)

    assert not stops(effects) and kills(effects)[0] == ((2,), (2,))
    (lost,) = (e for e in effects if isinstance(e, Record) and e.event == "replica.lost")
    assert "rank 2 has come back and is elsewhere in the script" in lost.reason
    assert hanging.job.machine.members.live == (0, 1)
    assert not hanging.job.machine.arrivals.serves
    assert "notice.give" in events(effects)


def test_if_they_are_only_to_be_named_nobody_is_ended() -> None:
    for others in ("quiet", "stuck", "parted"):
        hanging = Hanging(on_hang="tell")
        hanging.waiting(0, 1)
        if others == "quiet":
            hanging.quiet(2)
        else:
            hanging.waiting(2, channel=1 if others == "stuck" else 2)
        effects = hanging.run(4 * UNSEEN_S)

        named = [name for name in events(effects) if name in QUIETS]
        assert named, others
        assert not kills(effects) and not stops(effects), others
        assert hanging.job.machine.generation == 1, others
        assert len(named) <= 4, f"{others}: nobody reads the same line for ever"


def test_what_is_only_told_of_does_not_say_that_anything_is_done() -> None:
    hanging = Hanging(on_hang="tell")
    hanging.waiting(0, 1, 2)
    effects = hanging.run(4 * UNSEEN_S)

    records = [effect for effect in effects if isinstance(effect, Record)]
    reasons = [record.reason for record in records if record.event == "hang.stick"]
    assert reasons and not any("anew" in words or "stops" in words for words in reasons)


def test_if_nobody_looks_nothing_is_said_and_no_time_is_asked_for() -> None:
    hanging = Hanging(on_hang="off")
    hanging.quiet(1)
    hanging.waiting(0, 2)
    effects = hanging.run(10 * LEAST_S)

    assert not [name for name in events(effects) if name in QUIETS]
    assert hanging.job.machine.deadline() is None


def test_before_recovery_can_begin_a_rank_is_only_named() -> None:
    hanging = Hanging(begun=False)
    hanging.quiet(1)
    hanging.waiting(0, 2)
    effects = hanging.run(4 * LEAST_S)

    assert "hang.suspect" in events(effects)
    assert not kills(effects) and not stops(effects)


def test_quiet_beyond_the_users_limit_ends_the_job_with_82() -> None:
    hanging = Hanging(hang_limit_s=20.0)
    hanging.quiet(0, 1, 2, phase=Phase.BETWEEN)
    effects = hanging.run(25.0)

    assert exit_code(effects) == ExitCode.HANG
    assert "no rank has moved for 2" in stops(effects)[0].stop.reason


def test_without_a_limit_quiet_is_only_told_of() -> None:
    hanging = Hanging()
    hanging.quiet(0, 1, 2, phase=Phase.BETWEEN)
    effects = hanging.run(10 * UNSEEN_S)

    assert events(effects).count("hang.quiet") == 1
    assert not stops(effects)


def test_a_rank_whose_script_has_ended_is_not_waited_for() -> None:
    hanging = Hanging()
    hanging.quiet(1)
    hanging.job.tell(Farewell(rank=1, generation=1, step=3))
    hanging.waiting(0, 2)
    effects = hanging.run(LEAST_S)

    assert not kills(effects)


@pytest.mark.parametrize("on_hang", ["recover", "off"])
def test_who_ended_well_without_a_word_is_lost_as_soon_as_somebody_waits_for_it(
    on_hang: OnHang,
) -> None:
    """A child of its own may hold its sockets, so that nobody sees them close."""
    hanging = Hanging(on_hang=on_hang)
    hanging.job.tell(
        Exited(rank=1, incarnation=0, node="a", code=0, ours=False, error="", detected_s=0.0)
    )
    assert hanging.job.machine.generation == 1

    hanging.waiting(0)
    hanging.waiting(2)
    again = hanging.job.tell(*(waits(rank, step=3) for rank in (0, 2)))

    assert hanging.job.machine.generation == 3
    assert "replica.lost" in events(again) and "hang.stick" not in events(hanging.done + again)


def test_who_ended_well_with_a_word_is_not_lost_for_who_waits() -> None:
    hanging = Hanging()
    hanging.job.tell(Farewell(rank=1, generation=1, step=3))
    hanging.job.tell(
        Exited(rank=1, incarnation=0, node="a", code=0, ours=False, error="", detected_s=0.0)
    )

    hanging.waiting(0)

    assert hanging.job.machine.generation == 1
