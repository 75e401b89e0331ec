"""`recoverrun demo`: the same training without and with losses, side by side, judged."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from recoverrun import version
from recoverrun.errors import RecoverrunError
from recoverrun.fault_injection.comparison import (
    back_table,
    happened,
    loss_picture,
    phase_table,
    return_table,
    step_table,
    verdict_table,
)
from recoverrun.fault_injection.trial import Trial, launch, step_of, stoppable
from recoverrun.fault_injection.verdict import (
    Comparison,
    Point,
    backs_points,
    exit_code,
    faults_point,
    ledger_point,
    returns_point,
    same_weights_point,
    weights_point,
    witness_point,
)
from recoverrun.reports.returns import is_back
from recoverrun.text import ASCII, UNICODE, ascii_only, encodes, plural, sanitize, span
from rendezvous.protocol.fault_schedule import (
    ScheduledKill,
    ScheduleError,
    expand,
    render,
    require_returns,
    require_snapshots,
)

RUN_TIMEOUT_S = 300.0
SLOWER = 3.0
"""How many times what the failure-free run took the other one may take, if that is longer."""

COMPARE_TIMEOUT_S = 60.0

STARTS = 2.0
"""Times what the failure-free run took to its first step: so long a lost replica has to be back."""

KILL_HELP = (
    "Who dies when: r3@step:12:reduce (phases forward, backward, reduce, vote, between, redo), "
    "r3@return:PHASE, r0@welcome:PHASE, with --snapshots all@step:12 or keeper@step:12 (see "
    "inject), or random:SEED:N. May be given several times."
)

LAST_STEPS = 3
"""So many it is to be there for."""

USUAL_PACE_S = 0.5
"""Where the log of a script does not say when it began to train."""

QUIET = {
    # One thread each: the ranks share a few cores, and a split sum would change with their number.
    "OMP_NUM_THREADS": "1",
    # Four ranks on the CPU make the same point on every machine.
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONWARNINGS": "ignore:Failed to initialize NumPy:UserWarning",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    kills: tuple[ScheduledKill, ...]
    steps: int
    replicas: int
    shards: int
    script: Path | None  # None: the template
    script_args: tuple[str, ...]
    directory: Path
    returns: bool = True
    snapshots: bool = False  # one replica, all ranks go back

    @property
    def every(self) -> int:
        """Steps from one snapshot to the next."""
        return max(1, self.steps // 10)

    def options(self, *, losses: bool) -> list[str]:
        """The options of the launcher."""
        if self.snapshots:
            return [f"--snapshot-every={self.every}"]
        return ["--return" if losses and self.returns else "--no-return"]

    @property
    def world(self) -> int:
        return self.replicas * self.shards

    def pace_s(self, start_s: float) -> float:
        """The least length of a step while a replica is away, so that it can come back in time."""
        last = max((kill.step for kill in self.kills), default=0)
        left = self.steps - 1 - last - LAST_STEPS
        if not self.returns or self.snapshots or left <= 0:
            return 0.0
        return STARTS * start_s / left if start_s else USUAL_PACE_S

    @property
    def command(self) -> list[str]:
        """Options of the launcher, the script and its arguments."""
        template = ["--steps", str(self.steps), "--shard-size", str(self.shards)]
        script = [str(self.script)] if self.script else [str(demo_script()), *template]
        return [f"--nproc-per-node={self.world}", *script, *self.script_args]


def demo_script() -> Path:
    """Return the training script that the demo runs: plain PyTorch, to copy and to change."""
    return Path(version.__file__).parent / "templates" / "gpt_hsdp.py"


def default_kill(world: int, steps: int, *, snapshots: bool = False) -> str:
    if snapshots:
        return f"all@step:{min(14, steps // 3 + 1)}"
    return f"r{world - 1}@step:{min(12, steps // 3)}:reduce"


def kills_of(
    texts: Sequence[str], world: int, steps: int, *, returns: bool, snapshots: bool
) -> tuple[ScheduledKill, ...]:
    """The kills that were asked for. Raises typer.BadParameter."""
    usual = default_kill(world, steps, snapshots=snapshots)
    try:
        kills = expand(",".join(texts or [usual]), world=world, steps=steps)
        require_returns(kills, returns=returns and not snapshots)
        require_snapshots(kills, snapshots=snapshots)
    except ScheduleError as error:
        raise typer.BadParameter(str(error), param_hint="--kill") from error
    return kills


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("demo")(demo)


def demo(
    *,
    script_args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Arguments for the script.", show_default=False),
    ] = None,
    kill: Annotated[
        list[str] | None,
        typer.Option(
            "--kill",
            metavar="SCHEDULE",
            help=KILL_HELP,
            show_default="last rank, in the reduce of step 12",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=3, help="Steps of the training.")] = 40,
    replicas: Annotated[int, typer.Option(metavar="N", min=2, help="Copies of the model.")] = 2,
    shards: Annotated[int, typer.Option(metavar="N", min=1, help="Ranks of each copy.")] = 2,
    script: Annotated[
        Path | None,
        typer.Option(
            metavar="SCRIPT", help="Train this script instead of the template.", show_default=False
        ),
    ] = None,
    returns: Annotated[
        bool, typer.Option("--return/--no-return", help="Let lost replicas come back.")
    ] = True,
    snapshots: Annotated[
        bool, typer.Option("--snapshots", help="Lose the only replica, and go back to a snapshot.")
    ] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where both runs leave their journals.",
            show_default="runs/demo-TIME",
        ),
    ] = None,
) -> None:
    """Train a small GPT without and with a killed replica that comes back; compare the two runs.

    Exits with 85 if they differ by more than the order of fp32 sums, with 1 if nobody can tell.
    """
    replicas = 1 if snapshots else replicas
    world = replicas * shards
    config = DemoConfig(
        kills=kills_of(kill or (), world, steps, returns=returns, snapshots=snapshots),
        steps=steps,
        replicas=replicas,
        shards=shards,
        script=script,
        script_args=tuple(script_args or ()),
        directory=directory or Path("runs", time.strftime("demo-%Y%m%d-%H%M%S")),
        returns=returns,
        snapshots=snapshots,
    )
    raise typer.Exit(show(config, Console(highlight=False)))


def show(config: DemoConfig, console: Console) -> int:
    """Run both trials, print what they show, return the exit code."""
    glyphs = UNICODE if encodes(console.encoding) else ASCII
    name = config.script.name if config.script else "a small GPT, HSDP"
    ranks = f"{plural(config.replicas, 'replica')} {glyphs.times} {config.shards} shards"
    title = f"recoverrun demo {glyphs.dot} {name} {glyphs.dot} {ranks} {glyphs.dot} CPU, gloo"
    console.print(title, style="bold")
    try:
        with _progress(console) as progress:
            reference = _trial(config, "failure-free", (), progress)
            if reference.exit_code:
                return _failed(console, "the failure-free run", reference)
            pace_s = config.pace_s(reference.start_s)
            within_s = max(RUN_TIMEOUT_S, SLOWER * reference.wall_s)
            faulted = _trial(
                config, "with losses", config.kills, progress, pace_s=pace_s, within_s=within_s
            )
        if faulted.exit_code:
            return _failed(console, "the run with losses", faulted)
        comparison = compare(config, reference, faulted)
    except RecoverrunError as error:
        console.print(f"{glyphs.bad} {error}", style="bold red")
        return error.exit_code
    points = verdict(config, reference, faulted, comparison)
    table = back_table if config.snapshots else step_table
    parts: list[RenderableType] = [table(reference, faulted, glyphs)]
    if faulted.history.recoveries:
        stories = [happened(recovery, glyphs) for recovery in faulted.history.recoveries]
        parts += ["\n".join(stories), phase_table(faulted.history.recoveries, glyphs)]
    if ways := faulted.history.returns.backs:
        sentences = "\n".join(map(is_back, ways))
        told = ascii_only(sentences) if glyphs is ASCII else sentences
        parts += [told, return_table(ways, glyphs)]
    columns = min(64, console.width - 14)
    curves = loss_picture(reference, faulted, columns=columns, ascii_only=glyphs is ASCII)
    parts += [curves, verdict_table(points, glyphs)]
    for part in parts:
        console.print()
        console.print(part)
    console.print()
    if pace_s:
        console.print(PACE.format(span(pace_s)), style="dim", soft_wrap=True)
    console.print(f"training script, 0 lines changed: {config.command[1]}", soft_wrap=True)
    console.print(f"journals: {config.directory}", soft_wrap=True)
    return exit_code(points)


PACE = "a step took {} at least while a replica was away, for it to be back before the end"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn(" {task.description:<13}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[faults]}"),
        console=console,
    )


def _trial(
    config: DemoConfig,
    name: str,
    kills: Sequence[ScheduledKill],
    progress: Progress,
    *,
    pace_s: float = 0.0,
    within_s: float = RUN_TIMEOUT_S,
) -> Trial:
    """One run; with `kills`, lost replicas come back if they are to."""
    task = progress.add_task(name, total=config.steps, faults=render(kills))

    def advance(line: str) -> None:
        step = step_of(line)
        if step is not None:
            progress.update(task, completed=step + 1)

    directory = config.directory / name.replace(" ", "-")
    directory.mkdir(parents=True, exist_ok=True)
    trial = launch(
        [*config.options(losses=bool(kills)), *config.command],
        run_dir=directory,
        inject=render(kills, pace=round(1000 * pace_s)),
        witness=_witness(directory),
        environment=QUIET,
        timeout_s=within_s,
        on_line=advance,
    )
    progress.update(task, completed=_steps(config, trial))
    progress.stop_task(task)
    return trial


def _steps(config: DemoConfig, trial: Trial) -> int:
    """The number of steps made: where nobody votes on them the script's log tells."""
    return len(trial.losses) if config.snapshots else trial.steps


def _witness(directory: Path) -> Path:
    witness = directory / "witness"
    witness.mkdir(exist_ok=True)
    return witness


def compare(config: DemoConfig, reference: Trial, faulted: Trial) -> Comparison | None:
    """Compare the weights in a process that may import torch; None where it cannot be done."""
    command = [sys.executable, "-m", "recoverrun.worker.tools.compare_weights"]
    command += [str(_witness(trial.run_dir)) for trial in (reference, faulted)]
    first = min((k.step for k in config.kills if k.when == "step"), default=reference.steps)
    steps = range(first, reference.steps)
    if all(step in reference.rates for step in steps):
        rates = ",".join(repr(reference.rates[step]) for step in steps)
        command += ["--terms", str(reference.proof.microbatches), "--rates", rates]
    try:
        with stoppable():
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPARE_TIMEOUT_S, check=True
            )
        return Comparison.from_json(json.loads(done.stdout))
    except (subprocess.SubprocessError, ValueError):
        return None


def verdict(
    config: DemoConfig, reference: Trial, faulted: Trial, comparison: Comparison | None
) -> list[Point]:
    """The findings of the two runs."""
    history = faulted.history
    made, expected = _steps(config, faulted), _steps(config, reference)
    steps = Point(held=made == expected, text=f"{made} of {plural(expected, 'step')} made")
    if config.snapshots:
        return [
            steps,
            faults_point(config.kills, history),
            *backs_points(faulted),
            witness_point(comparison, history),
            same_weights_point(comparison),
        ]
    return [
        ledger_point("failure-free", reference),
        ledger_point("with losses", faulted),
        steps,
        faults_point(config.kills, history),
        *([returns_point(history, faulted.notices)] if config.returns and history.losses else []),
        witness_point(comparison, history),
        weights_point(comparison, faulted),
    ]


def _failed(console: Console, name: str, trial: Trial) -> int:
    console.print(f"{name} failed with exit code {trial.exit_code}; its last lines:", style="red")
    for line in trial.tail:
        console.print(f"  {sanitize(line)}", markup=False)
    return trial.exit_code
