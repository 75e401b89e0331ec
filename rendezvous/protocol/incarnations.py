"""The process of a rank: its attempt, and its birth within that, as one number.

`birth` 0 is a rank's first process in an attempt. Each process that its launcher starts in the
place of one that was lost has the next birth. Later processes of a rank have larger numbers.
"""

BIRTH_BITS = 16

BIRTHS = 1 << BIRTH_BITS
"""Births of a rank in one attempt."""


def incarnation(attempt: int, birth: int) -> int:
    """The number of a rank's process. Raises ValueError if an attempt has no such birth."""
    if attempt < 0 or not 0 <= birth < BIRTHS:
        raise ValueError(f"attempt {attempt} has no birth {birth}")
    return attempt << BIRTH_BITS | birth


def attempt_of(number: int) -> int:
    """The attempt of the process with this number."""
    return number >> BIRTH_BITS


def birth_of(number: int) -> int:
    """Its birth within that: > 0 if the rank was lost before."""
    return number & (BIRTHS - 1)
