"""Private draws: random numbers that a rank draws in code that the script runs on that rank only.

A rank 0 that evaluates draws numbers that other ranks do not draw. They are counted apart. What
remains shows that all ranks draw equally often for training, so that the stream of a lost rank
follows from the stream of any other.
"""

from typing import Any, Protocol

from recoverrun.worker.rng.skip_ahead import draws_between, philox_offset
from recoverrun.worker.rng.streams import (
    Streams,
    read_streams,
    set_private_counts,
)
from rendezvous.protocol.progress_page import Phase, ProgressWriter

draw_sites: set[str] = set()  # mutable: it grows with the script's run, like its streams
"""Where in the script private draws were made, up to now."""


class Runtime(Protocol):
    """The interface of private draws to their process."""

    @property
    def active(self) -> bool: ...

    @property
    def acting_rank(self) -> int | None: ...

    alone: int  # depth of code that the script runs on this rank only
    progress: ProgressWriter

    def seeding(self) -> None: ...


class PrivateDraws:
    """Wraps what the script does on this rank only, as the script's own condition says."""

    def __init__(self, runtime: Runtime, where: str) -> None:
        self._runtime = runtime
        self._where = where
        self._before: Streams | None = None
        self._phase = Phase.BETWEEN

    def __enter__(self) -> None:
        runtime = self._runtime
        if runtime.active and runtime.acting_rank is None and not runtime.alone:
            self._before = read_streams()
        runtime.alone += 1
        self._phase = runtime.progress.phase
        runtime.progress.at(Phase.ALONE)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._runtime.alone -= 1
        self._runtime.progress.at(self._phase)
        if self._before is not None:
            count_private(self._before, self._where)


def seeding(runtime: Runtime) -> None:
    """The script is about to seed torch's streams."""
    if runtime.acting_rank is None:
        forget_private()
    runtime.seeding()


def count_private(before: Streams, where: str) -> None:
    """Count what was drawn since `before` as drawn privately, by code at `where`.

    What cannot be counted (streams seeded anew, very many numbers) is left out: another rank's such
    stream is unknown in any case.
    """
    after = read_streams()
    if after == before:  # perhaps seeded, and put back
        set_private_counts(before.private_counts)
        return
    cuda = zip(before.torch_cuda, after.torch_cuda, strict=False)  # it may have begun in between
    drawn = [draws_between(before.torch_cpu, after.torch_cpu) or 0]
    drawn += [max(0, philox_offset(new) - philox_offset(old)) for old, new in cuda]
    counts = [old + new for old, new in zip(before.private, drawn, strict=True)]
    draw_sites.add(where)
    seeds = [state[:8] for state in (before.torch_cpu, *before.torch_cuda)]
    set_private_counts(tuple(zip(seeds, counts, strict=True)))


def forget_private() -> None:
    """Torch's streams are seeded anew."""
    set_private_counts(())
