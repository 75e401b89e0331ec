"""The orders to a keeper about disks: what to write there, and what to load from there.

Disks are waited for in another thread (`Asks`); all else happens in the keeper's own.
"""

import errno
import os
from collections.abc import Callable, Iterable
from typing import Protocol

from rendezvous.bays import memory, part_files
from rendezvous.bays.part_files import DamagedFile
from rendezvous.protocol.keeper_messages import Load, WriteOut, WrittenOut
from rendezvous.snapshots.holdings import KeeperHoldings
from rendezvous.snapshots.identity import SnapshotId

NOT_HERE = "the snapshot of step {} is not in the memory of this node any more"

Outcome = Callable[[], None]


class Asks(Protocol):
    """A thread that does one task after another."""

    def ask(self, task: Callable[[], Outcome]) -> None:
        """Do the task there; what it returns is called in the keeper's own thread."""


class Loading:
    """Parts that are on their way from a disk."""

    def __init__(self) -> None:
        self._under_way: set[tuple[int, SnapshotId]] = set()
        self._failed: dict[tuple[int, SnapshotId], str] = {}

    def begins(self, rank: int, wanted: SnapshotId) -> None:
        self._under_way.add((rank, wanted))

    def ends(self, rank: int, wanted: SnapshotId, failed: str = "") -> None:
        self._under_way.discard((rank, wanted))
        if failed:
            self._failed[rank, wanted] = failed

    def is_under_way(self, rank: int, wanted: SnapshotId) -> bool:
        return (rank, wanted) in self._under_way

    def failure(self, rank: int, wanted: SnapshotId) -> str:
        """The reason why it did not come; "" if it was never awaited."""
        return self._failed.get((rank, wanted), "")


def write(
    order: WriteOut,
    holdings: KeeperHoldings,
    fds: dict[int, int],
    disk: Asks,
    tell: Callable[[WrittenOut], None],
) -> None:
    """Write all that is here of a snapshot; it is not written over meanwhile."""
    wanted = SnapshotId(order.attempt, order.step)
    bays = [bay for bay in holdings.bays if bay.content == wanted]

    def written(nbytes: int, failed: str) -> None:
        for bay in bays:
            holdings.reading(bay.number, -1)
        tell(
            WrittenOut(
                attempt=order.attempt, step=order.step, start=order.start, nbytes=nbytes,
                failed=failed,
            )
        )  # fmt: skip

    if not bays:
        written(0, NOT_HERE.format(order.step))
        return
    for bay in bays:
        holdings.reading(bay.number, 1)
    parts = {bay.rank: fds[bay.number] for bay in bays}

    def task() -> Outcome:
        try:
            folder = part_files.folder_of(order.directory, order.start, order.step)
            nbytes = part_files.write(folder, parts, order.manifest)
            part_files.drop_before(order.directory, order.keep, parts)
        except OSError as error:
            words = error.strerror or str(error)
            return lambda: written(0, words)
        return lambda: written(nbytes, "")

    disk.ask(task)


def load(
    order: Load,
    loading: Loading,
    disk: Asks,
    refusal: Callable[[int], str],
    loaded: Callable[[int, SnapshotId, int], None],
) -> None:
    """Have a part from a disk, where `refusal` of its bytes is ""; `loaded` hears of its rank, what
    it is, and its memory.
    """
    wanted = SnapshotId(order.attempt, order.step)
    loading.begins(order.rank, wanted)

    def task() -> Outcome:
        try:
            if words := refusal(os.stat(order.path).st_size):
                raise OSError(errno.ENOMEM, f"too little memory: {words}")
            fd = part_files.load(order.path, wanted)
        except DamagedFile as error:
            words = f"{error}; it is called .damaged now, and an older snapshot is next"
            _set_aside(order.path, "damaged")
            return lambda: failed(words)
        except OSError as error:
            words = f"{order.path} cannot be read: {error.strerror or error}"
            return lambda: failed(words)
        return lambda: came(fd)

    def failed(words: str) -> None:
        loading.ends(order.rank, wanted, words)

    def came(fd: int) -> None:
        loading.ends(order.rank, wanted)
        header = memory.header_of(fd)
        if header is None or header.rank != order.rank:
            loading.ends(order.rank, wanted, f"{order.path} is of another rank")
            os.close(fd)
        else:
            loaded(order.rank, wanted, fd)

    disk.ask(task)


def set_aside(paths: Iterable[str], disk: Asks) -> None:
    """Have no start find these files any more; they go with their folder."""

    def task() -> Outcome:
        for path in paths:
            _set_aside(path, "unfit")
        return lambda: None

    disk.ask(task)


def _set_aside(path: str, why: str) -> None:
    """The next start does not find it."""
    try:
        os.rename(path, f"{path}.{why}")
    except OSError:
        pass  # It is not there, or found again on a disk that cannot be written to.
