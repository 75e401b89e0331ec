"""Nothing reaches the leader, which is still heard: it is replaced, and nobody else goes."""

import pytest

from rendezvous.consensus import campaign, peers
from tests.sim.mutants import Mutant, planted
from tests.sim.views.outcome import Outcome
from tests.sim.views.plan import Fault, Plan
from tests.sim.views.world import World

DEAF_AT = 5.0
SEEDS = range(15)

TALKATIVE = Mutant(
    "talkative: a leader that hears nobody goes on asking", campaign, "Campaign._deaf",
    "return proposer.elected and", "return False and", "", 0,
)  # fmt: skip

RESENTFUL = Mutant(
    "resentful: what a leader did not hear while it was deaf is the others' silence", peers,
    "Peers.excuse_silence", "self.deaf_at = self._now", "pass", "", 0,
)  # fmt: skip


def _deaf(seed: int, for_s: float, *, nodes: int = 3, witness: bool = False) -> Outcome:
    others = tuple(range(1, nodes + witness))
    at_s = DEAF_AT + 0.035 * seed  # anywhere between two beats
    fault = Fault(kind="oneway", at_s=at_s, targets=others, for_s=for_s)
    plan = Plan(
        seed=seed, nodes=nodes, rates=(1.0,) * nodes, chaos_s=at_s + for_s + 0.1, quiet_s=20.0,
        data_apart=True, witness=witness, faults=(fault,),
    )  # fmt: skip
    return World(plan).run()


def _left_out(outcome: Outcome) -> set[str]:
    """Those of the first launchers that some configuration is without."""
    first, *others = outcome.book.configurations.values()
    return {name for name in first.members if any(name not in one.members for one in others)}


@pytest.mark.parametrize("nodes", [3, 5])
def test_a_leader_that_hears_nobody_leaves_out_nobody_and_is_replaced(nodes: int) -> None:
    for seed in SEEDS:
        outcome = _deaf(seed, 30.0, nodes=nodes)

        assert outcome.violation is None
        assert _left_out(outcome) == {"n0.0"}, seed
        second = min(outcome.book.first_steps.keys() - {1})
        assert outcome.book.first_steps[second] - DEAF_AT < 12.0, seed


@pytest.mark.parametrize("for_s", [3.0, 5.0, 5.5, 6.0, 7.0])
def test_where_it_hears_again_before_it_is_replaced_nobody_is_left_out(for_s: float) -> None:
    for seed in SEEDS:
        outcome = _deaf(seed, for_s)

        assert outcome.violation is None
        assert not _left_out(outcome), seed


def test_the_same_holds_where_a_leader_of_two_does_not_hear_their_witness_either() -> None:
    for seed in SEEDS:
        outcome = _deaf(seed, 30.0, nodes=2, witness=True)

        assert outcome.violation is None
        assert _left_out(outcome) == {"n0.0"}, seed


@pytest.mark.parametrize("mutant", [TALKATIVE, RESENTFUL], ids=lambda mutant: mutant.name[:9])
def test_each_rule_is_needed(mutant: Mutant) -> None:
    with planted(mutant):
        left_out = [_left_out(_deaf(seed, 5.5)) for seed in range(40)]

    assert any(left_out)
