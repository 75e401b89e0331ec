"""The report of a failed run: cause on line 1, at most 12 lines, next command last.

A pure function of the journal, so that every node that sees the same journal says the same.
"""

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from recoverrun.reports import figures
from recoverrun.reports.history import History, history
from recoverrun.reports.named_cause import RootCause
from recoverrun.reports.postmortem import STOPPED, meaning
from recoverrun.reports.root_cause import (
    LossCause,
    also,
    blind_spot,
    evidence,
    losses_of,
    naming,
    root_of,
)
from recoverrun.text import named_signals, plural, ranks, sanitize, span
from rendezvous.journal.reader import RunLog
from rendezvous.protocol.exit_codes import SIGNALLED, ExitCode

LINES = 12
COLUMNS = 100

OUR_VERDICTS = STOPPED | {ExitCode.NEVER_FORMED, ExitCode.HANG, ExitCode.PARTITIONED}
"""Ends that are not the fault of a rank: the reason of the end is the cause."""

HANDED_DOWN = (SIGNALLED + signal.SIGHUP, SIGNALLED + signal.SIGQUIT)
"""Without a rank to blame, these were sent to the launcher by somebody, too."""

NOTHING_YET = "no snapshot was safe yet: there was nothing to go back to"

FRAMES = 3
"""The innermost calls that led to an error; the whole traceback is on the console or in the log."""

_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib/python3|^<")
"""Files of libraries, and code without a file."""

_FRAME = re.compile(r'\s*File "(?P<path>.+)", line (?P<line>\d+), in (?P<name>.+)')


def failure_report(
    log: RunLog,
    exit_code: int,
    run_dir: Path,
    *,
    traceback: Sequence[str] = (),
    stderr: Path | None = None,
) -> str:
    """The text for a run that left with `exit_code`; "" for 0. The caller chooses the stream.

    `traceback` is that of the root rank, as lines, and `stderr` its file, if it has one.
    """
    if exit_code == 0:
        return ""
    facts, blind = history(log), blind_spot(log)
    root = root_of(facts, blind=blind)
    lines = [_cause(facts, root, exit_code), *where_from(traceback)]
    if root is not None and exit_code not in OUR_VERDICTS:
        lines += _details(root)
        if facts.promise == "rollback" and facts.deaths and not any(log.of("snapshot.safe")):
            lines.append(NOTHING_YET)
    lines += _before(losses_of(facts, blind=blind), figures.returned(facts))
    if facts.commits or any(log.of("node.join")):  # The coordinating node knows if there were any.
        lines += _progress(facts, exit_code)
    if meaning(exit_code):
        lines.append(f"exit {exit_code}: {meaning(exit_code)}")
    elif facts.deaths and root is not None:
        lines += _own_code(facts, root, exit_code)
    where = sanitize(str(run_dir), 160)
    if stderr is not None:
        lines.append(f"log: {stderr}")
    lines.append(f"journal: {where}")
    lines.append(f"next: recoverrun postmortem {where}")
    kept = lines if len(lines) <= LINES else [*lines[: LINES - 2], *lines[-2:]]
    head, *rest = (sanitize(line, COLUMNS * 2) for line in kept)
    return "\n".join([head, *(f"  {line}" for line in rest)])


def without_journal(reason: str, exit_code: int, run_dir: Path) -> str:
    """The text for a run whose journal somebody has removed: all that the launcher still knows."""
    verb = "STOPPED" if exit_code in STOPPED else "FAILED"
    lines = [f"{verb}: {named_signals(reason) or f'exit code {exit_code}'}"]
    if meaning(exit_code):
        lines.append(f"exit {exit_code}: {meaning(exit_code)}")
    lines.append(f"no report: the journal of this run in {run_dir} was removed")
    return "\n  ".join(sanitize(line, COLUMNS * 2) for line in lines)


def where_from(traceback: Sequence[str]) -> list[str]:
    """The innermost calls of a traceback in one line, and the source of one in another: of the
    script's own innermost call, which is among them, however deep in a library the error was.
    """
    frames = [(at, match) for at, line in enumerate(traceback) if (match := _FRAME.match(line))]
    if not frames:
        return []
    own = [at for at, (_, m) in enumerate(frames) if not _INSTALLED.search(m["path"])]
    place = own[-1] if own else len(frames) - 1
    calls = [f"{Path(m['path']).name}:{m['line']} {m['name']}" for _, m in frames]
    innermost = calls[-FRAMES:]
    if place < len(frames) - FRAMES:
        innermost = [calls[place], "…", *calls[1 - FRAMES :]]
    last = frames[place][0] + 1
    source = traceback[last].strip() if last < len(traceback) else ""
    shown = [f"at {' → '.join(innermost)}"]
    return [*shown, f"> {source}"] if source and set(source) - set("^~") else shown


def _cause(facts: History, root: RootCause | None, exit_code: int) -> str:
    """Line 1: what happened, to whom."""
    reasons = {end.code: end.reason for end in reversed(facts.ends) if end.code and end.reason}
    reason = reasons.get(exit_code) or next(reversed(reasons.values()), "")
    broken = facts.breaks[0] if facts.breaks else None
    if exit_code == ExitCode.INVARIANT and broken is not None:
        return f"FAILED: {broken.text('invariant', 'an invariant')} is broken: {broken.reason}"
    if exit_code in OUR_VERDICTS:
        verb = "STOPPED" if exit_code in STOPPED else "FAILED"
        return f"{verb}: {reason or meaning(exit_code)}"
    if exit_code in HANDED_DOWN and root is None:
        return f"STOPPED: {reason or f'exit code {exit_code}'}"
    end = naming(facts)
    if end is not None and end.reason:
        # The coordinator's sentence, so that every node begins with the same line.
        told = not end.root_node or f"node {end.root_node} " in end.reason
        return f"FAILED: {named_signals(end.reason)}{'' if told else f' (node {end.root_node})'}"
    if root is not None:
        where = f"node {root.node}, " if root.node not in ("", "?") else ""
        slot = facts.slot_of(root.rank) if root.rank >= 0 else -1
        replica = f"replica {slot}, " if slot >= 0 else ""
        place = f" ({where}{replica}pid {root.pid})" if root.pid > 0 else ""
        return f"FAILED: {root.what}{place}"
    return f"FAILED: {reason or f'exit code {exit_code}, and the journal shows no fault'}"


def _details(root: RootCause) -> list[str]:
    label = "cause unknown" if root.confidence == "unknown" else "why first"
    lines = [f"{label}: {root.why_first}  [{root.confidence}]"]
    if also(root):
        lines.append(also(root))
    folded = f"; folded: {plural(root.cascades, 'error')} that came of it"
    if root.victims:
        verb = "was" if len(root.victims) == 1 else "were"
        tail = folded if root.cascades else ""
        lines.append(f"{ranks(root.victims)} {verb} healthy and went down with it{tail}")
    if evidence(root):
        lines.append(f"evidence: {evidence(root)}")
    return lines


def _before(losses: Sequence[LossCause], returned: int) -> list[str]:
    """The losses that the run had survived until then, and how many of them came back."""
    survived = [loss for loss in losses if loss.recovery is not None]
    if not survived:
        return []
    named = ", ".join(
        f"{ranks([loss.root.rank])} at step {loss.recovery.step}"
        for loss in survived[:3]
        if loss.recovery is not None
    )
    more = f" and {len(survived) - 3} more" if len(survived) > 3 else ""
    back = f"; {plural(returned, 'replica')} came back" if returned else ""
    return [f"before that {plural(len(survived), 'loss')} survived: {named}{more}{back}"]


def _progress(facts: History, exit_code: int) -> list[str]:
    if not facts.commits and facts.promise == "rollback":
        return []  # Nobody votes on steps there, and some were done.
    if not facts.commits:
        verb = "stopped" if exit_code in (*STOPPED, *HANDED_DOWN) else "failed"
        return ["no step was committed" if facts.replicas else f"it {verb} before the first step"]
    step = figures.newest_step(facts)
    lasted = span(max(0.0, facts.latest - facts.began))
    return [f"last committed step {step}, after {lasted}"]


def _own_code(facts: History, root: RootCause, exit_code: int) -> list[str]:
    """The true exit code of the script where ours hides it."""
    death = next((d for d in facts.deaths if d.rank == root.rank and d.ts == root.ts), None)
    if death is None or death.signal or death.code in (0, exit_code):
        return []
    return [f"exit {exit_code}: the script's own code was {death.code}, which is reserved here"]
