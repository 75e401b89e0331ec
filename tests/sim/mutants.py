"""Planted bugs: one line of a production machine is changed while a history runs.

A simulator that does not notice a mutant is not testing that line. Each names the text it replaces,
so a mutant whose line has gone is an error and not a test that passes for nothing.
"""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType

from ft_collectives.step import machine
from rendezvous.consensus import campaign, configuration, electorate, paxos
from rendezvous.coordinator import (
    arrivals,
    beginning,
    coordinator,
    fence,
    first_step,
    gather,
    generations,
    members,
    standing,
    step_decisions,
    step_log,
    takeover,
    undone_work,
)
from rendezvous.protocol import donors, quota


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` becomes `new` in the function `path` of `module`.

    `checker` is what notices it, for example in the history of `seed`.
    """

    name: str
    module: ModuleType
    path: str  # "function" or "Class.method"
    old: str
    new: str
    checker: str
    seed: int


MUTANTS = (
    Mutant(
        "reports of the generation before are believed", generations,
        "Generations._next_generation",
        "self.arrivals.began(self.now)",
        "self.decisions.gathering.reports.update(reports)\n"
        "    self.arrivals.began(self.now)",
        "stop", 1,
    ),
    Mutant(
        "no fence on generations", fence, "Fence._stands",
        "if message.rank not in", 'return "heard"\n    if message.rank not in', "INV-6", 55,
    ),
    Mutant(
        "a decision before everybody has reported", step_decisions, "StepDecisions.decide",
        "len(reports) < len(running) or ", "", "assert", 0,
    ),
    Mutant(
        "an ended rank is waited for", members, "Membership._sort",
        "self.live_ranks - self.finished.keys()", "self.live_ranks", "INV-6", 58,
    ),
    Mutant(
        "a hint throws the ended ranks out", coordinator, "Coordinator._hint",
        "(words, [])", "(words, self.members.ended)", "assert", 5,
    ),
    Mutant(
        "a mate that was killed is a loss of its own", coordinator, "Coordinator._exit",
        "if not member:", "if rank in self.members.finished:", "INV-7", 1,
    ),
    Mutant(
        "commit when only some hold the sums", gather, "held_by_all",
        "held.pop() if len(held) == 1 else 0", "max(held)", "stop", 37,
    ),
    Mutant(
        "what ended a rank is executed without a trial", gather, "redo",
        "members.suspects(step)", "()", "suspects", 1,
    ),
    Mutant(
        "what a rank was at in another step is suspect", members, "Membership.suspects",
        "if of == step", "if of != step", "suspects", 1,
    ),
    Mutant(
        "nobody catches up", gather, "catch_ups",
        "if report.step < newest and not told:", "if False:", "INV-6", 3,
    ),
    Mutant(
        "nobody levels", gather, "levels",
        "if lacking and not told:", "if False:", "INV-6", 716,
    ),
    Mutant(
        "a view is said once", step_decisions, "StepDecisions.resend",
        "if rank not in gathering.reports", "if False", "INV-6", 396,
    ),
    Mutant(
        "a decision is said once", coordinator, "Coordinator._report",
        "if (answer := gathering.answer(report)) is not None:", "if False:", "INV-6", 29,
    ),
    Mutant(
        "a report is said once", machine, "StepMachine._say",
        "self._now + RESEND_AFTER_S if waiting else", "", "INV-6", 34,
    ),
    Mutant(
        "shares ignore what is done", quota, "share_out",
        "(load, replica) for", "(0, replica) for", "quota", 97,
    ),
    Mutant(
        "an identity is dealt out twice", quota, "share_out",
        "start + counts[replica]]", "start + counts[replica] + 1]", "stop", 1,
    ),
    Mutant(
        "standing extras in spite of a surprise", machine, "StepMachine._advance",
        "self.joined if self.plan_is_stale else self.extras()", "self.extras()", "INV-6", 105,
    ),
    Mutant(
        "a surprised rank reduces", machine, "StepMachine._advance",
        "if self.plan_is_stale:", "if False:", "stop", 4,
    ),
    Mutant(
        "a view does not stop a reduction", machine, "StepMachine._view",
        'self.state in ("reducing", "voting")', "False", "INV-6", 1,
    ),
    Mutant(
        "a vote of an old generation counts", machine, "StepMachine._vote",
        'generation != self.view.generation or self.state != "voting"',
        'self.state not in ("voting", "asking")', "INV-5", 72,
    ),
    Mutant(
        "a reduction of an old generation counts", machine, "StepMachine._reduce",
        'generation != self.view.generation or self.state != "reducing"',
        'self.state not in ("reducing", "asking")', "INV-6", 482,
    ),
    Mutant(
        "a report is final too early", machine, "StepMachine.report",
        'self.state in ("open", "computing")', 'self.state == "computing"', "stop", 8,
    ),
    Mutant(
        "held sums outlive a redo", machine, "StepMachine._decide",
        "self.planned_in = self.view.generation\n        self.reduced_in = 0",
        "self.planned_in = self.view.generation", "ledger", 1464,
    ),
    Mutant(
        "a plan outlives its step", machine, "StepMachine._apply",
        "self.plan = None", "pass", "INV-1", 243,
    ),
    Mutant(
        "credit outlives its step", machine, "StepMachine._apply",
        "self.done = []", "pass", "assert", 0,
    ),
    Mutant(
        "decisions are not fenced by step", machine, "StepMachine._decide",
        "decision.generation != self.view.generation or decision.step != self.step_index",
        "decision.generation != self.view.generation", "stop", 49,
    ),
    Mutant(
        "decisions are not fenced by generation", machine, "StepMachine._decide",
        "decision.generation != self.view.generation or decision.step != self.step_index",
        "decision.step != self.step_index", "INV-5", 5,
    ),
    Mutant(
        "a view older than the topology has no slots", machine, "StepMachine.__init__",
        "view if view.live else _with_slots(view, layout)", "view", "assert", 0,
    ),
    Mutant(
        "a late statement opens a written step again", step_log, "StepBook.enter",
        "if step > self.written:", "if True:", "ledger", 126,
    ),
    Mutant(
        "what the dead did is credited to home slots", step_log, "_line",
        "planned.get(identity, identity[0])", "identity[0]", "ledger", 1125,
    ),
    Mutant(
        "one rank's word is enough to begin", beginning, "Beginning.serves",
        "all(rank in self.promises.verdicts", "any(rank in self.promises.verdicts", "start", 58,
    ),
    Mutant(
        "a loss is made good before recovery can begin", generations, "Generations._lose",
        "if layout is None or not self.beginning.serves(layout, rest):",
        "if layout is None:", "start", 2,
    ),
    Mutant(
        "what torch reduced is a beginning", coordinator, "Coordinator._account",
        "committed.step > 0", "committed.step >= 0", "start", 2,
    ),
    Mutant(
        "a step that all voted in is no beginning", coordinator, "Coordinator._account",
        "committed.step > 0", "False",
        "stop", 194,
    ),
    Mutant(
        "the lost are to promise too", generations, "Generations._lose",
        "self.beginning.serves(layout, rest)",
        "self.beginning.serves(layout, self.members.live_ranks)", "stop", 63,
    ),
    Mutant(
        "a failure before all could begin is never heeded", coordinator, "Coordinator._hint",
        "if self.starting and", "if False and", "INV-6", 77,
    ),
    Mutant(
        "a hint from before the beginning deafens to later ones", coordinator, "Coordinator._hint",
        "if self.protected:", "if self.protected and hint:", "INV-6", 58,
    ),
    Mutant(
        "each hint is the first one", beginning, "Beginning.overdue",
        "self._hinted_at + DEATH_WAIT_S", "now + DEATH_WAIT_S", "INV-6", 77,
    ),
    Mutant(
        "commit spares the ended only after they left", step_decisions, "StepDecisions._settle",
        "if held:", "if held and not self._members.ended:", "stop", 27168,
    ),
)  # fmt: skip

TAKEOVER = (
    Mutant(
        "generations of two terms meet", takeover, "first_generation",
        "(term - 1) * TERM_GENERATIONS + 1", "1", "assert", 4,
    ),
    Mutant(
        "decisions are not remembered", takeover, "_take_over",
        "coordinator.book.decide(message, coordinator.now)", "pass", "ledger", 41,
    ),
    Mutant(
        "who takes over goes on although not all could begin", coordinator,
        "Coordinator._resume", "if self.starting:", "if False:", "start", 69,
    ),
    Mutant(
        "promises are not remembered", standing, "Memory.said",
        "case Topology() | Verdict() | Farewell()", "case Topology() | Farewell()", "stop", 6,
    ),
    Mutant(
        "ends are not remembered", standing, "Memory.said",
        "case Topology() | Verdict() | Farewell() | Exited() | ContextBuffer() | Broken():",
        "case Topology() | Verdict() | ContextBuffer() | Broken():", "INV-6", 9,
    ),
    Mutant(
        "what was committed is not remembered", standing, "Memory.said",
        "self._steps[rank, step] = message", "pass", "ledger", 4,
    ),
    Mutant(
        "who came back is remembered to have ended", standing, "Memory.heard",
        "self._forget_former(message)", "pass", "INV-7", 7,
    ),
    Mutant(
        "a script that fails after the last step is forgiven", undone_work, "left_undone",
        "if failed:", "if False:", "stop", 146,
    ),
    Mutant(
        "what rank 0 had begun alone after the last step is forgiven", undone_work, "left_undone",
        "if led == leads", "if True", "stop", 1458,
    ),
)  # fmt: skip
"""Of a coordinator that goes on where another was lost; see `plan.draw_takeover`."""

ARRIVALS = (
    Mutant(
        "who knows of newcomers stops, whether others know or not", machine, "StepMachine._vote",
        "voted.invited == len(self.view.live_ranks)", "self.invited_in == generation", "INV-6", 32,
    ),
    Mutant(
        "others join by surprise", machine, "StepMachine._join_members",
        "self.planned_in = self.view.generation", "pass", "INV-6", 358,
    ),
    Mutant(
        "a view before all are held", arrivals, "Arrivals.held",
        "len(invitation.held) < len(self._members.running)", "False", "arrival", 3,
    ),
    Mutant(
        "an invitation outlives a view", arrivals, "Arrivals.began",
        "self._invitation = None", "pass", "assert", 751,
    ),
    Mutant(
        "half a replica is whole", arrivals, "Arrivals._is_whole", "return all(", "return any(",
        "assert", 5,
    ),
    Mutant(
        "nobody looks whether members have ended", arrivals, "Arrivals.advance",
        "self.awaited and protected and not self._members.ended", "self.awaited and protected",
        "arrival", 20,
    ),
    Mutant(
        "who is held waits on when a member has ended", coordinator, "Coordinator._finish",
        "came = self.arrivals.dismiss(words)", "pass", "arrival", 455,
    ),
    Mutant(
        "two invitations at once", arrivals, "Arrivals._invite",
        "self._invitation is not None or self.first_step.under_way", "self.first_step.under_way",
        "INV-6", 3,
    ),
    Mutant(
        "an invitation outlives who was invited", arrivals, "Arrivals._fail",
        "if self._invitation is not None and slot in self._invitation.slots:", "if False:",
        "assert", 3,
    ),
    Mutant(
        "an invitation is said once", arrivals, "Arrivals.expire",
        "effects=self._told(invitation)", "", "arrival", 768,
    ),
    Mutant(
        "a newcomer is not told again of its view", coordinator, "Coordinator._receive",
        "return [ToRank(rank=rank, message=self.view)]", "return []", "arrival", 605,
    ),
    Mutant(
        "a newcomer that hangs is waited for", first_step, "FirstStep.overdue",
        "now < deadline", "True", "storm", 600,
    ),
    Mutant(
        "a newcomer waits on when its donor is lost", donors, "may_tell",
        "donor in view.live_ranks", "True", "arrival", 278,
    ),
    Mutant(
        "members are invited while others gather", generations, "Generations._bring_back",
        "self.decisions.gathering is None", "True", "assert", 6,
    ),
    Mutant(
        "the lost who came back are lost still", generations, "Generations._return",
        "self.members.arrive(comes.ranks, comes.step)",
        "gone = set(self.members.gone)\n    self.members.arrive(comes.ranks, comes.step)\n"
        "    self.members.gone |= gone", "INV-6", 9,
    ),
)  # fmt: skip
"""Of lost replicas that come back; see `plan.draw_arrivals`."""

BLIND = (
    Mutant(
        "nobody looks at the counts of the vote", machine, "StepMachine._vote",
        "counts.count(self.layout.shards) != len(counts)", "False", "", 0,
    ),
    Mutant(
        "nobody compares the sums it holds", machine, "StepMachine._decide",
        "if self.reduced_in != decision.held:", "if False:", "", 0,
    ),
)  # fmt: skip
"""The machines' own last lines of defence, taken away to see that the checkers do not need them."""

BEFORE = {
    "reports of the generation before are believed": "reports = getattr(self.decisions.gathering, "
    "'reports', {})"
}
"""Statements that a mutant needs at the top of its function."""


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The production code with `mutant` in it."""
    *owner_names, name = mutant.path.split(".")
    owner: object = mutant.module
    for part in owner_names:
        owner = getattr(owner, part)
    original = vars(owner)[name]
    function = original.fget if isinstance(original, property) else original
    assert isinstance(function, FunctionType), f"{mutant.path} is not a function"
    rewritten = _rewritten(mutant, function)
    changed = property(rewritten) if isinstance(original, property) else rewritten
    places = [owner, *_borrowers(name, original)] if isinstance(owner, ModuleType) else [owner]
    for place in places:
        setattr(place, name, changed)
    try:
        yield
    finally:
        for place in places:
            setattr(place, name, original)


def _borrowers(name: str, original: object) -> list[ModuleType]:
    """Modules that imported a function by its name."""
    modules = (
        coordinator, fence, gather, generations, machine, members, quota, campaign, paxos,
        configuration, electorate, step_decisions, step_log, takeover,
    )  # fmt: skip
    return [module for module in modules if vars(module).get(name) is original]


def _rewritten(mutant: Mutant, function: FunctionType) -> FunctionType:
    source = textwrap.dedent(inspect.getsource(function)).removeprefix("@property\n")
    old = textwrap.dedent(mutant.old)
    found = source.count(old) or source.count(mutant.old.replace("\n        ", "\n    "))
    assert found == 1, f"{mutant.name}: {mutant.old!r} is {found} times in {mutant.path}"
    source = (
        source.replace(old, mutant.new)
        if old in source
        else source.replace(mutant.old.replace("\n        ", "\n    "), mutant.new)
    )
    before = BEFORE.get(mutant.name)
    if before:
        head, colon, body = source.partition(":\n")
        source = f"{head}{colon}    {before}\n{body}"
    space: dict[str, object] = {}
    exec(compile(source, f"<{mutant.name}>", "exec"), function.__globals__, space)
    changed = space[function.__name__]
    assert isinstance(changed, FunctionType), f"{changed} is not a function"
    return changed
