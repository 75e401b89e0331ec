"""Runs a script as the hooks do, with a runtime that counts its calls.

usage: python -u counting_worker.py [-m] SCRIPT [ARGUMENT ...]

At the end of the script the counts are written as JSON to the file named by COUNTS.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeVar

_implied_path = None if sys.flags.safe_path else sys.path.pop(0)
if _implied_path is not None:
    sys.path.append(_implied_path)

from recoverrun.worker import own_files  # noqa: E402
from recoverrun.worker.boot import run_script  # noqa: E402
from recoverrun.worker.data.generator_wrapper import same_kind  # noqa: E402
from recoverrun.worker.instrumentation import (  # noqa: E402
    NO_CHANGES,
    Changes,
    Lone,
    Loop,
    Started,
)

T = TypeVar("T")
P = ParamSpec("P")

# Frames of this file stand for those of the real runtime.
own_files.FOLDERS = (*own_files.FOLDERS, os.path.abspath(__file__))


class Stop(BaseException):
    """Leaves a region."""


class CountingRuntime:
    """Does what plain Python would do, in Python, and counts."""

    Unwind = Stop
    reads_gradients = False

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loops: dict[str, Loop] = {}
        self.counts: Counter[str] = Counter()
        self.refusals: list[str] = []

    def register(self, loop: Loop) -> None:
        self.loops[loop.id] = loop

    def own(
        self,
        module: str,
        path: str,
        source: bytes,
        changes: Changes = NO_CHANGES,
        *,
        installed: bool = False,
    ) -> None:
        pass

    def refuse(self, filename: str, reason: str) -> None:
        self.refusals.append(reason)

    def iterate(self, loop_id: str, iterable: Iterable[T]) -> Iterator[T]:
        self.counts["iterate"] += 1
        for item in iter(iterable):
            self.counts["item"] += 1
            yield item

    def enter(self, loop_id: str) -> bool:
        self.counts["enter"] += 1
        return True

    def top(self, loop_id: str, local: dict[str, object], global_: dict[str, object]) -> None:
        self.counts["top"] += 1
        assert loop_id in self.loops
        assert (local is global_) == self.loops[loop_id].module_level

    def leave(self, loop_id: str) -> None:
        self.counts["leave"] += 1

    def first(self, where: str, sense: bool, result: object, rank: object = None) -> object:
        self.counts["first"] += 1
        return result

    def hand_on(self, places: Mapping[str, Lone]) -> None:
        pass

    def bring(self, value: object) -> None:
        pass

    def beside(self) -> AbstractContextManager[object]:
        return nullcontext()

    def asking(self, where: str) -> AbstractContextManager[object]:
        return nullcontext()

    def leading(self, where: str) -> AbstractContextManager[object]:
        self.counts["leading"] += 1
        return nullcontext()

    def generator(self, function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
        def serve(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            self.counts["generator"] += 1
            return function(*args, **kwargs)

        return same_kind(function, serve)

    def finish(self, code: int) -> None:
        assert os.getpid() == self.pid
        report = {
            "counts": dict(self.counts),
            "loops": sorted(os.path.basename(loop_id) for loop_id in self.loops),
            "refusals": self.refusals,
            "code": code,
        }
        with open(os.environ["COUNTS"], "w", encoding="utf-8") as file:
            json.dump(report, file)


def start(_env: Mapping[str, str]) -> Started:
    """Stand in for the hooks' bootstrap."""
    runtime = CountingRuntime()
    return Started(runtime=runtime, finish=runtime.finish)


if __name__ == "__main__":
    run_script.main(sys.argv[1:], start=start, implied_path=_implied_path)
