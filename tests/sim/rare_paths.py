"""Rare paths that a history takes: whoever changes the plans sees what is not reached any more."""

from collections import Counter

from ft_collectives.step.step_events import (
    Decided,
    Discarded,
    Effect,
    Event,
    Settled,
    Tick,
    Viewed,
    Voted,
)
from rendezvous.protocol.arrival_messages import Arrival, Held, Ready
from rendezvous.protocol.messages import Decision, Message, Report
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import View


class RarePaths:
    """Those of one history, counted by name in `coverage`."""

    def __init__(self, coverage: Counter[str]) -> None:
        self.coverage = coverage
        self._undecided = False  # a view was sent and no redo decided in it
        self._redoing = -1  # the step of the newest redo
        self._invited = 0
        self._returned = 0

    def loss(self, written: set[int]) -> None:
        """A replica is lost; steps that are `written` have their line in the journal."""
        self.coverage["loss while gathering"] += self._undecided
        redoing = self._redoing >= 0 and self._redoing not in written
        self.coverage["loss while redoing"] += redoing

    def fed(self, event: Event, effects: list[Effect], state: str) -> None:
        """The machine of a worker was told so, and is in this state now."""
        match event:
            case Voted() if not effects:
                self.coverage["vote of an old generation"] += 1
            case Decided() if not effects:
                self.coverage["decision that came too late"] += 1
            case Viewed() if effects and state == "computing":
                self.coverage["view while computing extras"] += 1
            case Tick() if effects:
                self.coverage["report said again"] += 1
            case Discarded():
                self.coverage["gradients dropped"] += 1
            case Settled() if state == "computing":
                self.coverage["standing extras"] += 1
            case _:
                pass

    def told(self, message: Message, cause: Message | None, announced: bool) -> None:
        """The coordinator says so to a rank, because of `cause` or of the time."""
        match message, cause:
            case View(), None:
                self.coverage["view said again"] += not announced
            case View(), Ready():
                self.coverage["view told to a newcomer that missed it"] += 1
            case View(), Held():
                self.coverage["view told to one who is held"] += bool(message.joined)
            case Arrival(), None:
                self.coverage["invited again"] += 1
            case View(), Report():
                self.coverage["view told to one who missed it"] += 1
            case Decision(verdict="redo"), Report() if not announced:
                self.coverage["decision said again"] += 1
            case Decision(verdict=verdict), _ if verdict not in ("commit", "redo"):
                self.coverage[f"decision to {verdict}"] += 1
            case _:
                pass

    def record(self, record: Record) -> None:
        """The coordinator has written this line."""
        match record.event:
            case "view.change":
                self._undecided = True
                live = record.fields["live"]
                assert isinstance(live, list), f"live: {live}"
                self.coverage["down to one replica"] += len(live) == 1
                self.coverage["view without a loss"] += not record.fields["lost_ranks"]
            case "decision.make":
                verdict = record.fields["verdict"]
                catches_up = "committed elsewhere" in record.reason
                self.coverage["catch-up" if catches_up else f"decision: {verdict}"] += 1
                self._undecided = verdict != "redo"
                step = record.fields["step"]
                if verdict == "redo" and isinstance(step, int):
                    self._redoing = step
            case "replica.start" | "replica.ready" | "replica.invite":
                self.coverage[record.event] += 1
                self._invited += record.event == "replica.invite"
            case "replica.return":
                self.coverage[record.event] += 1
                self._returned += 1
                self.coverage["a replica comes back twice"] += self._returned == 2
            case "recovery.done":
                self.coverage["recovery.done"] += 1
            case _:
                pass
