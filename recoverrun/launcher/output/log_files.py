"""The targets of the streams and the last words of this node's workers: the tree of files of
torchrun.

    <base>/<run id>_<8 random>/attempt_<restart>/<local rank>/{stdout.log,stderr.log,error.json}
    <base>/<run id>_<8 random>/attempt_<restart>/<local rank>/return_<n>/{stdout.log,...}
    <base>/<run id>_<8 random>/attempt_<restart>/filtered_{stdout,stderr}.log

A rank that was lost and is started again within the attempt writes to `return_1`, and so on.

Without a wish for files there are none: streams are inherited and never touched, so that what a
script prints arrives as it printed it, also when it draws on a terminal.
"""

import os
import re
import shutil
import socket
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from string import Template

from recoverrun.config.run_config import Logs, RunConfig
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.output.console import LOOK_S, Console, OutputTail, write_to
from recoverrun.launcher.output.run_folder import RunFolder
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.incarnations import birth_of
from rendezvous.protocol.side_threads import begin_thread

OUT, ERR = 1, 2
NAMES = {OUT: "stdout", ERR: "stderr"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLogs:
    """One worker's files; None: the launcher's own stream."""

    stdout: Path | None
    stderr: Path | None
    error_file: Path


class LogTree:
    """The files of all attempts of one launcher."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._config = config
        self._logs = config.logs
        self._folder = folder
        self._root: Path | None = None

    @property
    def _discards(self) -> bool:
        return str(self._logs.base) == os.devnull

    def attempt(self, number: int) -> Path | None:
        """An empty folder for this attempt, or None if nobody asked for files."""
        logs = self._logs
        asked = logs.base is not None or logs.redirects.asked or logs.tee.asked
        if self._discards or not asked:
            return None
        try:
            folder = self._made_root() / f"attempt_{number}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for local_rank in range(self._config.nproc):
                (folder / str(local_rank)).mkdir()
        except OSError as error:
            why = error.strerror or str(error)
            sentence = f"no log directory {logs.base or self._folder.path}: {why}"
            raise RecoverrunError(sentence, ExitCode.USAGE) from error
        return folder

    def _made_root(self) -> Path:
        if self._root is None:
            base = self._logs.base or self._folder.path / "logs"
            base.mkdir(parents=True, exist_ok=True)
            prefix = re.sub(r"[^A-Za-z0-9._-]", "_", self._config.run_id)[:128]
            self._root = Path(tempfile.mkdtemp(prefix=f"{prefix}_", dir=base)).absolute()
        return self._root


class Outlets:
    """The files and the console of one attempt's workers."""

    def __init__(self, *, config: RunConfig, folder: Path | None, run_dir: Path, node: str) -> None:
        """`node` is this node's name, `folder` that of the attempt."""
        self._config = config
        self._logs: Logs = config.logs
        self._folder = folder
        self._run_dir = run_dir
        self._node = node
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._consoles = {stream: self._console(stream) for stream in NAMES}

    def _console(self, stream: int) -> Console:
        words = self._logs.stdout_words if stream == OUT else self._logs.stderr_words
        copies = None
        if words and self._folder is not None:
            copies = self._folder / f"filtered_{NAMES[stream]}.log"
            copies.touch()  # Whoever waits for it finds it from the start, as with torchrun.
        return Console(write_to(stream), copies)

    def open(self, rank: int, local_rank: int, incarnation: int) -> WorkerLogs:
        """The outlet of this process of `rank`; what is wanted on the console is shown from now on.

        Raises OSError if its files cannot be had.
        """
        error_file = self._run_dir / f"error.r{rank}.{incarnation}.json"
        folder, birth = None, birth_of(incarnation)
        if self._folder is not None:
            folder = self._folder / str(local_rank)
            if birth:
                folder /= f"return_{birth}"
                folder.mkdir(exist_ok=True)
            error_file = folder / "error.json"
        # A file that another run left here would speak for a worker of ours.
        error_file.unlink(missing_ok=True)
        paths = {stream: self._path(stream, rank, local_rank, folder) for stream in (OUT, ERR)}
        return WorkerLogs(stdout=paths[OUT], stderr=paths[ERR], error_file=error_file)

    def _path(self, stream: int, rank: int, local_rank: int, folder: Path | None) -> Path | None:
        shown = self._shown(rank, local_rank)
        tee = self._logs.tee.of(local_rank) & stream
        if folder is None or not (self._logs.redirects.of(local_rank) & stream or tee):
            return None if shown else Path(os.devnull)
        path = folder / f"{NAMES[stream]}.log"
        path.touch()
        if tee and shown:
            words = self._logs.stdout_words if stream == OUT else self._logs.stderr_words
            label = f"[{self._config.role}{local_rank}]:"  # torchrun's, for programs that read it
            prefix = f"{self._node}:{rank}│ "
            if self._logs.prefix:
                prefix = label = self._prefix(rank, local_rank)
            tail = OutputTail(path=path, rank=rank, prefix=prefix, label=label, words=words)
            self._consoles[stream].watch(tail)
        return path

    def _shown(self, rank: int, local_rank: int) -> bool:
        local, everywhere = self._logs.local_ranks, self._logs.ranks
        return (not local or local_rank in local) and (not everywhere or rank in everywhere)

    def _prefix(self, rank: int, local_rank: int) -> str:
        return Template(self._logs.prefix).safe_substitute(
            role_name=self._config.role,
            rank=str(rank),
            local_rank=str(local_rank),
            hostname=socket.gethostname(),
        )

    def begin(self) -> None:
        """Show what the workers write from now on, in a thread: a log file may stall.

        If there is none to be had, it is shown at the end.
        """
        if any(not console.idle for console in self._consoles.values()):
            self._thread = begin_thread("outlets", self._pump)

    def end(self, within_s: float) -> None:
        """Show what is left to show, and wait for that, `within_s` at most."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(within_s)
        elif any(not console.idle for console in self._consoles.values()):
            self._pump()

    def _pump(self) -> None:
        while not self._ending.wait(LOOK_S):
            for console in self._consoles.values():
                console.pump()
        for console in self._consoles.values():
            console.pump(last=True)
