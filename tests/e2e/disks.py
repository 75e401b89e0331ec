"""Disks of their own: one that can be stopped, and small ones that can be filled. Needs root."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

NEEDED = ("mkfs.ext4", "mount", "umount", "fsfreeze")
BLOCK_BYTES = 1024
"""Small, so that little of what is written after `Disk.fill` fits into a file's last block."""


def unusable() -> str:
    """Why there can be none here; "" if there can."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"without {', '.join(missing)}"
    if os.geteuid():
        return "only root can mount"
    return "" if Path("/dev/loop-control").exists() else "without loop devices"


class Disk:
    """A file system that is mounted at `place`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._stopped = False

    def stop(self) -> None:
        """From now on whoever writes to it waits, in the kernel."""
        _run("fsfreeze", "--freeze", str(self.place))
        self._stopped = True

    def go_on(self) -> None:
        if self._stopped:
            _run("fsfreeze", "--unfreeze", str(self.place))
            self._stopped = False

    def fill(self) -> Path:
        """Take all that is left of it; returns the file that has it.

        ext4 reserves more than it needs until it has written, so what is free again afterwards is
        taken, too.
        """
        path = self.place / "filling"
        with path.open("ab", buffering=0) as file:
            while _write_until_full(file):
                os.fsync(file)
        return path


def _write_until_full(file: BinaryIO) -> int:
    """The number of bytes that there was room for."""
    written = 0
    while True:
        try:
            written += file.write(b"x" * BLOCK_BYTES)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return written


@contextmanager
def disk(place: Path, *, size: int) -> Iterator[Disk]:
    """An ext4 of `size` bytes, which can be stopped and filled."""
    image = place.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-m", "0", "-b", str(BLOCK_BYTES), str(image))
    place.mkdir(mode=0o700)
    _run("mount", "-o", "loop", str(image), str(place))
    mounted = Disk(place)
    try:
        yield mounted
    finally:
        mounted.go_on()
        _run("umount", str(place))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
