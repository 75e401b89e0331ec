"""`recoverrun status [RUN]`: who is alive, how far the run is, what was lost.

A reader of journal files and nothing else, so neither it nor its end can disturb the job. It works
on any machine that sees the run directory, and opens no socket there. From elsewhere, with
--rdzv-endpoint, it reads copies of the journals that the job's launchers send.
"""

import os
import select
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from recoverrun.cli.completion import run_names
from recoverrun.config import option_values
from recoverrun.launcher.network.addresses import written
from recoverrun.launcher.network.key_lookup import KeyedEndpoints, find_key
from recoverrun.launcher.network.remote_journals import RemoteJournals
from recoverrun.reports.find_run import RunNotFound, find_run
from recoverrun.reports.hang_stacks import HangStack, hang_stacks
from recoverrun.reports.screen_style import glyphs
from recoverrun.reports.stack_page import stack_page
from recoverrun.reports.status import Status, Watch, to_json
from recoverrun.reports.status_fit import fitted
from recoverrun.reports.status_lines import plain_lines
from rendezvous.journal.reader import RunTail
from rendezvous.protocol.exit_codes import ExitCode

PERIOD_S = 0.5
PROMPT_LINES = 2
LEAVE = (b"q", b"Q", b"\x03", b"\x04")
STACKS = (b"s", b"S")


@dataclass(frozen=True, slots=True)
class StatusConfig:
    run_dir: Path
    once: bool
    json: bool
    steps: int = 0  # that there will be, 0 unknown
    remote: RemoteJournals | None = None  # whose copies are in `run_dir`
    shown: str = ""  # in the place of `run_dir`, to people


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("status")(status)


def status(
    *,
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]",
            help="Run directory, name or job number below ./runs, or latest.",
            autocompletion=run_names,
        ),
    ] = "latest",
    once: Annotated[
        bool, typer.Option("--once", help="Print the present state and leave.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and leave.")] = False,
    steps: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Steps that the script will make, to tell the time left."
        ),
    ] = 0,
    endpoint: Annotated[
        str,
        typer.Option(
            "--rdzv-endpoint",
            metavar="HOST:PORT,...",
            help="Ask the launchers of the job at this endpoint: for machines without its files.",
        ),
    ] = "",
    key_file: Annotated[
        str, typer.Option(metavar="FILE", help="Key of that job; none: it has no key.")
    ] = "",
) -> None:
    """Show live who is alive in a run, its step and its losses."""
    if endpoint:
        asked = StatusConfig(run_dir=Path(), once=once, json=json, steps=steps)
        raise typer.Exit(_from_afar(endpoint, key_file, asked))
    try:
        run_dir = find_run(run, Path.cwd())
    except RunNotFound as error:
        typer.echo(f"recoverrun status: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from None
    config = StatusConfig(run_dir=run_dir, once=once, json=json, steps=steps)
    raise typer.Exit(show(config, Console()))


def _from_afar(text: str, key_file: str, asked: StatusConfig) -> int:
    """The status of the job that meets at this endpoint. Raises RecoverrunError."""
    endpoints = option_values.endpoints(text, option_values.C10D_PORT)
    keyring = find_key(KeyedEndpoints(endpoints, key_file), os.environ)
    with tempfile.TemporaryDirectory(prefix="recoverrun-") as copies:
        remote = RemoteJournals(endpoints, keyring, Path(copies))
        try:
            shown = f"the launchers at {written(endpoints)}"
            here = replace(asked, run_dir=Path(copies), remote=remote, shown=shown)
            return show(here, Console())
        finally:
            remote.close()


def show(config: StatusConfig, console: Console) -> int:
    """Print or follow; returns the exit code."""
    follower = Follower(config.run_dir, config.steps, config.remote, config.shown)
    now = follower.read()
    if config.json:
        typer.echo(to_json(now))
        return 0
    if not console.is_terminal:
        typer.echo("\n".join(plain_lines(now)))
        return 0
    if config.once or now.exit_code is not None or not sys.stdin.isatty():
        console.print(fitted(now, glyphs(console), console, height=_left(console)))
        return 0
    return follow(follower, console)


class Follower:
    """Reads what is new in the journals and knows the wall clock, which the screen must not."""

    def __init__(
        self,
        run_dir: Path,
        steps: int = 0,
        remote: RemoteJournals | None = None,
        shown: str = "",
    ) -> None:
        """`remote` brings what is new in `run_dir`, which is `shown` to people in other words."""
        self.run_dir = run_dir
        self._shown = shown or str(run_dir)
        self._remote = remote
        self._tail = RunTail(run_dir)
        self._steps = steps
        self._run = ""
        self._watch = Watch(run_dir=self._shown, steps=steps)

    @property
    def over(self) -> bool:
        """True if nothing new will ever come, as far as launchers have to send it."""
        return self._remote is not None and self._remote.over

    def read(self) -> Status:
        """The present state. Raises RecoverrunError if launchers are asked and none answers."""
        if self._remote is not None:
            self._remote.fetch()
        new = self._tail.poll()
        if self._tail.run != self._run:  # Another one has begun in the same directory.
            self._run = self._tail.run
            self._watch = Watch(run_dir=self._shown, steps=self._steps)
        self._watch.add(new)
        self._watch.unreadable = self._tail.places
        now = time.time()
        return self._watch.status(now, time.localtime(now).tm_gmtoff)

    def stacks(self, status: Status) -> tuple[HangStack, ...]:
        """The stacks of ranks that stood still in the run of `status`."""
        if self._remote is None:
            return hang_stacks(self.run_dir, run=self._run)
        if not self._remote.stacks:
            self._remote.stacks = True
            self._remote.fetch()
        return hang_stacks(self.run_dir, run=self._run)


def follow(follower: Follower, console: Console) -> int:
    """The live screen, until the run ends or a key says so. The last frame stays in the scroll."""
    signs = glyphs(console)
    now, stacks = follower.read(), False
    with keys(sys.stdin.fileno()), Live(console=console, auto_refresh=False, screen=True) as live:
        try:
            while now.exit_code is None and not follower.over:
                page = fitted(now, signs, console, height=console.height, live=True)
                if stacks:
                    page = stack_page(follower.stacks(now), signs, height=console.height)
                live.update(page, refresh=True)
                key = pressed(sys.stdin.fileno(), PERIOD_S)
                if key in LEAVE:
                    break
                stacks ^= key in STACKS
                now = follower.read()
        except KeyboardInterrupt:
            pass  # Ctrl-C is one of the ways to leave.
    console.print(fitted(now, signs, console, height=_left(console)))
    if follower.over and now.exit_code is None:
        sentence = "recoverrun status: the launchers have ended; postmortem of the run tells how"
        typer.echo(sentence, err=True)
    return 0


def _left(console: Console) -> int:
    """Lines for a screen that is to stay in sight above the next prompt."""
    return max(1, console.height - PROMPT_LINES)


@contextmanager
def keys(fd: int) -> Iterator[None]:
    """Single keys without echo, and the terminal as it was afterwards."""
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def pressed(fd: int, timeout_s: float) -> bytes:
    """One key, or b"" after `timeout_s`; an input that has ended counts as ctrl-d."""
    ready, _, _ = select.select([fd], [], [], timeout_s)
    return (os.read(fd, 1) or b"\x04") if ready else b""
