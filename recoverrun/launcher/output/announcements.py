"""The announcements of a launcher on the console: its start, then each loss and its recovery.

What is said of a loss is a function of the journal's records, so that the console never knows what
the journal does not.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from recoverrun.config.run_config import RunConfig
from recoverrun.launcher.output.return_news import ReturnNews
from recoverrun.reports.recoveries import recovery_in, step_complete
from recoverrun.text import in_order, named_signals, plural, ranges, ranks, sanitize, span
from recoverrun.version import __version__
from rendezvous.journal.reader import Entry
from rendezvous.protocol.formation_messages import Restart, Start
from rendezvous.protocol.records import INHERITED, PART, Json, Record

FOLD_S = 0.2
"""How long a loss is held back for others like it."""

LOSS_LINES = 3

KEPT = 64
"""Records of another node's losses that are kept."""

_DIGITS = re.compile(r"\d+")

PLAIN = str.maketrans({"✖": "x", "⇄": "~", "·": "-", "✓": "ok"})


def waiting(config: RunConfig) -> str:
    """The line of a job of several nodes, before it is complete."""
    return f"recoverrun {__version__} · {config.nnodes} nodes meet at {config.endpoint}"


def still_waiting(config: RunConfig, *, known: bool, mute: str, left_s: float) -> str:
    """For a launcher that waits; `known`: somebody at the endpoint answers, and waits for more;
    `mute`: what listens there, "" if nobody does.
    """
    where, left = config.endpoint, f"{left_s:.0f} s left"
    if known:
        return f"joined at {where}, which waits for the other nodes, {left}"
    if mute:
        return f"waiting for the first node: what listens at {mute} says nothing yet, {left}"
    return f"waiting for the first node: nobody answers at {where} yet, {left}"


def unknown_name(names: Sequence[str], *, yet_s: float = 0.0) -> str:
    """Hosts have no address; with `yet_s` they may come to have one, within so many seconds."""
    shown = ", ".join(names)
    if not yet_s:
        return f"no address is known for {shown}: is the name right?"
    return f"waiting for the first node: no address is known for {shown} yet, {yet_s:.0f} s left"


def unanswered_name(names: Sequence[str], *, left_s: float = 0.0) -> str:
    """The name service has said nothing about hosts; with `left_s` it is waited for so long."""
    words = f"the name service does not answer for {', '.join(names)}"
    return f"waiting for the first node: {words} yet, {left_s:.0f} s left" if left_s else words


def spare(config: RunConfig) -> str:
    """The line of a launcher that came when the job was complete."""
    return f"the job has all of its {plural(config.nnodes, 'node')}: this one waits as a spare"


def _starting(config: RunConfig, start: Start, run_dir: Path, pids: Mapping[int, int]) -> str:
    """Version, ranks, their processes, run directory, and what is out of the ordinary."""
    here = ranges(range(start.first_rank, start.first_rank + start.nproc))
    place = f"node {start.node_rank} of {start.nnodes}: ranks {here} of {start.world_size}"
    parts = [
        f"recoverrun {__version__}",
        plural(start.nproc, "rank") if start.nnodes == 1 else place,
        _processes(pids) if pids else "in the place of a node that was lost",
        str(run_dir),
        *([f"OMP_NUM_THREADS={config.threads}"] if config.threads else []),
        *(["recovery off"] if not config.protect else []),
        *([f"faults {config.inject}"] if config.inject else []),
    ]
    return " · ".join(parts)


def started(pids: Mapping[int, int]) -> str:
    """The processes of an attempt after the first."""
    return f"{ranks(pids)}: {_processes(pids)}"


def begun(config: RunConfig, start: Start, run_dir: Path, pids: Mapping[int, int]) -> str:
    """The line at a start: a job, another attempt, or nothing yet where others had the place."""
    again = start.attempt and not start.succeeds
    return started(pids) if again else _starting(config, start, run_dir, pids)


def starts_again(restart: Restart) -> str:
    """The line at the end of an attempt: why, and whence the next one goes on."""
    why, attempt = sanitize(named_signals(restart.reason)), f"(attempt {restart.attempt})"
    if restart.back < 0:
        return f"⟲ {why}: all ranks start again {attempt}"
    return f"⟲ {why}: all ranks go back to step {restart.back:,} {attempt}"


def _processes(pids: Mapping[int, int]) -> str:
    """The pids in the order of ranks, so that a person can look at one, or kill it."""
    return f"{'pid' if len(pids) == 1 else 'pids'} {in_order(pids[rank] for rank in sorted(pids))}"


class Announcer:
    """Tells the user what the journal is told; losses of one moment in as few lines as can be."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` prints a line."""
        self._say = say
        self._held: list[Record] = []  # losses, since `_held_at`
        self._held_at = 0.0
        self._returns = ReturnNews()
        self._told_elsewhere = 0  # lost replicas, by the coordinator on another node
        self._forming = False  # all begin again, and nobody has a place yet
        self._left: list[Record] = []  # the node that left last, and how its loss was made good
        self.losses = 0  # lost replicas of which this node tells at the end

    def hear(self, record: Record, now: float) -> None:
        """A record is written at monotonic time `now` (seconds)."""
        news = self._returns.heard(_as_read(record), now)
        lost = record.event == "replica.lost"
        if record.fields.get(PART) and not record.fields.get(INHERITED):
            self._told_elsewhere += lost
            self._keep(record)
            return  # The coordinator's node says it.
        if lost:
            self._held_at = self._held_at if self._held else now
            self._held.append(record)
            self.losses += 1
            return
        if record.event == "leader.succeed":
            self.losses += self._told_elsewhere  # Nobody else sums the run up.
            self._tell_former(record)
        if record.event == "snapshot.plan" and record.fields["attempt"]:
            self.losses += 1  # of all replicas
        line = sanitize(news) or announcement(record)
        if record.event == "node.lost" and self._forming:
            line = _node_loss(record)  # of no replica
        self._forming = record.event == "job.restart" or (
            self._forming and record.event != "node.join"
        )
        if line or record.event in ("run.end", "job.restart"):
            self.tick(float("inf"))
        if line:
            self._say(line)

    def _keep(self, record: Record) -> None:
        """Keep what the coordinator's node says: it may be the one that leaves."""
        if record.event == "node.lost":
            self._left = [record]
        elif self._left and record.event in ("replica.lost", "recovery.done"):
            self._left = [*self._left[:KEPT], record]

    def _tell_former(self, takeover: Record) -> None:
        """Tell of the former coordinator's leave: no other console that goes on does."""
        left, self._left = self._left, []
        if not left or left[0].fields["name"] != takeover.fields.get("former"):
            return
        name, gone = str(left[0].fields["name"]), _list(left[0].fields["ranks"])
        why = f"node {name} is lost: {left[0].reason.removeprefix(f'{name}: ')}"
        losses = [
            replace(one, reason=why)
            for one in left[1:]
            if one.event == "replica.lost" and any(r in gone for r in _list(one.fields["ranks"]))
        ]
        done = [announcement(one) for one in left[1:] if one.event == "recovery.done"]
        self.tick(float("inf"))
        # Where its loss was not made good by then, whoever takes over tells it.
        for line in [*folded_losses(losses), *done] if losses and done else ():
            self._say(line)

    def tick(self, now: float) -> None:
        """Time passed: tell the losses that were held back long enough."""
        if self._held and now >= self._held_at + FOLD_S:
            held, self._held = self._held, []
            for line in folded_losses(held):
                self._say(line)


def folded_losses(losses: Sequence[Record]) -> list[str]:
    """One line for all replicas that were lost alike; at most `LOSS_LINES`."""
    alike: dict[str, list[Record]] = {}
    for loss in losses:
        alike.setdefault(_DIGITS.sub("#", loss.reason), []).append(loss)
    groups = list(alike.values())
    lines = [_loss(group) for group in groups[:LOSS_LINES]]
    rest = sum(map(len, groups[LOSS_LINES:]))
    return [*lines, f"✖ {plural(rest, 'more replica')} lost for other reasons"] if rest else lines


def _loss(group: Sequence[Record]) -> str:
    """The line for replicas that were lost alike."""
    slots = ranges(slot for one in group if isinstance(slot := one.fields["slot"], int))
    gone = ranks(r for one in group for r in _list(one.fields["ranks"]) if isinstance(r, int))
    why = named_signals(group[0].reason)
    if len(group) == 1:
        return sanitize(f"✖ replica {slots} ({gone}) is lost: {why}")
    first = "" if len({one.reason for one in group}) == 1 else ", the first"
    return sanitize(f"✖ replicas {slots} ({gone}) are lost, all alike{first}: {why}")


def _node_loss(record: Record) -> str:
    """The line for a node that has left."""
    name = str(record.fields["name"])
    gone = ranks(rank for rank in _list(record.fields["ranks"]) if isinstance(rank, int))
    why = named_signals(record.reason.removeprefix(f"{name}: "))
    return sanitize(f"✖ node {name} ({gone}) is lost: {why}")


def announcement(record: Record, ascii_only: bool = False) -> str:
    """The line for the console, or "" for what only the journal needs to know."""
    line = named_signals(_line(record))
    return sanitize(line.translate(PLAIN) if ascii_only else line)


def _line(record: Record) -> str:
    fields = record.fields
    match record.event:
        case "promise.state":
            return _promise(str(fields["promise"]), record.reason)
        case "replica.lost":
            return _loss([record])
        case "recovery.done":
            return f"✓ {step_complete(recovery_in(_as_read(record)))}"
        case "job.wait":
            return record.reason
        case "straggler.find" | "straggler.clear":
            return f"! {record.reason}"
        case "hang.suspect" | "hang.clear" | "hang.quiet" | "hang.part" | "hang.stick":
            return f"! {record.reason}"
        case "snapshot.restored":
            away = span(_as_read(record).number("away_ms") / 1000)
            since = "the loss" if fields["attempt"] else "the start, from a former run's snapshot"
            return f"✓ {record.reason}, {away} after {since}"
        case "drain.begin":
            return f"⏏ {record.reason}: a snapshot is written, then the job ends"
        case "snapshot.degraded":
            return f"! {record.reason}"
        case "leader.succeed":
            place = fields.get("place")
            asked = f" (recoverrun status --rdzv-endpoint {place})" if place else ""
            return f"⇄ {record.reason}{asked}"
        case "notice.give" if fields.get("event") == "snapshot.pace":
            return record.reason
        case "notice.give":
            rank = fields["rank"]
            return f"! {record.reason}" if rank == -1 else f"! rank {rank}: {record.reason}"
        case _:
            return ""


def _as_read(record: Record) -> Entry:
    """The entry that a reader of the journal makes of a record, but for time and node."""
    fields, reason = record.fields, record.reason
    return Entry(ts=0, mono=0, seq=0, node="", event=record.event, reason=reason, fields=fields)


def _promise(promise: str, reason: str) -> str:
    if promise == "exact-samples":
        return "protected: lost microbatches are computed from the same samples (exact-samples)"
    if promise == "equal-count":
        return f"protected, but lost microbatches get other samples (equal-count): {reason}"
    if promise == "rollback":
        return f"a loss sends all ranks back to the newest snapshot (rollback): {reason}"
    return f"! not protected, a loss ends this run: {reason}"


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
