"""Names for which no address is known: told soon, waited for only where they may come to be known.

A lookup may block for longer than anybody wants to wait without a word, so it is made by a thread.
A name service whose first server is dead takes five seconds or more, and then answers: a name that
has no answer yet is not one that is written wrong. In Kubernetes the name of a pod comes to be
known once the pod runs, which may be later than us. Elsewhere a name that nobody knows is written
wrong.
"""

import socket
import threading
from collections.abc import Mapping, Sequence

from recoverrun.config.option_values import Endpoint
from rendezvous.protocol.side_threads import begin_thread

LOOK_S = 3.0
"""How long a name is looked for before anything is said, and again after `AGAIN_S`."""

AGAIN_S = 0.5


class NameLookup:
    """Looks for the addresses of `endpoints` from now on."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.unknown = [endpoint.host for endpoint in endpoints]
        """Those without an address so far."""
        self.unanswered = set(self.unknown)
        """Those of which no lookup has ended yet."""
        self._over = threading.Event()
        if begin_thread("recoverrun-names", self._look) is None:
            self.unknown, self.unanswered = [], set()  # A connection tells, later.
            self._over.set()

    def wait(self, seconds: float = LOOK_S) -> list[str]:
        """Return those names that have no address after so many seconds, or sooner []."""
        self._over.wait(seconds)
        return list(self.unknown)

    def end(self) -> None:
        """Look no more: the thread ends with its present lookup."""
        self._over.set()

    def _look(self) -> None:
        while not self._over.is_set():
            for host in list(self.unknown):
                if is_known(host):
                    self.unknown.remove(host)
                self.unanswered.discard(host)
            if not self.unknown:
                self._over.set()
            self._over.wait(AGAIN_S)


def names_may_come(environ: Mapping[str, str]) -> bool:
    """True if this process runs where the name of a host may appear later: in a pod."""
    return "KUBERNETES_SERVICE_HOST" in environ


def is_known(host: str) -> bool:
    """True if the name has an address. Blocks for as long as the name service takes."""
    try:
        return bool(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except OSError:
        return False
