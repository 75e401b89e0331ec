"""Planted bugs: rules of the protocol that are broken one at a time, and histories that notice.

Random faults seldom reach the corners of some; for those there are directed schedules.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from rendezvous.consensus import (
    campaign,
    configuration,
    etcd_register,
    leases,
    paxos,
    proposer,
    witness,
)
from tests.sim.mutants import Mutant, planted
from tests.sim.views import bystander
from tests.sim.views.outcome import Outcome
from tests.sim.views.plan import Fault, Plan, draw, draw_etcd
from tests.sim.views.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """`code` is planted, or a restart keeps the name; `checker` notices it, first in `seed`."""

    name: str
    code: Mutant | None
    checker: str
    seed: int = -1
    schedule: str = ""
    etcd: bool = False  # a seed of histories with etcd


def _bug(
    name: str,
    module: object,
    path: str,
    old: str,
    new: str,
    checker: str,
    seed: int = -1,
    schedule: str = "",
    etcd: bool = False,
) -> Bug:
    code = Mutant(name, module, path, old, new, checker, seed)  # type: ignore[arg-type]
    return Bug(name=name, code=code, checker=checker, seed=seed, schedule=schedule, etcd=etcd)


BUGS = (
    _bug(
        "standby: one voter is a quorum", configuration, "quorum",
        "2 * len(set(voters).intersection(agreeing)) > len(voters)",
        "len(set(voters).intersection(agreeing)) > 0", "I1", 29,
    ),
    _bug(
        "livequorum: voters that seem dead do not count", proposer, "Proposer.ready",
        "quorum(self.base.voters, self.prepared)",
        "2 * len(self.prepared) > len(self.base.voters) - 2", "I1", 109,
    ),
    _bug(
        "newonly: the voters of the next configuration decide on it", campaign, "Campaign.run",
        "quorum(proposer.base.voters, proposer.accepted)",
        "quorum(proposer.proposal.voters, proposer.accepted)", "I1", 7,
    ),
    _bug(
        "nofence: effects without a lease", paxos, "Register.may_commit",
        "self.own in self.configuration.members and now < self.member_lease.until",
        "self.own in self.configuration.members", "I3", 3,
    ),
    Bug(name="amnesia: a restarted launcher is the old voter", code=None, checker="I1", seed=240),
    _bug(
        "noread: what a voter had accepted is not adopted", proposer, "Proposer.prepared_by",
        "if follows and message.accepted_in > self.found_in:", "if False:", "I1", 15,
    ),
    _bug(
        "maxstep: the furthest step is the source", configuration, "source",
        "(standing[0], standing[1])", "standing[1]", "I5", schedule="ahead",
    ),
    _bug(
        "noprep: new voters are not asked for promises", proposer, "Proposer.rebase",
        "self.prepared.clear()", "self.prepared.update(configuration.voters)", "I1", 1487,
    ),
    _bug(
        "accnobase: a request to accept does not carry the decided configuration", paxos,
        "Register._accept", "self.learn(Configuration(*message.base))", "pass", "I1",
        schedule="forgotten",
    ),
    _bug(
        "rxclock: a member lease counts from the answer's arrival", paxos, "Register._pong",
        "self.member_lease.answer(message)",
        "self.member_lease.answer(message)\n"
        "    self.member_lease.until = self.now + message.open_s * (1 - timeouts.MARGIN)",
        "I3", schedule="belated",
    ),
    _bug(
        "noselffence: a voter contributes to a configuration that it has voted to replace", paxos,
        "Register.fenced", "return self.vote.accepted is not None", "return False", "I2",
        schedule="unheard",
    ),
    _bug(
        "nowait: a member lease begins before older ones have lapsed", leases, "MemberLeases.lend",
        "changing or old or now < self.closed_until", "changing", "I3", schedule="lent",
    ),
    _bug(
        "nomargin: clocks are believed to run alike", leases, "MemberLease.answer",
        "message.open_s * (1 - timeouts.MARGIN)", "message.open_s", "I3", schedule="drift",
    ),
)  # fmt: skip


WITNESSED = (
    _bug(
        "forgetful: a witness answers two proposers", witness, "Witness.hear",
        "self.vote.accept(message)",
        "(self.vote.accept(message), setattr(self.vote, 'accepted', None))[0]", "I1",
        schedule="asleep",
    ),
    _bug(
        "pliant: a witness accepts less than it has promised", witness, "Witness._decline",
        "if self.vote.refuses(ballot):", "if False:", "I1", schedule="asleep",
    ),
    _bug(
        "reborn: a witness that has lost its memory comes back under its name", bystander,
        "Bystander.begin_anew", "self.name, self.alive = name, True", "self.alive = True", "I1",
        schedule="reborn",
    ),
)  # fmt: skip
"""Those of a vote that is no launcher's."""


IN_ETCD = (
    _bug(
        "unfenced: the maker of a proposal goes on contributing", etcd_register,
        "LeasedRegister.fenced",
        "self.proposal is not None and self.proposal.number > self.configuration.number", "False",
        "I2", 4, etcd=True,
    ),
    _bug(
        "heirless: a new leader does not wait for the member leases of the last one", etcd_register,
        "LeasedRegister._take_lead", "self.member_leases.inherit(self.now, TTL_S)", "pass", "I3",
        577, etcd=True,
    ),
    _bug(
        "stateless: a newcomer leads before it has any state", etcd_register,
        "LeasedRegister._eligible", "self.settled and ", "", "I5", 266, etcd=True,
    ),
)  # fmt: skip


def asleep(again: float = 0.0) -> Iterator[Plan]:
    """The leader of two stands still, behind a broken link; awake, it asks the witness too late.

    `again`: by then another witness is there, so many seconds after the first one died.
    """
    for number in range(30):
        faults = [
            Fault(kind="cut", at_s=5.0, targets=(0,), for_s=12.0, what="launchers"),
            Fault(kind="pause", at_s=5.0, targets=(0,), for_s=4.0 + 0.1 * number),
            # The witness knows what it has said itself, and not what came of that.
            Fault(kind="drop", at_s=5.0, targets=(1,), what="NewConfiguration", count=500),
        ]
        if again:
            at_s = 8.5 + 0.1 * number
            faults.append(Fault(kind="crash", at_s=at_s, targets=(2,), back_s=again))
        yield Plan(
            seed=number, nodes=2, rates=(1.0, 1.0), chaos_s=18.0, data_apart=True, witness=True,
            faults=tuple(faults),
        )  # fmt: skip


def reborn() -> Iterator[Plan]:
    yield from asleep(again=0.3)


def unheard() -> Iterator[Plan]:
    """A configuration is decided and its leader never hears that: the votes are lost."""
    for place in (1, 2):
        yield Plan(
            seed=place, nodes=4, rates=(1.0,) * 4, chaos_s=12.0, data_apart=True,
            faults=(
                Fault(kind="drop", at_s=4.0, targets=(1, 2), what="Accepted", count=50),
                Fault(kind="cut", at_s=5.0, targets=(3,), for_s=6.0),
            ),
        )  # fmt: skip


def lent() -> Iterator[Plan]:
    """A member is cut off just after it was granted a lease, and the rest goes on without it."""
    for number in range(100):
        yield Plan(
            seed=number, nodes=4, rates=(1.0, 1.0, 1.0, 0.99), chaos_s=12.0, act_s=0.02,
            faults=(Fault(kind="cut", at_s=5.0 + 0.01 * number, targets=(3,), for_s=8.0),),
        )  # fmt: skip


def drift() -> Iterator[Plan]:
    """A member that is cut off holds a lease by a slow clock, while the others admit a newcomer."""
    for number in range(25):
        yield Plan(
            seed=number, nodes=5, rates=(1.01, 1.0, 1.0, 0.99, 1.0), delay_s=0.0005, chaos_s=12.0,
            act_s=0.004,
            faults=(
                Fault(kind="crash", at_s=1.0, targets=(4,), back_s=5.0),
                # Whoever was paused beats from then on in a phase of its own.
                Fault(kind="pause", at_s=3.0, targets=(1,), for_s=0.5 + 0.02 * number),
                Fault(kind="pause", at_s=3.0, targets=(2,), for_s=0.65 + 0.04 * number),
                Fault(kind="cut", at_s=5.5, targets=(3,), for_s=6.0),
            ),
        )  # fmt: skip


def forgotten() -> Iterator[Plan]:
    """Two configurations are decided; the voters hear nothing but the requests to accept them."""
    for number in range(20):
        yield Plan(
            seed=number, nodes=4, rates=(1.0,) * 4, chaos_s=14.0,
            faults=(
                Fault(kind="drop", at_s=3.5, targets=(0,), what="NewConfiguration", count=500),
                Fault(kind="crash", at_s=4.0, targets=(3,), back_s=2.5),
                Fault(kind="crash", at_s=6.7 + 0.05 * number, targets=(0,), proved=True),
            ),
        )  # fmt: skip


def ahead() -> Iterator[Plan]:
    """Who is left out has finished a step that the others have not, and soon comes back."""
    for number in range(150):
        yield Plan(
            seed=number, nodes=3, rates=(1.0,) * 3, work_s=0.8, chaos_s=12.0, data_apart=True,
            faults=(Fault(kind="cut", at_s=5.0, targets=(2,), for_s=3.0 + 0.02 * number),),
        )  # fmt: skip


def belated() -> Iterator[Plan]:
    """A member stands still while its answer is on the way, and is cut off when it wakes."""
    for number in range(25):
        at_s = 5.0 + 0.02 * number
        yield Plan(
            seed=number, nodes=4, rates=(1.0,) * 4, delay_s=0.05, chaos_s=14.0, act_s=0.02,
            faults=(
                Fault(kind="pause", at_s=at_s, targets=(3,), for_s=3.0),
                Fault(kind="cut", at_s=at_s + 0.2, targets=(3,), for_s=7.0),
            ),
        )  # fmt: skip


SCHEDULES = {
    "unheard": unheard, "lent": lent, "drift": drift, "forgotten": forgotten, "ahead": ahead,
    "belated": belated, "asleep": asleep, "reborn": reborn,
}  # fmt: skip


def run(bug: Bug, plan: Plan) -> Outcome:
    with planted(bug.code) if bug.code is not None else nullcontext():
        return World(plan, amnesia=bug.code is None).run()


def plans(bug: Bug, seeds: int = 0) -> Iterator[Plan]:
    """Where to look for it: its schedule, or its seed and then the first `seeds`."""
    if bug.schedule:
        yield from SCHEDULES[bug.schedule]()
        return
    drawn = draw_etcd if bug.etcd else draw
    yield drawn(bug.seed)
    for seed in range(seeds):
        yield drawn(seed)
