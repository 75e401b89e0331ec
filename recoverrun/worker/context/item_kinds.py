"""Kinds of objects that give one item after another, and what may lie below them."""

import io
import itertools
import multiprocessing.connection
import multiprocessing.queues
import queue
from types import WrapperDescriptorType
from typing import Any

from recoverrun.worker.data.source import RankAware

ITERATORS: tuple[Any, ...] = (
    type(iter(())), type(iter([])), map, filter, zip, enumerate, reversed, itertools.accumulate,
    itertools.chain, itertools.cycle, itertools.islice, itertools.starmap, itertools.takewhile,
)  # fmt: skip
EMPTIED: tuple[Any, ...] = (
    queue.Queue, queue.SimpleQueue, multiprocessing.queues.Queue,
    multiprocessing.queues.SimpleQueue, multiprocessing.connection._ConnectionBase,
)  # fmt: skip
"""Of these items are taken, though not as of an iterator."""

GIVING = (io.IOBase, *EMPTIED, RankAware)


def is_emptied(value: Any) -> bool:
    """True of queues and the ends of pipes."""
    return isinstance(value, EMPTIED)


def gives_items(kind: Any) -> bool:
    """True of a kind that is no class in Python, but of those that count what they give."""
    following = getattr(kind, "__next__", None)
    return issubclass(kind, GIVING) or isinstance(following, WrapperDescriptorType)
