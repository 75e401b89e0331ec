"""Containers of a fresh process, which are given their content where they lie."""

from collections import deque
from typing import Any

from recoverrun.worker.context.object_members import DICTS

WHOLE: tuple[type, ...] = (list, deque, set)
"""Kinds that are told as a whole, if they hold plain values alone."""

SEQUENCES = (list, deque)


def fill(container: Any, content: Any) -> bool:
    """Give a container its content where it lies: other names see it, too. False if it is none, or
    of another kind. A list of a class of the script's takes a plain one: the class may do more in
    its methods.
    """
    kind: Any = type(container)
    plain: Any = next((one for one in SEQUENCES if isinstance(container, one)), None)
    if plain is not None and kind is not plain and type(content) is list:
        plain.clear(container)
        plain.extend(container, content)
        return True
    if kind not in (*WHOLE, *DICTS) or kind is not type(content):
        return False
    if container is not content:
        container.clear()
        # One by one, as a script adds them: so a set has as much room, and mostly the same order.
        added = iter(content) if kind is set else content
        (container.extend if kind in SEQUENCES else container.update)(added)
    return True
