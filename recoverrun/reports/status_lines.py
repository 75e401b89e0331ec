"""A `Status` as plain lines, for a pipe or a log."""

from recoverrun.reports.goodput import goodput_line
from recoverrun.reports.screen_style import time_of_day
from recoverrun.reports.status import Status
from recoverrun.reports.status_screen import EVENTS, choose, progress, silence
from recoverrun.text import ascii_only, in_order, plural, ranks, sanitize, span


def plain_lines(status: Status) -> list[str]:
    """The same facts for a pipe or a log: no colour, no box, one fact a line, ASCII."""
    lines = [_summary(status)]
    if status.cause:
        lines.append(f"cause: {status.cause}")
    if status.silent_s:
        lines.append(f"silence: {silence(status)}")
    if status.promise:
        lines.append(f"promise: {status.promise} ({status.promise_reason})")
    if status.snapshots:
        lines.append(f"snapshots: {status.snapshots}")
    if status.pids and not status.replicas:
        pids = in_order(status.pids.values())
        lines.append(f"workers: {ranks(status.pids)}, pids {pids}")
    shown, folded = choose(status.replicas)
    for replica in shown:
        quota = replica.quota if replica.quota >= 0 else "?"
        coming = f"; {replica.coming}" if replica.coming else ""
        waited_for = f", {replica.waited_for}" if replica.waited_for else ""
        state = f"quota {quota}{waited_for}"
        state = state if replica.live else f"lost: {replica.note}{coming}"
        up = f"{replica.health.count('up')}/{len(replica.health)} shards up"
        who = [", ".join(replica.nodes) or "?", up]
        who += [f"pids {in_order(replica.pids)}"] if replica.pids else []
        lines.append(f"replica {replica.slot}: {', '.join(who)}, {state}")
    if folded:
        lines.append(f"... and {plural(len(folded), 'replica')} in order")
    for happening in status.happenings[-EVENTS:]:
        lines.append(f"{time_of_day(happening.ts, status.utc_offset_s)} {happening.text}")
    return [ascii_only(sanitize(line)) for line in lines]


def _summary(status: Status) -> str:
    parts = [f"{status.title or status.run_dir}: {status.phase}"]
    if status.idle_s and not status.silent_s:
        parts.append(f"no step for {span(status.idle_s)}")
    if status.exit_code is not None:
        parts.append(f"exit code {status.exit_code}")
    if status.replicas:
        parts.append(f"{status.live}/{len(status.replicas)} replicas")
    if status.last_step >= 0:
        of = f" of {status.of} ({progress(status)})" if status.of else ""
        parts.append(f"step {status.last_step}{of} in {span(status.step_ms / 1000)}")
        parts.append(f"{status.microbatches}/{status.total} microbatches")
        parts.append(f"{status.exact}/{status.steps} steps exact")
        parts.append(f"goodput {goodput_line(status.goodput).partition('  ')[0]}")
    if status.losses:
        back = f", {status.returned} back" if status.returned else ""
        parts.append(f"{status.losses} lost, {status.survived} survived{back}")
    return ", ".join(parts)
