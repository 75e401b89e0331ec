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

from ft_collectives import instep
from rendezvous import coordinator, gathering, membership, quota, steps


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` becomes `new` in the function `path` of `module`; `caught_by` names checkers."""

    name: str
    module: ModuleType
    path: str  # "function" or "Class.method"
    old: str
    new: str
    caught_by: tuple[str, ...]


MUTANTS = (
    Mutant(
        "reports of the generation before are believed", coordinator,
        "Coordinator._next_generation",
        "self.book.open(self.generation, self.members.live)",
        "self.gathering.reports.update(reports)\n"
        "    self.book.open(self.generation, self.members.live)",
        (),
    ),
    Mutant(
        "no fence on generations", coordinator, "Coordinator._fenced",
        "if not isinstance(message, Report | PeerFault):", "if True:", (),
    ),
    Mutant(
        "a decision before everybody has reported", coordinator, "Coordinator._gathered",
        "len(reports) < len(running) or ", "", (),
    ),
    Mutant(
        "an ended rank is waited for", membership, "Membership.running",
        "self.live_ranks - self.finished.keys()", "self.live_ranks", (),
    ),
    Mutant(
        "a hint throws the ended ranks out", coordinator, "Coordinator._hint",
        "{fault.reason}\", [])", "{fault.reason}\", self.members.ended)", (),
    ),
    Mutant(
        "a mate that was killed is a loss of its own", coordinator, "Coordinator._exit",
        "if rank not in self.members.live_ranks:", "if rank in self.members.finished:", (),
    ),
    Mutant(
        "commit when only some hold the sums", gathering, "held_by_all",
        "held.pop() if len(held) == 1 else 0", "max(held)", (),
    ),
    Mutant(
        "nobody catches up", gathering, "catch_ups",
        "if report.step < newest and not told:", "if False:", (),
    ),
    Mutant("nobody levels", gathering, "levels", "if lacking and not told:", "if False:", ()),
    Mutant(
        "a view is said once", coordinator, "Coordinator._expire",
        "if rank not in gathering.reports", "if False", (),
    ),
    Mutant(
        "a decision is said once", coordinator, "Coordinator._report",
        "if answer is not None:", "if False:", (),
    ),
    Mutant(
        "a report is said once", instep, "InStep._say",
        "self._now + RESEND_AFTER_S if waiting else", "", (),
    ),
    Mutant(
        "shares ignore what is done", quota, "share_out",
        "(load, replica) for", "(0, replica) for", (),
    ),
    Mutant(
        "an identity is dealt out twice", quota, "share_out",
        "todo[start : start + counts[replica]]", "todo[start : start + counts[replica] + 1]", (),
    ),
    Mutant(
        "standing extras in spite of a surprise", instep, "InStep._advance",
        "self.joined if self.surprised else self.extras()", "self.extras()", (),
    ),
    Mutant(
        "a surprised rank reduces", instep, "InStep._advance",
        "if self.surprised:", "if False:", (),
    ),
    Mutant(
        "a view does not stop a reduction", instep, "InStep._view",
        'self.state in ("reducing", "voting")', "False", (),
    ),
    Mutant(
        "a vote of an old generation counts", instep, "InStep._vote",
        'generation != self.view.generation or self.state != "voting"',
        'self.state not in ("voting", "asking")', (),
    ),
    Mutant(
        "a reduction of an old generation counts", instep, "InStep._reduce",
        'generation != self.view.generation or self.state != "reducing"',
        'self.state not in ("reducing", "asking")', (),
    ),
    Mutant(
        "a report is final too early", instep, "InStep.report",
        'self.state in ("open", "computing")', 'self.state == "computing"', (),
    ),
    Mutant(
        "held sums outlive a redo", instep, "InStep._decide",
        "self.planned_in = self.view.generation\n        self.reduced_in = 0",
        "self.planned_in = self.view.generation", (),
    ),
    Mutant(
        "a plan outlives its step", instep, "InStep._apply", "self.plan = None", "pass", (),
    ),
    Mutant(
        "credit outlives its step", instep, "InStep._apply", "self.done = []", "pass", (),
    ),
    Mutant(
        "decisions are not fenced by step", instep, "InStep._decide",
        "decision.generation != self.view.generation or decision.step != self.step_index",
        "decision.generation != self.view.generation", (),
    ),
    Mutant(
        "decisions are not fenced by generation", instep, "InStep._decide",
        "decision.generation != self.view.generation or decision.step != self.step_index",
        "decision.step != self.step_index", (),
    ),
    Mutant(
        "a late starter thinks that all know its view", instep, "InStep.__init__",
        "self.planned_in = FIRST_GENERATION", "self.planned_in = view.generation", (),
    ),
    Mutant(
        "a view older than the topology has no slots", instep, "InStep.__init__",
        "view if view.live else _with_slots(view, layout)", "view", (),
    ),
    Mutant(
        "a late statement opens a written step again", steps, "StepBook.enter",
        "if step > self.written:", "if True:", (),
    ),
    Mutant(
        "what the dead did is credited to home slots", steps, "_line",
        "planned.get(identity, identity[0])", "identity[0]", (),
    ),
    Mutant(
        "a generation closes no step", coordinator, "Coordinator._next_generation",
        "*self._write_up(),", "", (),
    ),
    Mutant(
        "commit spares the ended only after they left", coordinator, "Coordinator._settle",
        "if held:", "if held and not self.members.ended:", (),
    ),
)  # fmt: skip

BEFORE = {
    "reports of the generation before are believed": "reports = getattr(self.gathering, "
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
    changed: object = _rewritten(mutant, function)
    changed = property(changed) if isinstance(original, property) else changed  # type: ignore[arg-type]
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
    modules = (coordinator, gathering, instep, membership, quota, steps)
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
