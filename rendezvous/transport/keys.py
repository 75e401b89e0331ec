"""The keys that the launchers of a job derive from its key, and the proof of having it.

A job has one secret, the *key*. It never travels. Each launcher derives two things from it: the key
pair with which it listens, the same in all of them, and the proof that goes with its own key pair,
which is drawn anew at every start.

Theory of operation. CURVE encrypts every connection for the listener's public key. That is derived
from the key and, like it, is told to nobody: whoever does not have the key cannot even say hello.
A caller then shows, with the first frame of each message, an *incarnation* that is the fingerprint
of its own public key, and a keyed hash of that public key. The listener knows the public key from
the handshake (the caller holds its secret half), so nobody can speak under another incarnation than
its own, also not with the key, and a proof that is overheard by a member is worth nothing to it.
No list of callers has to be kept or spread: whoever takes the listener's place can judge at once.
"""

import hmac
import secrets
from dataclasses import dataclass, field
from hashlib import blake2b

TEXT_LEAST, TEXT_MOST = 32, 1024
"""Characters of a key file. Fewer could be guessed."""

PUBLIC_BYTES = 32
INCARNATION_CHARS = 16
_PROOF_CHARS = 32


class BadKey(ValueError):
    """The text is no key. It says why, without saying what the text is."""


@dataclass(frozen=True, slots=True)
class JobKey:
    """The secret that the launchers of a job share."""

    root: bytes = field(repr=False)

    def listener_secret(self) -> bytes:
        """The secret half of the key pair with which every launcher of the job listens."""
        return self._derived(b"listener", b"")

    def routing_id(self, public: bytes) -> bytes:
        """The name that the owner of a public key gives itself, with the proof that it has this
        key.
        """
        proof = self._derived(b"caller", public).hex()[:_PROOF_CHARS]
        return f"{incarnation_of(public)}.{proof}".encode()

    def incarnation(self, routing_id: bytes, public: bytes) -> bytes:
        """The incarnation of the owner of this public key, if it may call itself so; else b""."""
        expected = self.routing_id(public)
        return expected[:INCARNATION_CHARS] if hmac.compare_digest(routing_id, expected) else b""

    def _derived(self, purpose: bytes, subject: bytes) -> bytes:
        return blake2b(subject, key=self.root, person=purpose, digest_size=32).digest()


def parse(text: bytes) -> JobKey:
    """The key that a file holds: one line of printable ASCII. Raises BadKey."""
    line = text.strip()
    if not line:
        raise BadKey("is empty")
    if not line.isascii() or not line.decode("ascii").isprintable():
        raise BadKey("is not one line of plain text")
    if len(line) < TEXT_LEAST:
        raise BadKey(f"has {len(line)} characters, {TEXT_LEAST} random ones are the least")
    if len(line) > TEXT_MOST:
        raise BadKey(f"has more than {TEXT_MOST} characters")
    return JobKey(blake2b(line, person=b"recoverrun", digest_size=32).digest())


def new_text() -> str:
    """The content of a new key file."""
    return secrets.token_urlsafe(48) + "\n"


def incarnation_of(public: bytes) -> str:
    """The fingerprint of a public key: one process, for all time."""
    assert len(public) == PUBLIC_BYTES, f"a public key has {PUBLIC_BYTES} bytes, not {len(public)}"
    return blake2b(public, person=b"incarnation", digest_size=INCARNATION_CHARS // 2).hexdigest()
