"""The directories of a run: one for people that stays, one for machines that goes.

The run directory holds the journal and whatever explains a failure; it is the user's alone (0700).
One that is a link, belongs to somebody else, or that everybody can write to is refused: what is
written there could lead elsewhere. The private directory holds sockets and shared memory and is
removed at the end. A launcher that is killed cannot do that, so the next one removes what nobody
holds a lock on.
"""

import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from recoverrun.errors import RecoverrunError
from rendezvous.journal.run_number import number_run
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.shared_memory import FILE_BYTES

SOCKET_PATH_BYTES = 107
"""What the kernel's address of a socket has room for."""

PREFIX = "recoverrun-"
SHARED_MEMORY = Path("/dev/shm")

ROOM_BYTES = 64 << 10
"""What a disk must have left for a run to begin: it is what the journal keeps for its end."""

WORKER_BYTES = 128 << 10
"""The first that a worker writes into shared memory, and some room."""

WRITERS = 0o002
"""What a run directory must not allow: one that exists may be meant for the eyes of a group."""


def make_run_dir(run_dir: Path | None, name: str, stamp: str, *, shared: bool = False) -> Path:
    """Create the directory of this run: `run_dir`, or runs/<name>/<stamp> with a link `latest`.

    Where nobody asked for one and the working directory cannot have it, it is a temporary one.
    `shared`: another launcher of the same job may have made it already. Raises RecoverrunError if
    it cannot be had, or belongs to somebody else.
    """
    base = base_of_runs() if run_dir is None else Path("runs")
    if run_dir is None and not shared:
        stamp = free_stamp(base / name, stamp)
    path = run_dir if run_dir is not None else base / name / stamp
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if run_dir is None:
            path.mkdir(mode=0o700, exist_ok=shared)
        folder = open_private(path, closed_to=WRITERS)
        try:
            if not os.access(path, os.W_OK | os.X_OK):
                raise RecoverrunError(f"the run directory {path} is not writable", ExitCode.USAGE)
            _try_room(path, folder)
        finally:
            os.close(folder)
        if run_dir is None:
            point(path.parent / "latest", stamp)
        _number(path, base)
    except NotPrivate as error:
        raise RecoverrunError(f"run directory: {error}", ExitCode.USAGE) from error
    except OSError as error:
        why = f"{error.strerror or error} ({error.filename})"
        if isinstance(error, FileExistsError) and not os.path.isdir(error.filename):
            why = f"{error.filename} is no directory"
        raise RecoverrunError(f"no run directory {path}: {why}", ExitCode.USAGE) from error
    return path.absolute()


def _try_room(path: Path, folder: int) -> None:
    """Write ROOM_BYTES into the directory, and remove them. Raises RecoverrunError."""
    name = f".room.{secrets.token_hex(8)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            left = bytes(ROOM_BYTES)
            while left:
                left = left[os.write(fd, left) :]
        finally:
            os.unlink(name, dir_fd=folder)
            os.close(fd)  # On a file system of a network this is what fails.
    except OSError as error:
        why = f"the run directory {path} has no room: {error.strerror or error}"
        raise RecoverrunError(f"{why}; --run-dir names another one", ExitCode.USAGE) from error


def _number(path: Path, base: Path) -> None:
    """Have `latest` find the run, if it is among those below `base`."""
    if base.absolute() in path.absolute().parents:
        with suppress(OSError):  # The times of its files have to tell, then.
            number_run(path, base)


def base_of_runs() -> Path:
    """The folder of runs without a directory of their own."""
    return Path("runs") if _can_hold_runs() else _temporary_base()


def free_stamp(place: Path, stamp: str) -> str:
    """`stamp`, or with a number: a program may begin two runs in one second."""
    names = chain([stamp], (f"{stamp}-{number}" for number in count(2)))
    return next(name for name in names if not (place / name).exists())


def _temporary_base() -> Path:
    """The user's directory in the folder for temporary ones, where it is the user's alone.

    Raises RecoverrunError where there is no such folder.
    """
    places = temporary_folders()
    if not places:
        raise RecoverrunError(
            "no run directory can be made here, nor in a folder for temporary files: "
            "--run-dir names one",
            ExitCode.USAGE,
        )
    base = places[0] / f"runs-{os.geteuid()}"
    try:
        os.close(open_private(base))
    except (NotPrivate, OSError):
        # Somebody else was there first: what everybody can guess is no longer of use.
        return Path(tempfile.mkdtemp(prefix="runs-"))
    return base


def temporary_folders() -> list[Path]:
    """The folder for temporary files, or none: a container's root may be closed to writers."""
    try:
        return [Path(tempfile.gettempdir())]
    except FileNotFoundError:
        return []


class NotPrivate(Exception):
    """A directory is not the user's alone. The text says what to do about it."""


def open_private(path: Path, closed_to: int = 0o077) -> int:
    """A descriptor of a directory of this user that lacks these permissions; made if need be.

    What is done through the descriptor stays in there, whatever becomes of the path. Raises
    NotPrivate, or OSError if it cannot be had at all.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except NotADirectoryError:
        raise NotPrivate(f"{path} is a link or no directory; name another one") from None
    status = os.fstat(fd)
    if status.st_uid == os.geteuid() and not status.st_mode & closed_to:
        return fd
    os.close(fd)
    if status.st_uid != os.geteuid():
        raise NotPrivate(f"{path} belongs to another user; name another one")
    raise NotPrivate(f"{path} is open to other users; chmod 700 {path}")


def write_new(folder: int, name: str, content: bytes) -> None:
    """Have a file of this user alone (0600) appear with all of its content, unless there is one."""
    draft = f".{name}.{secrets.token_hex(8)}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft, dir_fd=folder)


def _can_hold_runs() -> bool:
    try:
        Path("runs").mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access("runs", os.W_OK | os.X_OK)


def point(link: Path, target: str) -> None:
    """Have `link` lead to `target` in one step: a reader never finds it missing."""
    new = link.with_name(f".latest-{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(target, target_is_directory=True)
    new.replace(link)


@dataclass(frozen=True, slots=True)
class PrivateDir:
    """A directory nobody else can look into, locked for as long as this launcher lives."""

    path: Path
    lock: int

    @property
    def socket(self) -> str:
        return str(self.path / "s")

    def context(self, rank: int, incarnation: int) -> str:
        return str(self.path / f"c{rank}.{incarnation}")

    @property
    def full(self) -> bool:
        """True if a worker that begins would find no place for its memory."""
        try:
            return _room_bytes(self.path) < WORKER_BYTES
        except OSError:
            return False  # It was removed, and is about to be made again.

    def restore(self) -> None:
        """Make it again where it was, if somebody has removed it. Raises OSError."""
        with suppress(FileExistsError):  # Then it is its content that is gone.
            self.path.mkdir(mode=0o700)
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            status = os.fstat(fd)
            if os.path.samestat(status, os.fstat(self.lock)):
                return
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise PermissionError(errno.EPERM, "its place is somebody else's now")
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.dup2(fd, self.lock, inheritable=False)  # Nobody takes it for a stale one.
        finally:
            os.close(fd)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def make_private_dir(workers: int = 1) -> PrivateDir:
    """Make one, in shared memory where there is room for the files of so many workers.

    A container may have little of it, or data loaders may have filled it. Raises RecoverrunError.
    """
    places = SHARED_MEMORY, *temporary_folders(), Path("/tmp")
    open_to_us = [base for base in places if os.access(base, os.W_OK | os.X_OK)]
    roomy = [base for base in open_to_us if _room_bytes(base) >= workers * FILE_BYTES]
    for base in roomy or open_to_us:
        _remove_stale(base)
        private = _locked_dir(base)
        if len(os.fsencode(private.socket)) <= SOCKET_PATH_BYTES:
            return private
        private.remove()
    raise RecoverrunError(
        "no directory for sockets: neither /dev/shm nor /tmp can be used", ExitCode.USAGE
    )


def _room_bytes(base: Path) -> int:
    facts = os.statvfs(base)
    return facts.f_bavail * facts.f_frsize


def _locked_dir(base: Path) -> PrivateDir:
    # Until it is locked, another launcher may take the directory for a stale one: then once more.
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(fd, fcntl.LOCK_EX)
        if path.exists():
            return PrivateDir(path, fd)
        os.close(fd)


def _remove_stale(base: Path) -> None:
    """Remove the directories of launchers of this user that were killed."""
    for path in base.glob(f"{PREFIX}*"):
        try:
            if path.lstat().st_uid != os.geteuid() or path.is_symlink():
                continue
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # Its launcher lives.
        finally:
            os.close(fd)
