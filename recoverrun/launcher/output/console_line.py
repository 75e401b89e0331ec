"""A line of a worker on its way to the console."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsoleLine:
    """One line as a worker wrote it, without its end."""

    rank: int
    prefix: str
    text: str
