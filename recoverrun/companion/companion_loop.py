"""The companion's loop: it waits for the run directory, follows the journal, and hands events out.

It ends with its launcher, whose end it sees as the end of its standard input.
"""

import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from recoverrun.companion.companion_order import CompanionOrder, from_json
from recoverrun.companion.outlets import CommandOutlet, EventOutlet, PostOutlet
from recoverrun.companion.told_events import TellingNode, ToldEvent
from recoverrun.errors import RecoverrunError
from recoverrun.text import plural
from rendezvous.journal.reader import RunTail

if TYPE_CHECKING:
    from recoverrun.companion.span_outlet import SpanOutlet

LOOK_S = 0.5
FINISH_S = 8.0
"""Seconds for what the last events of a run have started, all outlets together: then the launcher
still finds this process alive to end a command that hangs.
"""

LOG = "events.log"
READ_BYTES = 4096


def follow(launcher: int, fd: int) -> None:
    """Carry out the launcher's orders on `fd`, an order and a directory, until the launcher with
    this pid ends.
    """
    words = _words(fd, 2)
    if len(words) < 2:
        return  # The launcher has ended before there was a run.
    order, run_dir = from_json(words[0].decode()), Path(os.fsdecode(words[1]))
    outlets, end = _outlets(order, run_dir)
    stop_serving = _serve(order, run_dir)
    spans = _spans(order, run_dir)
    tail, node, alive = RunTail(run_dir), TellingNode(launcher), True
    while True:
        entries = tail.poll(last=not alive)
        for told in node.events(entries):
            for classes, outlet in outlets:
                if told.kind in classes:
                    outlet.put(told)
        if spans is not None:
            spans.add(entries, run=tail.run, leads=node.leads)
        if not alive:
            break
        ready, _, _ = select.select([fd], [], [], LOOK_S)
        alive = not (ready and not os.read(fd, READ_BYTES))
    until = time.monotonic() + FINISH_S
    whole = [outlet.finish(max(0.0, until - time.monotonic())) for _, outlet in outlets]
    if spans is not None:
        whole.append(spans.finish(max(0.0, until - time.monotonic()), leads=node.leads))
    end()
    stop_serving()
    dropped = sum(outlet.dropped for _, outlet in outlets) + (spans.dropped if spans else 0)
    if dropped or not all(whole):
        lost = [f"{plural(dropped, 'event')} could not be passed on"] if dropped else []
        late = [] if all(whole) else ["the command or post of the last event did not end in time"]
        print(f"recoverrun: {'; '.join(lost + late)}", file=sys.stderr)


def _spans(order: CompanionOrder, run_dir: Path) -> "SpanOutlet | None":
    if not order.otlp:
        return None
    from recoverrun.companion.span_outlet import SpanOutlet  # Only for this: it is large.

    return SpanOutlet(order.otlp, run_dir, run_dir / LOG)


def _words(fd: int, count: int) -> list[bytes]:
    """The first words said on `fd`, each with a zero behind it; fewer if it ends before."""
    said = b""
    while said.count(b"\0") < count:
        more = os.read(fd, READ_BYTES)
        if not more:
            break
        said += more
    return said.split(b"\0")[:-1]


def _outlets(
    order: CompanionOrder, run_dir: Path
) -> tuple[list[tuple[tuple[str, ...], EventOutlet[ToldEvent]]], Callable[[], None]]:
    """The outlets with their classes, and how to end what they have started."""
    found: list[tuple[tuple[str, ...], EventOutlet[ToldEvent]]] = []
    command = CommandOutlet(order.command, run_dir / LOG)
    if order.command:
        found.append((order.classes, EventOutlet("recoverrun-command", command.deliver)))
    if order.notify_url:
        post = PostOutlet(order.notify_url, run_dir / LOG)
        classes = order.classes or ("loss", "hang", "restart", "end")
        found.append((classes, EventOutlet("recoverrun-post", post.deliver)))
    return found, command.end


def _serve(order: CompanionOrder, run_dir: Path) -> Callable[[], None]:
    """Serve metrics if that is wanted; how to end it."""
    if order.metrics is None:
        return lambda: None
    from recoverrun.metrics.exposition import Meter, serve  # Only for this: it is large.

    try:
        end = serve(order.metrics, Meter(run_dir).series)
    except RecoverrunError as error:
        print(f"recoverrun: {error}", file=sys.stderr)
        return lambda: None
    print(f"recoverrun: metrics at http://{order.metrics}/metrics", file=sys.stderr)
    return end
