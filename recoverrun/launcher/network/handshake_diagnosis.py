"""The reason why a rendezvous does not let us in: a look at the other end's greeting.

ZeroMQ tells that a handshake failed, hardly why, and tries again for ever. Whoever speaks ZMTP
begins with 64 bytes that name its protocol and its mechanism, before any key is needed: with these
a wrong port, a missing key and a wrong key are told apart.
"""

import socket
from collections.abc import Sequence

from recoverrun.config.option_values import Endpoint
from recoverrun.config.run_config import RunConfig
from recoverrun.launcher.network.addresses import written
from recoverrun.launcher.network.key_lookup import Keyring
from recoverrun.launcher.network.name_lookup import is_known

PATIENCE_S = 1.0

ANSWER_S = 5.0
"""What the node that forms the job may need longer than us to notice that its time is over."""

FAILURES_ENOUGH = 3
"""Handshakes that may fail before a key counts as wrong: a peer may also have died in one."""

_REMEDY = "give all nodes the same --key-file, or each --key-file none"

_OPENING = b"\xff" + bytes(8) + b"\x7f\x03\x00"
"""Our half up to the version: with a mechanism that it does not like, a peer says nothing more."""

_GREETING_BYTES = 64


def hopeless(
    config: RunConfig, keyring: Keyring, waited_s: float, failures: int, *, known: bool
) -> str:
    """The reason why waiting for the job to form is useless, or "".

    `failures`: handshakes that failed in a row, 0 if there is no new one; `known`: whether a
    launcher ever answered.
    """
    words = diagnose(config.endpoints, keyring, failures) if failures and not known else ""
    # Whoever answered knows best how many are missing, and says so.
    patience_s = config.join_timeout_s + (ANSWER_S if known else 0.0)
    return words or (unanswered(config.endpoints, patience_s) if waited_s >= patience_s else "")


def diagnose(endpoints: Sequence[Endpoint], keyring: Keyring, failures: int) -> str:
    """One sentence for the user after so many failed handshakes; "" if there may yet be hope."""
    found = [_diagnose(endpoint, keyring, failures) for endpoint in endpoints]
    return found[0] if all(found) else ""


def _diagnose(endpoint: Endpoint, keyring: Keyring, failures: int) -> str:
    greeting = _greeting(endpoint)
    if not greeting:
        return ""  # Nobody there any more, or too busy to answer.
    if not _is_zmtp(greeting):
        return (
            f"what answers at {endpoint} is not a recoverrun rendezvous: it speaks another "
            f"protocol; is the port right, and the launcher with node rank 0 running?"
        )
    mechanism = greeting[12:32].rstrip(b"\0")
    if mechanism == b"NULL" and keyring.key is not None:
        return f"the launcher at {endpoint} has no key, this one has {keyring.origin}: {_REMEDY}"
    if mechanism == b"CURVE" and keyring.key is None:
        return f"the launcher at {endpoint} demands its key, and this one has none: {_REMEDY}"
    if mechanism == b"CURVE" and failures >= FAILURES_ENOUGH:
        return (
            f"rendezvous key mismatch: the launcher at {endpoint} has another key than "
            f"{keyring.origin}: {_REMEDY}"
        )
    return ""


def is_rendezvous(endpoint: Endpoint) -> bool:
    """True if what answers there introduces itself as a launcher does."""
    greeting = _greeting(endpoint)
    return bool(greeting) and _is_zmtp(greeting)


def has_ended(endpoint: Endpoint) -> bool:
    """True if its host refuses connections: nobody listens there any more."""
    return _takes_calls(endpoint) is False


def mute(endpoints: Sequence[Endpoint]) -> str:
    """Those of `endpoints`, for people, that take connections; "" for none.

    For a launcher that none has answered: another program listens there that waits to be spoken to
    in its own way (a web server), or a launcher that stands still.
    """
    return written([endpoint for endpoint in endpoints if _takes_calls(endpoint)])


def _takes_calls(endpoint: Endpoint) -> bool | None:
    """True if a connection was made, False if it was refused; None: no way leads to that host."""
    try:
        socket.create_connection((endpoint.host, endpoint.port), PATIENCE_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return None  # Its launcher may live.
    return True


def _is_zmtp(greeting: bytes) -> bool:
    return greeting[:1] == b"\xff" and greeting[9:10] == b"\x7f"[: len(greeting[9:10])]


def _greeting(endpoint: Endpoint) -> bytes:
    """The first bytes of the other end, up to 64; b"" if it says nothing in time."""
    heard = b""
    try:
        with socket.create_connection((endpoint.host, endpoint.port), PATIENCE_S) as connection:
            connection.sendall(_OPENING)
            while len(heard) < _GREETING_BYTES:
                chunk = connection.recv(_GREETING_BYTES - len(heard))
                if not chunk:
                    break
                heard += chunk
    except OSError:
        pass  # The bytes heard until then have to do.
    return heard


def unanswered(endpoints: Sequence[Endpoint], patience_s: float) -> str:
    """The sentence for a user where nobody answered."""
    unknown = [endpoint.host for endpoint in endpoints if not is_known(endpoint.host)]
    hint = "is the launcher with node rank 0 running, and is this its address?"
    if unknown:
        hint = f"no address is known here for {', '.join(unknown)}: is the name right?"
    elif listening := mute(endpoints):
        return (
            f"what listens at {listening} has not answered as a launcher does within "
            f"{patience_s:g} s: is the port right, or does another program have it?"
        )
    return f"nobody answered at {written(endpoints)} within {patience_s:g} s: {hint}"
