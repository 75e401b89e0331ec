"""The result of a check: what was found, what that breaks, and the line that mends it."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's table."""

    check: str
    level: Level
    found: str
    breaks: str = ""
    mend: str = ""
    nodes: tuple[str, ...] = ()  # that it is true of; empty: of the only one, or of all


def ok(check: str, found: str) -> Finding:
    return Finding(check=check, level="ok", found=found)


def warning(check: str, found: str, breaks: str, mend: str) -> Finding:
    return Finding(check=check, level="warning", found=found, breaks=breaks, mend=mend)


def error(check: str, found: str, breaks: str, mend: str) -> Finding:
    return Finding(check=check, level="error", found=found, breaks=breaks, mend=mend)
