"""How a collective can fail here, and what each failure means.

Only launchers judge who is lost. Inside a worker there are two outcomes: the members changed
(`Superseded`: go back and meet in the new generation), or the operation asks for somebody who is
gone for good (`PeerLost`: an error of the script's call, named as such).
"""


class Superseded(Exception):
    """A newer generation began; what was under way in the older one has no effect (INV-5).

    `reason` is what gloo had said before, "" if the members simply changed.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class PeerLost(RuntimeError):
    """A point-to-point or rooted operation names a rank that is no longer a member."""


class MembersChanged(PeerLost):
    """Work that has to be among the same members from its begin to its end lost one on the way."""


class RanksDiffer(RuntimeError):
    """The script's ranks do different things, which no transaction can be made of."""


class InvariantBroken(RuntimeError):
    """A promise of docs/invariants.md does not hold; the job stops with exit code 85."""

    def __init__(self, invariant: str, reason: str) -> None:
        super().__init__(f"{invariant}: {reason}")
        self.invariant = invariant
        self.reason = reason
