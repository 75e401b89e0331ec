"""The times at which a launcher's host is asked whether the launcher has ended. Knows no sockets.

A call that breaks is asked about at once, and again until the host answers or the call is put
through: at first it may not refuse yet, because a process that is killed loses its connections
before it stops listening.
"""

from dataclasses import dataclass

ASK_AGAIN_S = 0.02
"""After that a host is asked again about a launcher to which there is no connection."""

ASK_SELDOM_S = 1.0
"""The longest such wait: each is twice as long as the one before."""


@dataclass(slots=True)
class Inquiry:
    """About one launcher. All times are monotonic, in seconds."""

    asked_at: float = 0.0
    wait_s: float = ASK_AGAIN_S  # until its host is asked again

    def look(self, *, up: bool, now: float) -> bool:
        """True if its host is to be asked now, an earlier question being over; `up`: never."""
        if up:
            self.wait_s = ASK_AGAIN_S
            return False
        if now < self.due:
            return False
        # Each question is a connection that the other end has to refuse or to wonder about.
        self.wait_s = min(2 * self.wait_s, ASK_SELDOM_S)
        self.asked_at = now
        return True

    @property
    def due(self) -> float:
        """The time of the next look, while there is no connection."""
        return self.asked_at + self.wait_s
