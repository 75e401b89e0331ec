"""Planted bugs: rules of the protocol that are broken one at a time, and histories that notice.

Random faults seldom reach the corners of some; for those there are directed `schedules`. All of it
is run with shorter silences (`hasty`).
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

from rendezvous.consensus import (
    campaign,
    configuration,
    electorate,
    etcd_register,
    paxos,
    proposer,
    proved_deaths,
    witness,
)
from tests.sim.mutants import Mutant, planted
from tests.sim.views import bystander
from tests.sim.views.hasty import hasty
from tests.sim.views.outcome import Outcome
from tests.sim.views.plan import Plan, draw, draw_etcd
from tests.sim.views.schedules import SCHEDULES
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
        "len(set(voters).intersection(agreeing)) > 0", "I1", 30,
    ),
    _bug(
        "livequorum: voters that seem dead do not count", electorate, "Electorate.vote",
        "quorum(self.configuration.voters, answers)",
        "2 * len(answers) > len(self.configuration.voters) - 2", "I1", 59,
    ),
    _bug(
        "newonly: the voters of the next configuration decide on it", campaign, "Campaign.run",
        "electorate = launcher.electorate(proposer.base)",
        "electorate = launcher.electorate(proposer.proposal)", "I1", 29,
    ),
    Bug(name="amnesia: a restarted launcher is the old voter", code=None, checker="I1", seed=303),
    _bug(
        "noread: what a voter had accepted is not adopted", proposer, "Proposer.prepared_by",
        "if follows and message.accepted_in > self.found_in:", "if False:", "I1", 332,
    ),
    _bug(
        "maxstep: the furthest step is the source", configuration, "source",
        "(standing[0], standing[1])", "standing[1]", "I5", schedule="ahead",
    ),
    _bug(
        "noprep: new voters are not asked for promises", proposer, "Proposer.rebase",
        "self.prepared.clear()", "self.prepared.update(configuration.voters)", "I1",
        schedule="unasked",
    ),
    _bug(
        "accnobase: a request to accept does not carry the decided configuration", paxos,
        "Register._accept", "self.learn(Configuration(*message.base))", "pass", "I1",
        schedule="forgotten",
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
        "stateless: a newcomer leads before it has any state", etcd_register,
        "LeasedRegister._eligible", "self.settled and ", "", "I5", 266, etcd=True,
    ),
)  # fmt: skip


PROVED = (
    _bug(
        "stale: a member trusts a contact that is a fifth older", proved_deaths,
        "ProvedDeaths.known",
        "since_s <= timeouts.CONTACT_S", "since_s <= 1.2 * timeouts.CONTACT_S", "I6", 89,
    ),
    _bug(
        "forsaken: the last one left goes on, whatever it knows", proved_deaths,
        "ProvedDeaths._survive", "known = self.known or", "known = True or", "I5",
        schedule="forlorn",
    ),
    _bug(
        "stranger: a newcomer is certain before all members know of it", proposer,
        "Proposer.established", "return member not in self.newcomers", "return True", "I6",
        schedule="untold",
    ),
    _bug(
        "selfless: who has accepted to be left out is certain all the same", proved_deaths,
        "ProvedDeaths.known", "if launcher.own not in launcher.voter.acceptor.newest.members:",
        "if False:", "I6", schedule="asleep",
    ),
    _bug(
        "opposed: a leader is certain while any quorum might still follow it", campaign,
        "Campaign.unopposed", "proposer.all_followed_at", "proposer.followed_at", "I6",
        schedule="impatient",
    ),
    _bug(
        "uncertain: survivors decide that may have been left out", proved_deaths,
        "ProvedDeaths.recheck",
        "orphaned and self.known", "orphaned", "I5", schedule="bereft",
    ),
    _bug(
        "hasty: survivors decide before all have answered", electorate, "Electorate.agrees",
        "set(self.left) <= answers", "bool(answers)", "I1", schedule="severed",
    ),
    _bug(
        "noleap: survivors use a number that the dead may have used", campaign, "Campaign._draft",
        "if not voted:", "if False:", "I1", schedule="untold",
    ),
)  # fmt: skip
"""Those of what survivors may do."""


def run(bug: Bug, plan: Plan) -> Outcome:
    with planted(bug.code) if bug.code is not None else nullcontext():
        return run_hasty(plan, amnesia=bug.code is None, certainty=bug.checker == "I6")


def run_hasty(plan: Plan, *, amnesia: bool = False, certainty: bool = True) -> Outcome:
    """The history of `plan` with short silences, in which no finished step makes up for one.

    Without `certainty` nothing is made of what launchers would do that do not have to do it.
    """
    with hasty():
        world = World(replace(plan, moves=False), amnesia=amnesia)
        world.asks_certainty = certainty
        return world.run()


def plans(bug: Bug, seeds: int = 0) -> Iterator[Plan]:
    """The histories to look at: its schedule, or its seed and then the first `seeds`."""
    if bug.schedule:
        yield from SCHEDULES[bug.schedule]()
        return
    drawn = draw_etcd if bug.etcd else draw
    yield drawn(bug.seed)
    for seed in range(seeds):
        yield drawn(seed)
