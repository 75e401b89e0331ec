"""The checkers of the view register. They keep their own books and never ask a machine.

I1 one configuration for each number · I2 an old configuration finishes at most one step after a
newer one has begun · I4 the rest goes
on once the network is whole I5 all members hold the same state, and it lies on the chain of what
was finished before I6 who is certain to be left out of nothing is a member of the newest
"""

from collections import Counter

from rendezvous.consensus.configuration import Configuration, quorum
from rendezvous.protocol.register_messages import Accept, Accepted, Ballot
from tests.sim.violation import demand

Held = tuple[int, str]
"""(next step, digest of all before it): the state of a replica."""


class Book:
    def __init__(self, first: Configuration) -> None:
        self.configurations: dict[int, Configuration] = {first.number: first}
        # Base, configuration.
        self.proposals: dict[tuple[Ballot, int], tuple[Configuration, Configuration]] = {}
        self.accepted: dict[tuple[Ballot, int], set[str]] = {}
        # Steps that a configuration finished after a newer one had begun.
        self.late: Counter[int] = Counter()
        self.states: dict[int, dict[int, str]] = {}  # configuration -> step -> digest before it
        self.finished: dict[int, int] = {}  # configuration -> newest step that it finished
        self.finished_at = 0.0
        self.steps = 0
        self.first_steps: dict[int, float] = {}  # when each configuration finished its first

    @property
    def newest(self) -> Configuration:
        return self.configurations[max(self.configurations)]

    # --------------------------------------------------------------------------- I1

    def decided(self, configuration: Configuration) -> None:
        known = self.configurations.setdefault(configuration.number, configuration)
        demand(known == configuration, "I1", f"{configuration} and {known} are decided")

    def sent(self, sender: str, message: object) -> None:
        """Count the votes as they leave."""
        match message:
            case Accept(ballot=ballot, base=base, configuration=configuration):
                proposal = (Configuration(*base), Configuration(*configuration))
                known = self.proposals.setdefault((ballot, proposal[1].number), proposal)
                demand(known == proposal, "I1", f"{ballot} proposes {proposal} and {known}")
                self._vote(ballot, proposal[1].number, sender)  # its own came before
            case Accepted(ballot=ballot, number=number):
                self._vote(ballot, number, sender)
            case _:
                pass

    def _vote(self, ballot: Ballot, number: int, voter: str) -> None:
        votes = self.accepted.setdefault((ballot, number), set())
        votes.add(voter)
        if (ballot, number) in self.proposals:
            base, configuration = self.proposals[ballot, number]
            if quorum(base.voters, votes):
                self.decided(configuration)

    # --------------------------------------------------------------------------- I6

    def certain(self, node: str) -> None:
        """`node` would go on if all others were dead: it says that it was left out of nothing."""
        without = node not in self.newest.members
        demand(not without, "I6", f"{node} is certain to be in {self.newest}")

    # --------------------------------------------------------------------------- I2, I5

    def began(self, configuration: int, state: Held) -> None:
        """All members of a configuration begin with this state."""
        step, digest = state
        older = [number for number in self.finished if number < configuration]
        if older:
            last = max(older)
            steps = self.finished[last]
            new, old = f"configuration {configuration}", f"configuration {last}"
            where = f"{new} begins at step {step}, {old} had finished {steps}"
            demand(step in (steps, steps + 1), "I5", where)
            known = self.states[last][step]
            demand(digest == known, "I5", f"{new} begins step {step} off the chain")
        self.states.setdefault(configuration, {})[step] = digest

    def contributes(self, configuration: int, node: str, state: Held) -> None:
        known = self.states[configuration].get(state[0])
        where = f"configuration {configuration}"
        demand(known == state[1], "I5", f"{node} has {state} in {where}, others {known}")

    def finishes(self, configuration: int, step: int, after: Held, now: float) -> None:
        self.steps += 1
        self.finished[configuration] = step
        self.states[configuration][after[0]] = after[1]
        self.finished_at = now
        self.first_steps.setdefault(configuration, now)
        if configuration < max(self.states):
            self.late[configuration] += 1
            demand(
                self.late[configuration] <= 1,
                "I2",
                f"configuration {configuration} goes on beside {max(self.states)}",
            )
