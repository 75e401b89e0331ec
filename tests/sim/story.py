"""Stories: a job and its faults in a few readable lines, and the trace that must follow.

A story is a text file: commands, a line of dashes, the trace. Commands are

    # words for the reader
    job replicas=3 shards=1 microbatches=2 steps=3 [min=1] [kill_s=0.02] [remains_lost=1]
        [again_s=0.1]            lost replicas come back: so long until a new process has its hooks
    kill r2@step:1:reduce        SIGKILL for these ranks (several: r2,r4) at a moment of the first
    kill r2@step:1:reduce by r0  ... when rank 0 is there
    flake r1@step:1:vote         its collectives fail, nobody dies
    pause r1@step:1:vote for=1   it stops for so many seconds, alive
    lose 1 Decision to r1        the first such message to it is lost
    hold vote in=1 on=0,1        in generation 1 votes complete on these ranks only (also: bucket)

Moments are those of `plan.POINTS`. The trace is the journal as a person reads it: seconds, event,
reason, and the fields that tell the story.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.sim.history import History, Outcome
from tests.sim.plan import Fault, FaultKind, Plan
from tests.sim.plane import Stage

RULE = "-" * 80
SHOWN = {
    "replica.lost": ("slot", "generation"),
    "view.change": ("generation", "live"),
    "decision.make": ("generation", "verdict", "targets"),
    "step.commit": ("quota", "redone"),
    "recovery.done": ("slots", "step", "redone"),
    "replica.return": ("slot", "step"),
    "run.end": ("exit_code",),
}
QUIET = ("sim.deliver", "sim.point", "worker.hello")
AIM = re.compile(r"(r\d+(?:,r\d+)*)@step:(\d+):([a-z]+)")


def commands(path: Path) -> list[str]:
    return path.read_text().split(RULE)[0].strip().splitlines()


def tell(lines: list[str]) -> tuple[Outcome, list[str]]:
    """Run a story; returns its outcome and its trace."""
    settings: dict[str, str] = {}
    faults: list[Fault] = []
    stages: list[Stage] = []
    drops: list[tuple[str, int, int]] = []
    for line in lines:
        word, *rest = line.split() or ["#"]
        match word:
            case "#":
                continue
            case "job":
                settings = dict(pair.split("=") for pair in rest)
            case "kill" | "crash" | "flake" | "pause" | "node":
                faults.append(_fault(word, rest))
            case "lose":
                drops.append((rest[1], int(rest[0]), int(rest[3][1:])))
            case "hold":
                values = dict(pair.split("=") for pair in rest[1:])
                ranks = frozenset(int(rank) for rank in values["on"].split(",") if rank)
                stages.append(Stage(rest[0], int(values["in"]), ranks))
            case _:
                raise ValueError(f"no such command: {line}")
    history = History(_plan(settings, tuple(faults), tuple(drops)), verbose=True)
    history.plane.stages = stages
    outcome = history.run()
    return outcome, list(_trace(history))


def _plan(
    settings: dict[str, str], faults: tuple[Fault, ...], drops: tuple[tuple[str, int, int], ...]
) -> Plan:
    replicas, steps = int(settings["replicas"]), int(settings["steps"])
    return Plan(
        seed=0,
        replicas=replicas,
        shards=int(settings.get("shards", 1)),
        counts=(int(settings["microbatches"]),) * steps,
        ends=(steps,) * replicas,
        min_replicas=int(settings.get("min", 1)),
        kill_s=float(settings.get("kill_s", 0.02)),
        contexts_lost=float(settings.get("remains_lost", 0.0)),
        returns="again_s" in settings,
        again_s=float(settings.get("again_s", 0.0)),
        split=0.0,
        shown=0.0,
        heal_at=60.0,
        faults=faults,
        drops=drops,
    )


def _fault(kind: FaultKind, words: list[str]) -> Fault:
    aim = AIM.fullmatch(words[0])
    if aim is None:
        raise ValueError(f"{kind} {words[0]}: no moment like r2@step:1:reduce")
    ranks = tuple(int(rank[1:]) for rank in aim[1].split(","))
    by = words[words.index("by") + 1] if "by" in words else f"r{ranks[0]}"
    for_s = next((float(word[4:]) for word in words if word.startswith("for=")), 0.0)
    return Fault(
        kind=kind, ranks=ranks, trigger=int(by[1:]), step=int(aim[2]), point=aim[3], for_s=for_s
    )


def _trace(history: History) -> Iterator[str]:
    for mono, event, reason, fields in history.told:
        if event in QUIET:
            continue
        shown = " ".join(f"{name}={_short(fields[name])}" for name in SHOWN.get(event, ()))
        yield f"{mono:7.3f}  {event:<14} {reason}{'  | ' if shown else ''}{shown}"


def _short(value: object) -> str:
    return str(value).replace(" ", "").replace("'", "")
