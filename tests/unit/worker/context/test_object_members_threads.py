"""Another thread of the script changes its objects while they are looked through."""

import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from recoverrun.worker.context.object_views import Sequence
from recoverrun.worker.context.observer import TorchObserver
from recoverrun.worker.context.slot_context import attributes_of

CAPTURES = 400


class Monitor:
    """Keeps what it has seen of late, as a watcher of the machine does."""

    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}
        self.in_order: OrderedDict[int, float] = OrderedDict()
        self.kinds: set[int] = set()
        self.last: deque[int] = deque(maxlen=50)
        self.all: list[int] = []
        self.long = dict.fromkeys(range(3000), 0.5)

    def watch(self, over: threading.Event) -> None:
        number = 0
        while not over.is_set():
            number += 1
            for place in range(40):
                self.by_name[f"k{(number + place) % 60}"] = number
                self.by_name.pop(f"k{(number - place) % 60}", None)
                self.in_order[(number + place) % 60] = 0.5
                self.in_order.pop((number - place) % 60, None)
                self.kinds ^= {place}
                self.long[number + place] = 0.5
                self.long.pop((number - 3000) + place, None)
                self.last.append(number)
                setattr(self, f"x{(number + place) % 60}", number)
                vars(self).pop(f"x{(number - place) % 60}", None)
            self.all.extend(range(30))
            if len(self.all) > 200:
                self.all.clear()


@contextmanager
def _switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


@pytest.mark.parametrize("what", ["attributes", "bulk", "iterators", "places"])
def test_a_capture_does_not_fail_of_it(what: str) -> None:
    monitor, over = Monitor(), threading.Event()
    thread = threading.Thread(target=monitor.watch, args=(over,))
    names: dict[str, Any] = {"monitor": monitor}
    observer, views = TorchObserver(), [Sequence(monitor.all), Sequence(monitor.last)]
    captures = {
        "attributes": lambda: attributes_of(names, frozenset({__name__})),
        "bulk": lambda: observer.bulk(names),
        "iterators": lambda: observer.iterators({}, {}),
        "places": lambda: [view.get(place) for view in views for place in list(view)],
    }
    thread.start()
    try:
        with _switching():
            observer.attributes(names, frozenset({__name__}), ())
            for _ in range(CAPTURES):
                captures[what]()
    finally:
        over.set()
        thread.join()
