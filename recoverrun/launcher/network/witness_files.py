"""A witness made of files, for sites that have a shared file system and no place for a process.

Its memory is a row of numbered files, one for each thing that the vote has done. Who wants the vote
reads the last one, and writes what follows it as the next number, with a call that fails where that
number is taken already: link(2), which is O_EXCL for a file that is whole. So of two launchers that
ask at once one has to read again what the other has made of it. A file that was read a moment too
late does no harm: whatever changes the memory goes through that call. Nothing is ever removed, or a
number could be given twice.

The calls block, for as long as the file system does.
"""

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from rendezvous.consensus.register_events import RegisterMessage
from rendezvous.consensus.witness import DamagedVote, Witness
from rendezvous.protocol.folder_sync import sync_folder

NAME = "witness"
"""The file that says in which directory the votes are."""

TRIES = 20
"""Launchers that ask at once are few."""

BYTES_MOST = 1 << 20

_WORD = re.compile(r"[0-9A-Za-z_-]{1,64}")


class Unusable(Exception):
    """One sentence: why this directory is no witness."""


class WitnessFiles:
    """The witness in `directory`, which all launchers of a job can write to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def name(self) -> str:
        """The name of the witness for all time; made if there is none. Raises Unusable."""
        try:
            path = self._directory / NAME
            if not path.exists():
                name = secrets.token_hex(8)
                (self._directory / name).mkdir(mode=0o700)
                if not _publish(path, name):
                    (self._directory / name).rmdir()
            name = _read(path).strip()
            if not _WORD.fullmatch(name):
                raise Unusable(f"{path} is damaged")
            if not (self._directory / name).is_dir():
                raise Unusable(f"{self._directory / name} is gone: remove {path}")
            return name
        except OSError as error:
            raise self._unusable(error) from error

    def hear(self, vote: str, message: RegisterMessage) -> RegisterMessage | None:
        """The answer of the vote of that name, witness/job. Raises Unusable."""
        name, _, job = vote.partition("/")
        if not (_WORD.fullmatch(name) and _WORD.fullmatch(job)):
            return None
        folder = self._directory / name / job
        try:
            if not folder.parent.is_dir():
                return None  # A vote of another witness.
            folder.mkdir(mode=0o700, exist_ok=True)
            for _ in range(TRIES):
                number, witness = _newest(folder)
                before = witness.kept()
                answer = witness.hear(message)
                after = witness.kept()
                if after == before or _publish(folder / f"{number + 1:08d}", after):
                    return answer
        except OSError as error:
            raise self._unusable(error) from error
        except DamagedVote as error:
            raise Unusable(f"{folder} is damaged ({error})") from error
        raise Unusable(f"{folder} changes too often")

    def _unusable(self, error: OSError) -> Unusable:
        return Unusable(f"{self._directory}: {(error.strerror or str(error)).lower()}")


def _newest(folder: Path) -> tuple[int, Witness]:
    """The last thing that the vote has done, and its memory after that."""
    number = max((int(name) for name in os.listdir(folder) if name.isdigit()), default=0)
    return number, Witness.restored(_read(folder / f"{number:08d}")) if number else Witness()


def _read(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(BYTES_MOST).decode("utf-8", "replace")


def _publish(path: Path, text: str) -> bool:
    """Write a file that nobody sees before it is whole. False if there is one of that name."""
    draft = path.with_name(f".{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            # On NFS the answer to the first try may be lost: two names show that it was ours.
            return os.stat(draft).st_nlink == 2
        return True
    finally:
        with suppress(OSError):
            os.unlink(draft)
        sync_folder(path.parent)
