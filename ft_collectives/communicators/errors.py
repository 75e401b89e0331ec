"""The failures of a collective, and what each means.

Only launchers judge who is lost. Inside a worker there are two outcomes: the members changed
(`Superseded`: meet in the new generation and repeat), or the operation needs a rank that is lost
(`PeerLost`: an error of the script's call).
"""


class Superseded(Exception):
    """A newer generation began: what was under way in the older one has no effect (INV-5).

    `reason` is the error of gloo that came before it, "" if there was none.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class ScriptFails(RuntimeError):
    """A call of the script fails, for a reason that lies in what its ranks do or in a loss.

    Its traceback is shown without our frames, as those of the script's own errors.
    """


class PeerLost(ScriptFails):
    """A message or a rooted collective names a rank that is no longer a member."""


class MembersChanged(PeerLost):
    """A member was lost during work that needs the same members from beginning to end."""


class RanksDiffer(ScriptFails):
    """The script's ranks do different things, so that there is no common step."""


class InvariantBroken(RuntimeError):
    """A promise of docs/invariants.md does not hold; the job stops with exit code 85."""

    def __init__(self, invariant: str, reason: str) -> None:
        super().__init__(f"{invariant}: {reason}")
        self.invariant = invariant
        self.reason = reason
