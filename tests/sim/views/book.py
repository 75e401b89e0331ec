"""The checkers of the view register. They keep their own books and never ask a machine.

I1 one roll for each number · I2 an old roll finishes at most one step after a newer one is decided
I3 external effects never go back to an older roll · I4 the rest goes on once the network is whole
I5 all members hold the same state, and it lies on the chain of what was finished before
"""

from collections import Counter

from rendezvous.consensus.configuration import Roll, quorum
from rendezvous.protocol.register_messages import Accept, Accepted, Ballot
from tests.sim.book import demand

Held = tuple[int, str]
"""(next step, digest of all before it): the state of a replica."""


class Book:
    def __init__(self, first: Roll) -> None:
        self.rolls: dict[int, Roll] = {first.number: first}
        self.proposals: dict[tuple[Ballot, int], tuple[Roll, Roll]] = {}  # base, roll
        self.accepted: dict[tuple[Ballot, int], set[str]] = {}
        self.late: Counter[int] = Counter()  # steps that a roll finished after it was replaced
        self.states: dict[int, dict[int, str]] = {}  # roll -> step -> digest before it
        self.finished: dict[int, int] = {}  # roll -> newest step that it finished
        self.finished_at = 0.0
        self.newest_effect = 0  # roll of the newest external effect
        self.effects = 0
        self.steps = 0
        self.first_steps: dict[int, float] = {}  # when each roll finished its first
        self.first_effects: dict[int, float] = {}

    @property
    def newest(self) -> Roll:
        return self.rolls[max(self.rolls)]

    # --------------------------------------------------------------------------- I1

    def decided(self, roll: Roll) -> None:
        known = self.rolls.setdefault(roll.number, roll)
        demand(known == roll, "I1", f"{roll} and {known} are decided")

    def sent(self, sender: str, message: object) -> None:
        """Count the votes as they leave."""
        match message:
            case Accept(ballot=ballot, base=base, roll=roll):
                proposal = (Roll(*base), Roll(*roll))
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
            base, roll = self.proposals[ballot, number]
            if quorum(base.voters, votes):
                self.decided(roll)

    # --------------------------------------------------------------------------- I2, I5

    def began(self, roll: int, state: Held) -> None:
        """All members of a roll begin with this state."""
        step, digest = state
        older = [number for number in self.finished if number < roll]
        if older:
            last = max(older)
            steps = self.finished[last]
            where = f"roll {roll} begins at step {step}, roll {last} had finished {steps}"
            demand(step in (steps, steps + 1), "I5", where)
            known = self.states[last][step]
            demand(digest == known, "I5", f"roll {roll} begins step {step} off the chain")
        self.states.setdefault(roll, {})[step] = digest

    def contributes(self, roll: int, node: str, state: Held) -> None:
        known = self.states[roll].get(state[0])
        demand(known == state[1], "I5", f"{node} has {state} in roll {roll}, others {known}")

    def finishes(self, roll: int, step: int, after: Held, now: float) -> None:
        self.steps += 1
        self.finished[roll] = step
        self.states[roll][after[0]] = after[1]
        self.finished_at = now
        self.first_steps.setdefault(roll, now)
        if roll < self.newest.number:
            self.late[roll] += 1
            demand(self.late[roll] <= 1, "I2", f"roll {roll} goes on beside {self.newest}")

    # --------------------------------------------------------------------------- I3

    def effect(self, roll: int, node: str, now: float) -> None:
        self.effects += 1
        self.first_effects.setdefault(roll, now)
        back = f"{node} acts in roll {roll}, after somebody had in {self.newest_effect}"
        demand(roll >= self.newest_effect, "I3", back)
        self.newest_effect = roll
