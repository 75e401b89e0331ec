"""Replicas that hold other parameters than most others leave; without a majority the job stops."""

from dataclasses import replace

from rendezvous.coordinator.coordinator import Coordinator
from rendezvous.coordinator.digests import compared
from rendezvous.protocol.effects import Effect, KillRanks
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.views import View
from tests.unit.coordination import PAIRS, THREE, Job, applied, events, exit_code, fields_of, told

LAYOUT = Layout(PAIRS)


def _say(job: Job, digests: str, step: int = 1) -> list[Effect]:
    """Each rank has committed `step` with its letter of `digests`."""
    effects = []
    for rank, digest in enumerate(digests):
        one = replace(applied(rank, generation=job.machine.generation, step=step), digest=digest)
        effects += job.tell(one)
    return effects


def _vote(job: Job) -> None:
    """A first step: from then on losses are survived."""
    _say(job, "x" * len(job.machine.members.world), step=1)


def test_each_shard_position_that_differs_has_a_record_of_its_own() -> None:
    digests = dict(enumerate("abXbaY"))

    first, second = compared(4, digests, LAYOUT)

    assert (first.fields["ranks"], first.fields["outvoted"]) == ([2], True)
    assert (second.fields["ranks"], second.fields["outvoted"]) == ([5], True)


def test_half_of_a_shard_position_outvotes_nobody() -> None:
    (record,) = compared(4, dict(enumerate("abXbXbab")), Layout((*PAIRS, (6, 7))))

    assert (record.fields["ranks"], record.fields["outvoted"]) == ([0, 2, 4, 6], False)


def test_the_odd_one_of_three_leaves_and_its_loss_says_why() -> None:
    job = Job(THREE)
    _vote(job)

    effects = _say(job, "aba", step=2)

    assert events(effects).count("replica.lost") == 1
    (loss,) = [fields_of(effects, "replica.lost")]
    assert loss["root_rank"] == 1
    (kill,) = [effect.kill for effect in effects if isinstance(effect, KillRanks)]
    assert kill.ranks == (1,)
    assert set(told(effects, View)) == {0, 2}
    lost = job.machine.losses[1]
    assert lost.reason == "rank 1: its parameters differ from the others' (step 2)"
    assert job.machine.stopped is None


def test_its_whole_replica_goes_and_what_it_had_said_later_is_not_held_against_others() -> None:
    job = Job(PAIRS)
    _vote(job)
    _say(job, "abaBab", step=2)
    assert job.machine.members.live == (0, 2)

    effects = job.tell(
        *(replace(applied(rank, generation=2, step=3), digest="c") for rank in (0, 1, 3, 4, 5))
    )

    assert events(effects).count("digest.agree") == 1
    assert job.machine.stopped is None


def test_without_a_majority_the_job_stops() -> None:
    job = Job(((0,), (1,)))
    _vote(job)

    assert exit_code(_say(job, "ab", step=2)) == ExitCode.INVARIANT


def test_below_the_minimum_it_stops_with_the_code_of_that() -> None:
    job = Job(THREE, minimum=3)
    _vote(job)

    assert exit_code(_say(job, "aba", step=2)) == ExitCode.BELOW_MINIMUM


def test_who_differs_before_losses_are_survived_stops_the_job() -> None:
    job = Job(THREE, begun=False)
    assert isinstance(job.machine, Coordinator) and not job.machine.protected

    assert exit_code(_say(job, "aba", step=0)) == ExitCode.INVARIANT
