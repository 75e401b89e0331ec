"""The interface to collectives of the script's first lines, before it trains."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _same(one: Any) -> Any:
    return one


@dataclass(frozen=True, slots=True)
class Prologue:
    """The prologue as ever, but for a process that takes a lost rank's place."""

    store: Callable[[Any], Any] = _same  # of the default group, given the launcher's
    objects: Callable[[Any], Any] = _same  # `broadcast_object_list`, given torch's
