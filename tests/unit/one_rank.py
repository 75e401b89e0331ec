"""The machine of one rank, and what it is told: what tests of it have in common."""

from ft_collectives.step.machine import StepMachine
from ft_collectives.step.step_events import (
    Accumulated,
    Decided,
    Effect,
    Event,
    Reduced,
    Send,
    Settled,
    Voted,
)
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Decision, Report
from rendezvous.protocol.views import Identity, View

LAYOUT = Layout(((0,), (1,), (2,)))
FIRST = View(generation=1, live=(0, 1, 2), live_ranks=(0, 1, 2), losses=())
SECOND = View(generation=2, live=(0, 1), live_ranks=(0, 1), losses=(2,))
THIRD = View(generation=3, live=(0,), live_ranks=(0,), losses=(1,))
COUNTS = (1,) * 6  # three slots, two microbatches


class Rank:
    """Rank 0 with two microbatches a step."""

    def __init__(self, view: View = FIRST, layout: Layout = LAYOUT) -> None:
        self.machine = StepMachine(rank=0, layout=layout, view=view)
        self.now = 0.0

    def feed(self, *events: Event) -> list[Effect]:
        effects: list[Effect] = []
        for event in events:
            effects = self.machine.step(event, self.now)
        return effects

    def home(self) -> list[Effect]:
        """Run the home microbatches and come to the commit point."""
        first, second = Accumulated(identity=(0, 0)), Accumulated(identity=(0, 1))
        return self.feed(first, second, Settled(microbatches=2))

    def commit(self, generation: int = 1) -> list[Effect]:
        return self.feed(
            Reduced(generation=generation), Voted(generation=generation, counts=COUNTS)
        )


def redo(generation: int, *targets: Identity, step: int = 0) -> Decided:
    return Decided(decision=Decision(
        generation=generation, step=step, verdict="redo", held=0, targets=((0, targets),)
    ))  # fmt: skip


def commit(generation: int, held: int, step: int = 0) -> Decided:
    return Decided(decision=Decision(
        generation=generation, step=step, verdict="commit", held=held, targets=()
    ))  # fmt: skip


def said(effects: list[Effect]) -> Report:
    (report,) = (e.message for e in effects if isinstance(e, Send))
    assert isinstance(report, Report)
    return report
