"""The source of a job's key, and the rules without one.

In this order: --key-file (or RECOVERRUN_KEY_FILE), the file of a secret that a scheduler mounts,
the user's own file. A rendezvous on a loopback address can only be reached from this machine; its
launchers find each other's key in the user's private directory, and the first of them makes it.
A job on several machines without any of that runs, as it does under torchrun, and says so.

The key stays in this process: workers, journals and messages never see it.
"""

import ipaddress
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from recoverrun.config.option_values import Endpoint
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network.addresses import addresses
from recoverrun.launcher.output.run_dir import NotPrivate, open_private, write_new
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.transport.keys import TEXT_MOST, BadKey, JobKey, new_text, parse
from rendezvous.transport.sockets import can_encrypt

NO_FILE = "none"
"""--key-file of a user who wants none."""

MOUNTED = Path("/run/secrets/recoverrun-key")
OWN = Path("recoverrun/key")
"""In the directory of the user's configuration."""

HOST = "host.key"

OPEN = (
    "no key: whoever reaches this rendezvous can read it, join it and end it; `recoverrun keygen` "
    "makes a key for all nodes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """The key that this launcher uses, if any."""

    key: JobKey | None = None
    origin: str = ""  # the file
    note: str = ""  # what a user should know


class Listener(Protocol):
    """The use of a key: where a launcher listens or calls, and the user's options for keys."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]: ...
    @property
    def key_file(self) -> str: ...
    @property
    def key_required(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class KeyedEndpoints:
    """The addresses of a command that is no launcher, and its options for keys."""

    endpoints: tuple[Endpoint, ...]
    key_file: str
    key_required: bool = False


def find_key(config: Listener, environ: Mapping[str, str]) -> Keyring:
    """Raises RecoverrunError for a key that cannot be used, or where one is required."""
    if not config.endpoints:
        if config.key_file not in ("", NO_FILE):
            _from_file(Path(config.key_file))  # A slip is told also where there is no use for it.
        return Keyring()
    found = _found(config, environ)
    if found.key is not None and not can_encrypt():
        why = "this ZeroMQ was built without encryption: install pyzmq from PyPI"
        if config.key_file or config.key_required:
            raise RecoverrunError(f"{why}, or use --key-file none", ExitCode.USAGE)
        found = Keyring(note=f"{OPEN} ({why})")
    if found.key is None and config.key_required:
        sentence = "--key-required: there is no key; `recoverrun keygen` makes one for all nodes"
        raise RecoverrunError(sentence, ExitCode.USAGE)
    return found


def _found(config: Listener, environ: Mapping[str, str]) -> Keyring:
    if config.key_file == NO_FILE:
        return Keyring(note=OPEN)
    if config.key_file:
        return _from_file(Path(config.key_file))
    for path in (MOUNTED, own_file(environ)):
        if path is not None and path.exists():
            return _from_file(path)
    local = all(_is_loopback(endpoint.host) for endpoint in config.endpoints)
    return _of_this_host(environ) if local else Keyring(note=OPEN)


def own_file(environ: Mapping[str, str]) -> Path | None:
    """The file in which a user keeps a key for all jobs."""
    base = _base(environ, "XDG_CONFIG_HOME", ".config")
    return None if base is None else base / OWN


def _base(environ: Mapping[str, str], variable: str, below_home: str) -> Path | None:
    path = Path(environ.get(variable) or Path(environ.get("HOME") or "", below_home))
    return path if path.is_absolute() else None


def _is_loopback(host: str) -> bool:
    try:
        return all(ipaddress.ip_address(address).is_loopback for address in addresses(host))
    except ValueError:
        return False  # A name that leads nowhere yet.


def _from_file(path: Path) -> Keyring:
    try:
        # A link is followed: that is how Kubernetes mounts a secret. What counts is where it leads.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise _unusable(path, f"cannot be read: {why}", "is --key-file right?") from error
    return Keyring(key=_read(fd, path), origin=str(path))


def _read(fd: int, path: Path) -> JobKey:
    """The key behind a descriptor, which is closed."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise _unusable(path, "is no file", "name a file that holds the key")
    with os.fdopen(fd, "rb") as file:
        if status.st_uid not in (os.geteuid(), 0):
            raise _unusable(path, "belongs to another user", "copy it to a file of your own")
        # One of root's that we can read was given to our group: a secret that was mounted for us.
        closed_to = 0o077 if status.st_uid == os.geteuid() else 0o037
        if status.st_mode & closed_to:
            mode = f"can be read or changed by others (mode {status.st_mode & 0o777:04o})"
            raise _unusable(path, mode, f"chmod 600 {path}")
        try:
            return parse(file.read(TEXT_MOST + 2))
        except BadKey as error:
            hint = f"recoverrun keygen {path} makes a new one, once the old one is gone"
            raise _unusable(path, str(error), hint) from None


def _unusable(path: Path, why: str, hint: str) -> RecoverrunError:
    return RecoverrunError(f"the key file {path} {why}; {hint}", ExitCode.USAGE)


def _of_this_host(environ: Mapping[str, str]) -> Keyring:
    """The key that all launchers of this user on this machine share; made if there is none."""
    base = _base(environ, "XDG_STATE_HOME", ".local/state")
    if base is None:
        return Keyring(note=f"{OPEN} (there is no home directory to keep one in)")
    directory = base / "recoverrun"
    try:
        folder = open_private(directory)
    except NotPrivate as error:
        raise RecoverrunError(str(error), ExitCode.USAGE) from error
    except OSError as error:
        return Keyring(note=f"{OPEN} ({directory}: {(error.strerror or str(error)).lower()})")
    try:
        write_new(folder, HOST, new_text().encode())
        fd = os.open(HOST, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        return Keyring(note=f"{OPEN} ({directory}: {(error.strerror or str(error)).lower()})")
    finally:
        os.close(folder)
    return Keyring(key=_read(fd, directory / HOST), origin=str(directory / HOST))
