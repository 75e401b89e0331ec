"""The journal of a node that does not coordinate: the run as its own workers tell it.

The coordinator's journal may be lost with its machine. What passes through a launcher anyway, what
its workers say and are told, is enough for a journal of its own: no message is sent for it. Its
records of steps are parts (`step.part`): what the replicas of this node have put into the sum, and
how many microbatches the vote of all has counted in it. Whoever reads the journals of several nodes
joins the parts, and believes the coordinator's records first (`recoverrun.reports.joined_account`).
"""

from collections.abc import Iterable
from dataclasses import replace

from rendezvous.coordinator.beginning import introduction
from rendezvous.coordinator.first_step import proved
from rendezvous.coordinator.guarantees import Promises
from rendezvous.coordinator.losses import Loss
from rendezvous.coordinator.members import changed
from rendezvous.coordinator.notices import Notices
from rendezvous.coordinator.step_log import StepBook
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Committed, Decision, Message, Notice, Topology, Verdict
from rendezvous.protocol.records import PART, Json, Record
from rendezvous.protocol.views import View


class NodeBook:
    """Machine for the workers `ranks` of one node in one attempt."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._own = frozenset(ranks)
        self._live = self._own  # those of them that take part
        self._layout: Layout | None = None
        self._view: View | None = None
        self._trial: dict[int, int] = {}  # slot that takes part again -> its first step
        self._book = StepBook(part=True)
        self._promises = Promises()
        self._notices = Notices()

    def said(self, message: Message, now: float) -> list[Record]:
        """One of our workers has said so, at monotonic time `now` (seconds)."""
        match message:
            case Topology():
                return self._learn(message)
            case Verdict(rank=rank) if rank in self._own:
                self._promises.hear(message)
                record = self._promises.statement(self._own)
                return [] if record is None else [_part(record)]
            case Notice(event="promise.weaken" | "promise.steer"):
                words = self._notices.record(message)
                return [] if words is None else [_part(words)]
            case Committed(rank=rank) if rank in self._live:
                records = self._prove(message.step)
                if self._book.enter(message, now, live=len(self._live)):
                    records += self._write(final=False)
                return records
            case _:
                return []

    def heard(self, message: Message, now: float) -> list[Record]:
        """One of our workers is told so."""
        match message:
            case View():
                return self._change(message, now)
            case Decision(verdict="redo" | "commit"):
                self._book.decide(message, now)
            case _:
                pass
        return []

    def close(self) -> list[Record]:
        """Our workers are about to end, and say no more."""
        return self._write(final=True)

    def _learn(self, topology: Topology) -> list[Record]:
        if self._layout is not None:
            return []
        try:
            self._layout = Layout(topology.replicas)
        except ValueError:
            return []  # It is for the coordinator to say so.
        live = self._layout.slots
        if self._view is not None and self._view.live:
            live = self._view.live
        self._book.open(topology.generation, live)
        return [_part(introduction(topology.strategy, self._layout))]

    def _change(self, view: View, now: float) -> list[Record]:
        """Another generation; all of our workers are told of it, each by itself."""
        before = self._view
        if before is not None and view.generation <= before.generation:
            return []
        self._view = view
        self._live = self._own.intersection(view.live_ranks)
        self._book.open(view.generation, view.live)
        self._book.join(self._own.intersection(view.joined), view.from_step)
        if before is None or self._layout is None:
            return []
        left = sorted(set(before.live_ranks) - set(view.live_ranks))
        slots = sorted({self._layout.slot(rank) for rank in left})
        losses = [self._loss(slot, view, now) for slot in slots]
        for loss in losses:
            self._book.lose(loss)
            self._trial.pop(loss.slot, None)
        records = [loss.record(self._layout) for loss in losses]
        records.append(changed(view, left, f"generation {view.generation}"))
        back = sorted({self._layout.slot(rank) for rank in view.joined})
        if self._live <= set(view.joined):
            self._book.forget(back)  # Nobody here has seen how they were made good.
        self._trial |= dict.fromkeys(back, view.from_step)
        records += [_return(slot, self._layout, view.from_step) for slot in back]
        return [*map(_part, records), *self._write(final=False)]

    def _prove(self, step: int) -> list[Record]:
        """One of our workers has committed `step`: all have voted in it."""
        if self._layout is None:
            return []
        slots = [slot for slot, first in self._trial.items() if first <= step]
        firsts = {slot: self._trial.pop(slot) for slot in sorted(slots)}
        return [_part(proved(slot, self._layout, first)) for slot, first in firsts.items()]

    def _loss(self, slot: int, view: View, now: float) -> Loss:
        assert self._layout is not None, "slots are known"
        ranks = self._layout.replicas[slot]
        root = next((rank for rank in view.losses if rank in ranks), ranks[0])
        return Loss(
            slot=slot,
            root_rank=root,
            code=-9,
            generation=view.generation,
            lost_at=now,
            failed_at=now,
            detected_s=0.0,
            error="",
            reason=f"rank {root} is lost, as the coordinator told this node",
        )

    def _write(self, *, final: bool) -> list[Record]:
        if self._layout is None:
            return []
        records = self._book.write(self._layout, self._live, final=final)
        # That our own ranks hold the same parameters says nothing of all.
        return [_part(record) for record in records if not record.event.startswith("digest.")]


def _return(slot: int, layout: Layout, step: int) -> Record:
    fields: dict[str, Json] = {
        "slot": slot, "ranks": [*sorted(layout.replicas[slot])], "step": step,
    }  # fmt: skip
    return Record("replica.return", f"replica {slot} takes part again from step {step} on", fields)


def _part(record: Record) -> Record:
    """The record as what one node knows; that of a step says so by its name."""
    if record.event == "step.part":
        return record
    return replace(record, fields={**record.fields, PART: True})
