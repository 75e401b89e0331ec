"""Snapshots in a directory: one folder for each, one file for each rank's part, and a manifest.

A file is a bay as it is in memory (`snapshots.bay_header`): header, checksums, content, with a hole
at its end where the bay has room. It gets its name once it is on the disk, so it is whole or not
there. A folder whose ranks all have their file is a whole snapshot. Folders are named by the start
that wrote them and by the step: attempts that write to a directory are numbered, each higher than
all before it, so names tell which snapshot is newer.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

from rendezvous.bays import memory
from rendezvous.protocol.folder_sync import sync_folder
from rendezvous.snapshots import bay_header
from rendezvous.snapshots.bay_header import BayHeader
from rendezvous.snapshots.identity import SnapshotId

FORMAT = 3
MANIFEST = "manifest.json"

_FOLDER = re.compile(r"start-(\d{6,12})-step-(\d{12})", re.ASCII)
_PART = re.compile(r"rank-(\d{6,})\.part")
_ONLY_OURS = 0o600

Name = tuple[int, int]
"""Of a snapshot on the disk: the start that wrote it, and the step. Newer ones are greater."""


class DamagedFile(Exception):
    """A file is not what was written; the text is a sentence for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """One snapshot, as far as this node sees it."""

    folder: Path
    start: int  # the number of the attempt that wrote it
    step: int
    world: int  # ranks of the job
    script: str
    arguments: str  # a digest
    parts: Mapping[int, int]  # ranks, and the bytes of their bays

    @property
    def name(self) -> Name:
        return self.start, self.step

    @property
    def is_whole(self) -> bool:
        """True if all ranks have their file here."""
        ranks = self.parts.keys()  # `world` is what a file says
        return len(ranks) == self.world > 0 and max(ranks) < self.world


def folder_of(directory: str, start: int, step: int) -> str:
    return f"{directory}/start-{start:06}-step-{step:012}"


def manifest(*, script: str, arguments: str, world: int, start: int, step: int) -> str:
    """The part that is the same on all nodes: any of them may write it. `arguments`: a digest of
    them.
    """
    told = {
        "format": FORMAT, "script": script, "arguments": arguments, "world": world, "start": start,
        "step": step,
    }  # fmt: skip
    return json.dumps(told, indent=1) + "\n"


# ------------------------------------------------------------------------------------- writing


def write(folder: str, parts: Mapping[int, int], told: str) -> int:
    """Write the bays of these ranks (descriptors), and the manifest `told`. Returns their bytes.

    Raises OSError; then those that are written stand.
    """
    there = Path(folder)
    there.mkdir(mode=0o700, parents=True, exist_ok=True)
    nbytes = 0
    for rank, fd in sorted(parts.items()):
        with _appearing(there / _part_name(rank)) as to:
            nbytes += _copy_bay(fd, to.fd)
    with _appearing(there / MANIFEST) as to:
        os.write(to.fd, told.encode())
    sync_folder(there)
    sync_folder(there.parent)
    return nbytes


def drop_before(directory: str, keep: tuple[int, int], ranks: Iterable[int]) -> None:
    """Remove the files of these ranks that are older than `keep` (start, step), and folders that
    nobody has a file in.
    """
    for folder, start, step in _folders(Path(directory)):
        if (start, step) >= keep:
            continue
        for rank in ranks:
            (folder / _part_name(rank)).unlink(missing_ok=True)
        if not any(_PART.fullmatch(one.name) for one in folder.iterdir()):
            for left in folder.iterdir():
                left.unlink(missing_ok=True)
            folder.rmdir()


class _appearing:
    """A file that gets its name as the block ends well, and is on the disk then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._under_way = path.with_name(f".{path.name}.{os.getpid()}")
        self.fd = -1

    def __enter__(self) -> "_appearing":
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self.fd = os.open(self._under_way, flags, _ONLY_OURS)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self.fd)
        finally:
            os.close(self.fd)
        if kind is None:
            os.rename(self._under_way, self._path)
        else:
            self._under_way.unlink(missing_ok=True)


def _copy_bay(fd: int, to: int) -> int:
    size = os.fstat(fd).st_size
    header = memory.header_of(fd)
    if header is None:
        raise OSError(0, "the snapshot that was to be written is gone")
    end = bay_header.content_begin(size) + header.content
    _copy(fd, to, end)
    os.ftruncate(to, size)
    return end


def _copy(fd: int, to: int, end: int) -> None:
    at = 0
    while at < end:
        sent = os.sendfile(to, fd, at, min(bay_header.PART, end - at))
        if not sent:
            raise OSError(0, "it ended too soon")
        at += sent


# ------------------------------------------------------------------------------------- reading


def found(directory: Path) -> list[StoredSnapshot]:
    """The snapshots there, the newest first. Other files are left out.

    A run that began anew has lower steps than one before it, and is newer.
    """
    newest_first = sorted(_folders(directory), key=lambda one: one[1:], reverse=True)
    read = (_written(folder, start, step) for folder, start, step in newest_first)
    return [one for one in read if one is not None]


def starts(directory: Path) -> int:
    """The highest number of an attempt that has begun to write there; 0 if none has."""
    return max((start for _, start, _ in _folders(directory)), default=0)


def load(path: str, found_as: SnapshotId) -> int:
    """The descriptor of fresh memory with the part that is in this file, called `found_as`.

    Raises DamagedFile, OSError.
    """
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(source).st_size
        header = memory.header_of(source)
        if header is None:
            raise DamagedFile(f"{path} is damaged: it has no header")
        sums = memory.sums_of(source, header)
        if sums is None:
            raise DamagedFile(f"{path} is damaged: it has no checksums")
        fd = memory.make(size)
        try:
            _copy(source, fd, bay_header.content_begin(size) + header.content)
            _check(fd, header, sums, path)
            os.pwrite(fd, bay_header.pack_sums(sums, found_as), bay_header.PAGE)
            os.pwrite(fd, replace(header, id=found_as).pack(), 0)
        except (OSError, DamagedFile):
            os.close(fd)
            raise
        return fd
    finally:
        os.close(source)


def _check(fd: int, header: BayHeader, sums: list[int], path: str) -> None:
    begin = bay_header.content_begin(os.fstat(fd).st_size)
    for index, expected in enumerate(sums):
        first, last = bay_header.part(index, header.content)
        if crc32(os.pread(fd, last - first, begin + first)) != expected:
            raise DamagedFile(f"{path} is damaged: part {index} is not what was written")


def _folders(directory: Path) -> list[tuple[Path, int, int]]:
    try:
        names = sorted(one.name for one in directory.iterdir())
    except OSError:
        return []
    matches = [(directory / name, _FOLDER.fullmatch(name)) for name in names]
    return [(path, int(one[1]), int(one[2])) for path, one in matches if one is not None]


def _written(folder: Path, start: int, step: int) -> StoredSnapshot | None:
    try:
        told = json.loads((folder / MANIFEST).read_text())
        world, script, arguments = told["world"], str(told["script"]), str(told["arguments"])
        if told["format"] != FORMAT or type(world) is not int:
            return None
        parts = {}
        for one in folder.iterdir():
            match = _PART.fullmatch(one.name)
            header = _header(one) if match is not None else None
            if match is not None and header is not None:
                if (header.rank, header.world, header.id.step) == (int(match[1]), world, step):
                    parts[header.rank] = one.stat().st_size
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return StoredSnapshot(
        folder=folder, start=start, step=step, world=world, script=script, arguments=arguments,
        parts=parts,
    )  # fmt: skip


def part_path(folder: Path, rank: int) -> str:
    return str(folder / _part_name(rank))


def _header(path: Path) -> BayHeader | None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return memory.header_of(fd)
    finally:
        os.close(fd)


def _part_name(rank: int) -> str:
    return f"rank-{rank:06}.part"
