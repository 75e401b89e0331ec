"""The contact of one launcher with whoever leads: what it may conclude from the leader's answers.

All times are of its own clock, in seconds.
"""


class LeaderContact:
    """A member's."""

    def __init__(self, now: float, *, founded_at: float) -> None:
        """Since `founded_at` at the latest all members know of us; infinitely long ago: never."""
        self.kept_at = founded_at  # who leads knew then, or later, that we live
        self.followed_at = now  # when there was any sign of a leader

    @property
    def met(self) -> bool:
        """True if all members have known of us before."""
        return self.kept_at > float("-inf")

    def meet(self, asked_at: float) -> None:
        """Whoever leads knows since then, or later, that we live, and goes on with us."""
        self.kept_at = max(self.kept_at, asked_at)
