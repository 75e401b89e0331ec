"""`recoverrun inject`: run a job, kill ranks by a schedule, and say what it cost."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from recoverrun.config.given_options import Options
from recoverrun.config.options import read, takes_value
from recoverrun.fault_injection.comparison import phase_table, return_table, verdict_table
from recoverrun.fault_injection.trial import Trial, launch
from recoverrun.fault_injection.verdict import Point, faults, faults_point, ledger_point
from recoverrun.text import ASCII, UNICODE, encodes, span
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.fault_schedule import (
    ScheduledKill,
    ScheduleError,
    expand,
    parse,
    render,
    require_returns,
    require_snapshots,
)

OWN = ("--kill", "--pace", "--random", "--seed", "--steps", "--ranks", "--run-dir", "--directory")

KILL_HELP = (
    "Who dies when: r3@step:12:reduce (phases forward, backward, reduce, vote, between, redo); "
    "with --snapshot-every also snapshot, parity and restore, keeper3@ and node3@ (those of rank "
    "3), and all@step:12; "
    "of one that comes back also r3@return:PHASE (prologue, ready, receive, wind, place, "
    "or of its first step) and r0@welcome:PHASE as others do (hold, send). May be given several "
    "times, or joined by commas."
)

CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""What inject does not know belongs to the launcher, and all after the script to the script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectConfig:
    kills: tuple[ScheduledKill, ...]
    command: tuple[str, ...]  # options of the launcher, the script, its arguments
    directory: Path
    pace_ms: int = 0


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("inject", context_settings=CONTEXT)(inject)


def _count(words: str) -> Any:
    return typer.Option(metavar="N", min=0, help=words)


def inject(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="[RECOVERRUN OPTIONS] SCRIPT [ARGS]...",
            help="The job, as it would follow `recoverrun`.",
            show_default=False,
        ),
    ],
    *,
    kill: Annotated[
        list[str] | None,
        typer.Option("--kill", metavar="SCHEDULE", help=KILL_HELP, show_default=False),
    ] = None,
    pace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            max=900,
            help="Seconds that a step takes at least while a replica is away.",
        ),
    ] = 0.0,
    random: Annotated[int, _count("This many kills at random.")] = 0,
    seed: Annotated[int, _count("Makes --random repeatable.")] = 0,
    steps: Annotated[int, _count("Steps that the script makes; --random needs it.")] = 0,
    ranks: Annotated[int, _count("Size of the world; else taken from --nproc-per-node.")] = 0,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            "--directory",
            metavar="DIR",
            help="Where the run leaves its journal.",
            show_default="runs/inject/TIME",
        ),
    ] = None,
) -> None:
    """Run a job, kill ranks by a schedule, and say what it cost.

    Exits with the code of the run, or with 85 if a step had other microbatches than its own.
    """
    # An option that nobody knows is told as such, before any other lack.
    options = read(command, os.environ)
    try:
        text = ",".join(kill or [])
        kills = _kills(text, command, count=random, seed=seed, steps=steps, ranks=ranks)
        _require(kills, options)
    except ScheduleError as error:
        raise typer.BadParameter(str(error), param_hint="--kill / --random") from error
    config = InjectConfig(
        kills=kills,
        command=tuple(command),
        directory=directory or Path("runs", "inject", time.strftime("%Y%m%d-%H%M%S")),
        pace_ms=round(1000 * pace),
    )
    raise typer.Exit(run(config, Console(highlight=False)))


def _require(kills: Sequence[ScheduledKill], options: Options | None) -> None:
    """Raise ScheduleError for a kill of what this job does not have."""
    returns, every = (True, "") if options is None else (options.returns, options.snapshot_every)
    require_returns(kills, returns=returns)
    require_snapshots(kills, snapshots=every not in ("", "0"))


def own_first(words: Sequence[str]) -> list[str]:
    """Inject's own options to the front: people mix them with those of the launcher.

    What follows the script is the script's. Raises RecoverrunError.
    """
    mine: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        side = mine if name in OWN else others
        side.append(word)
        if rest and (not equals if side is mine else takes_value(word)):
            side.append(rest.pop(0))
    return [*mine, *others, *rest]


def _kills(
    text: str, command: Sequence[str], *, count: int, seed: int, steps: int, ranks: int
) -> tuple[ScheduledKill, ...]:
    """The kills that the options ask for. Raises ScheduleError."""
    if count:
        text = ",".join(part for part in (text, f"random:{seed}:{count}") if part)
    if not text:
        raise ScheduleError("give one of them, for example --kill r1@step:12:reduce")
    world = ranks or world_of(command)
    if "random:" not in text:
        return parse(text) if not world else expand(text, world=world, steps=steps or 1 << 30)
    if not steps:
        raise ScheduleError("kills at random need --steps, the number of steps of the script")
    if not world:
        raise ScheduleError("kills at random need --ranks or a number for --nproc-per-node")
    return expand(text, world=world, steps=steps)


def world_of(command: Sequence[str]) -> int:
    """The size of the world as the launcher's options give it; 0 where they leave it open."""
    sizes = {"--nproc-per-node": 1, "--nnodes": 1}
    words = list(command)
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, _, joined = word.replace("_", "-").partition("=")
        if name in sizes:
            value = joined or following
            sizes[name] = int(value) if value.isdecimal() else 0
    return sizes["--nproc-per-node"] * sizes["--nnodes"]


def run(config: InjectConfig, console: Console) -> int:
    """Run the job, print what became of the kills, return the exit code."""
    glyphs = UNICODE if encodes(console.encoding) else ASCII
    config.directory.mkdir(parents=True, exist_ok=True)
    trial = launch(
        config.command,
        run_dir=config.directory,
        inject=render(config.kills, pace=config.pace_ms),
        on_line=lambda line: console.print(line, markup=False, soft_wrap=True),
    )
    points = verdict(config, trial)
    console.print()
    if trial.history.recoveries:
        console.print(phase_table(trial.history.recoveries, glyphs))
        console.print()
    if ways := trial.history.returns.backs:
        console.print(return_table(ways, glyphs))
        console.print()
    console.print(verdict_table(points, glyphs))
    console.print(f"journal: {config.directory}", soft_wrap=True)
    if trial.exit_code:
        return trial.exit_code
    uncounted = trial.goes_back and trial.proof.verdict == "unproved"
    right = uncounted or trial.proof.verdict == "proved"
    return ExitCode.DONE if right else ExitCode.INVARIANT


def verdict(config: InjectConfig, trial: Trial) -> list[Point]:
    """The findings of the run."""
    absorbed = faults(config.kills, trial.history).absorbed
    worst = max((recovery.total_ms for recovery in trial.history.recoveries), default=0.0)
    points = [faults_point(config.kills, trial.history), ledger_point("the run", trial)]
    points += [Point(held=True, text=str(way)) for way in trial.ways_back]
    if absorbed:
        points.append(Point(held=True, text=f"worst recovery {span(worst / 1000)}"))
    if trial.exit_code:
        points.append(Point(held=False, text=f"exit code {trial.exit_code}"))
    return points
