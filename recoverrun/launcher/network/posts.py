"""What one launcher has to say to another, or to a worker that the other one hosts."""

from dataclasses import dataclass

from rendezvous.protocol.messages import Message

NOBODY = -1
"""A post for the launcher itself, not for one of its ranks."""


@dataclass(frozen=True, slots=True)
class Post:
    """Send `message` to the launcher `to`; `rank` is the worker it is for, or NOBODY."""

    to: str
    rank: int
    message: Message
