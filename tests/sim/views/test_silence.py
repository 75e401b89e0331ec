"""Two launchers, one of them silent: who goes on, by which rule, and what that may cost."""

import pytest

from rendezvous.consensus.register_events import OnSilence
from rendezvous.consensus.timeouts import LEAP
from tests.sim.views.outcome import Outcome
from tests.sim.views.plan import Fault, Plan
from tests.sim.views.world import World


def _history(
    fault: Fault, on_silence: OnSilence, seed: int = 0, *others: Fault, witness: bool = False
) -> Outcome:
    plan = Plan(
        seed=seed, nodes=2, rates=(1.0, 1.0), chaos_s=fault.at_s + fault.for_s + 0.1, quiet_s=30.0,
        data_apart=True, on_silence=on_silence, witness=witness,
        faults=(fault, *others),
    )  # fmt: skip
    return World(plan).run()


def _silent(target: int) -> Fault:
    return Fault(kind="crash", at_s=5.0, targets=(target,))


@pytest.mark.parametrize("on_silence", ["stop", "continue"])
def test_the_voter_goes_on_without_the_other_one(on_silence: OnSilence) -> None:
    outcome = _history(_silent(1), on_silence)

    assert outcome.violation is None
    assert outcome.book.newest.members == ("n0.0",)
    assert outcome.coverage["cut off"] == 0
    assert outcome.book.finished_at > 30.0


def test_without_the_voter_the_other_one_stops() -> None:
    outcome = _history(_silent(0), "stop")

    assert outcome.violation is None
    assert outcome.coverage["cut off"] == 1
    assert outcome.book.finished_at < 6.0


@pytest.mark.parametrize("seed", range(20))
def test_with_continue_it_goes_on_and_nothing_is_lost_if_the_voter_was_dead(seed: int) -> None:
    outcome = _history(_silent(0), "continue", seed)

    assert outcome.violation is None
    assert outcome.book.newest.members == ("n1.0",)
    assert outcome.book.newest.number > LEAP
    assert outcome.book.finished_at > 30.0


@pytest.mark.parametrize(
    ("asleep_s", "checker"),
    [(0.0, "I5"), (12.0, "I2")],
    ids=["the newer one begins off the chain", "the older one goes on beside the newer"],
)
def test_with_continue_both_sides_of_a_partition_train_which_is_why_it_is_not_the_default(
    asleep_s: float, checker: str
) -> None:
    cut = Fault(kind="cut", at_s=5.0, targets=(0,), for_s=20.0)
    asleep = Fault(kind="pause", at_s=5.0, targets=(0,), for_s=asleep_s)

    assert _history(cut, "stop", 0, asleep).violation is None
    unsafe = _history(cut, "continue", 0, asleep).violation
    assert unsafe is not None
    assert unsafe.checker == checker


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("target", [0, 1])
def test_with_a_witness_either_one_goes_on_without_the_other(target: int, seed: int) -> None:
    outcome = _history(_silent(target), "stop", seed, witness=True)

    assert outcome.violation is None
    assert outcome.book.newest.members == (f"n{1 - target}.0",)
    assert outcome.coverage["cut off"] == 0
    assert outcome.book.finished_at > 30.0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("what", ["launchers", ""])
def test_with_a_witness_one_side_of_a_partition_goes_on_and_the_other_learns_it(
    what: str, seed: int
) -> None:
    cut = Fault(kind="cut", at_s=5.0, targets=(0,), for_s=20.0, what=what)

    outcome = _history(cut, "stop", seed, witness=True)

    assert outcome.violation is None
    sides = {
        configuration.members
        for configuration in outcome.book.configurations.values()
        if len(configuration.members) == 1
    }
    assert sides == {("n0.0",)} if what else {("n1.0",)}
    assert outcome.coverage["left out"] + outcome.coverage["cut off"] >= 1


def test_without_its_witness_a_pair_falls_back_to_one_vote() -> None:
    gone = Fault(kind="crash", at_s=5.0, targets=(2,))
    silent = Fault(kind="crash", at_s=15.0, targets=(1,))
    plan = Plan(
        seed=1, nodes=2, rates=(1.0, 1.0), chaos_s=16.0, quiet_s=20.0, witness=True,
        faults=(gone, silent),
    )  # fmt: skip

    outcome = World(plan).run()

    assert outcome.violation is None
    assert [configuration.witness for configuration in outcome.book.configurations.values()][
        -1
    ] == ""
    assert outcome.book.newest.members == ("n0.0",)
    assert outcome.book.finished_at > 30.0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("etcd", [False, True])
def test_nobody_goes_while_the_data_plane_moves_without_the_control_plane(
    nodes: int, target: int, seed: int, etcd: bool
) -> None:
    cut = Fault(kind="cut", at_s=5.0, targets=(target,), for_s=40.0, what="launchers")
    plan = Plan(
        seed=seed, nodes=nodes, rates=(1.0,) * nodes, chaos_s=46.0, data_apart=True, moves=True,
        etcd=etcd, faults=(cut,),
    )  # fmt: skip

    outcome = World(plan).run()

    assert outcome.violation is None
    assert len(outcome.book.newest.members) == nodes
    assert not outcome.coverage["cut off"] and not outcome.coverage["left out"]


@pytest.mark.parametrize("target", [0, 1])
def test_a_loss_in_that_time_is_still_seen(target: int) -> None:
    cut = Fault(kind="cut", at_s=5.0, targets=(target,), for_s=40.0, what="launchers")
    crash = Fault(kind="crash", at_s=25.0, targets=(target,))
    plan = Plan(
        seed=1, nodes=3, rates=(1.0,) * 3, chaos_s=46.0, data_apart=True, moves=True,
        faults=(cut, crash),
    )  # fmt: skip

    book = World(plan).run().book

    (last,) = [c for c in book.configurations.values() if len(c.members) == 2]
    assert 25.0 < book.first_steps[last.number] < 25.0 + 9.5
