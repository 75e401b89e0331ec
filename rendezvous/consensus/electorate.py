"""The launchers that decide what follows a configuration: most of its voters, or else all that are
left.

The dead vote no more. Where most voters are proved dead, no vote of theirs can be won, by anybody,
ever. What they decided before, and did not live to tell, cannot have gone any further without the
members that are left, if one of those is known to be in it (`proved_deaths`). So these decide in
their place, and none of them may be missing: whichever of them is asked later knows of it.
"""

from collections.abc import Set
from typing import NamedTuple

from rendezvous.consensus.configuration import Configuration, quorum


class Electorate(NamedTuple):
    """The electorate of what follows `configuration`, the launchers `dead` being proved dead."""

    configuration: Configuration
    dead: Set[str]

    @property
    def orphaned(self) -> bool:
        """True if the voters that are left are no quorum. A witness is never proved dead."""
        voters, witness = self.configuration.voters, self.configuration.witness
        return witness not in voters and not quorum(voters, set(voters) - self.dead)

    @property
    def left(self) -> tuple[str, ...]:
        """The members that are not proved dead, in their order."""
        return tuple(name for name in self.configuration.members if name not in self.dead)

    @property
    def asked(self) -> tuple[str, ...]:
        """The launchers whose answers count."""
        return self.left if self.orphaned else self.configuration.voters

    def agrees(self, answers: Set[str]) -> bool:
        """True if these have answered, and they are enough."""
        return self.vote(answers) or (self.orphaned and set(self.left) <= answers)

    def vote(self, answers: Set[str]) -> bool:
        """True if most voters have answered."""
        return quorum(self.configuration.voters, answers)
