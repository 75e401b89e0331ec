"""The run directory of one launcher, under a name that all launchers of the job agree on.

Who coordinates suggests the name, and each launcher is told it with its place in the job; so the
directory is made only then. Where the nodes share a file system it is one directory, else each
node has its own of the same name. A directory that the user has named is taken as it is, by one job
at a time.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.output.run_claim import Claimed, claim, refuse_others
from recoverrun.launcher.output.run_dir import base_of_runs, free_stamp, make_run_dir
from recoverrun.launcher.output.run_removal import hold
from rendezvous.protocol.exit_codes import ExitCode

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
"""A part of a name that another launcher may have us make a directory of."""


class RunFolder:
    """Made at the first use of `path`; until then another name may be agreed on."""

    def __init__(
        self,
        asked: Path | None,
        script: str,
        stamp: str,
        made: Callable[[Path], None] = lambda path: None,
        meeting: str = "",
    ) -> None:
        """`asked`: by the user. Else it is runs/<script>/<stamp>. Raises RecoverrunError.

        `made` is told the directory once it is there. `meeting`: where the launchers of this job
        meet, in words that are the same for all of them.
        """
        self._asked = asked
        self._meeting = meeting
        self._made = made
        self._path: Path | None = None
        self._agreed = False
        self._lock = self._claim = -1  # held for as long as this process lives
        if asked is not None:
            self._path = make_run_dir(asked, script, stamp)
            self._lock = hold(self._path)
            self._name = f"{script}/{stamp}"
            try:  # before anybody counts on this node
                refuse_others(self._path, meeting)
            except Claimed as error:
                raise _refused(error) from error
            made(self._path)
        else:
            place = base_of_runs() / script
            self._name = f"{script}/{free_stamp(place, stamp)}"
            _check(place)

    @property
    def name(self) -> str:
        """The run's name within the job: a suggestion until there is an agreement."""
        return self._name

    @property
    def made(self) -> Path | None:
        """The directory, if it exists already."""
        return self._path

    @property
    def path(self) -> Path:
        """The directory, which exists. Raises RecoverrunError if it cannot be had."""
        if self._path is None:
            script, _, stamp = self._name.partition("/")
            self._path = make_run_dir(None, script, stamp, shared=self._agreed)
            self._lock = hold(self._path)
            self._made(self._path)
        return self._path

    def claim(self) -> None:
        """Keep other jobs out of a directory that the user has named. Raises RecoverrunError."""
        if self._asked is None or self._claim >= 0:
            return
        try:
            self._claim = claim(self.path, self._name, self._meeting)
        except (Claimed, OSError) as error:
            raise _refused(error) from error

    def agree(self, name: str) -> None:
        """The job's folder is called so. A name that is no folder below `runs` is not taken."""
        script, _, stamp = name.partition("/")
        whole = _PART.fullmatch(script) and _PART.fullmatch(stamp) and stamp != "latest"
        if not self._agreed and whole:
            self._name, self._agreed = name, True


def _refused(error: Claimed | OSError) -> RecoverrunError:
    return RecoverrunError(f"{error}: give this one a --run-dir of its own", ExitCode.USAGE)


def _check(place: Path) -> None:
    """Raises RecoverrunError at once where no directory could be made later."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        possible = os.access(place, os.W_OK | os.X_OK)
    except OSError:
        possible = False
    if not possible:
        raise RecoverrunError(f"no run directory can be made in {place}", ExitCode.USAGE)
