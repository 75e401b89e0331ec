"""The proof by looks at a process that it will not go on by itself.

Being late proves nothing. A process that is stopped is certain. One that has computed nothing
between looks a second apart, while its stack stayed the same, waits for what does not come. One
that goes round in a loop that calls nothing waits in its own way. All others may still come, and
are given ten times as long.
"""

from dataclasses import dataclass, field
from typing import Literal

from rendezvous.protocol.hang_messages import FROZEN, REPLACED, Evidence, Stack

Proof = Literal["stopped", "still", "none"]

LOOKS = 3
LOOK_EVERY_S = 1.0

APART_S = LOOK_EVERY_S / 2
"""Looks that were answered within less count as one: a launcher that stood still answers all that
it was asked meanwhile at once."""

KEPT_LOOKS = 8
"""A rank that hangs where nobody is ended is looked at for ever."""

IDLE_MS_PER_S = 50.0
"""A process that computes less than that in a second is idle: its threads that wait wake up."""

STOPPED = frozenset("TZXx") | {FROZEN, REPLACED}
HALTED = {"T": "stopped by a signal", FROZEN: "frozen with its control group"}
TRACED = "t"
"""A debugger has stopped it."""
UNSURE = frozenset("RD")
"""Runnable: it may be starved. In the kernel for a disk: that may answer."""


@dataclass(slots=True)
class RankLook:
    """One look at one rank."""

    at: float
    evidence: Evidence
    stack: Stack | None = None


@dataclass(slots=True)
class Looks:
    """Those at one rank since it was last seen moving, by number."""

    taken: dict[int, RankLook] = field(default_factory=dict)
    early: dict[int, Stack] = field(default_factory=dict)  # stacks whose evidence is on its way
    stack: Stack | None = None  # the last one that was shown

    def looked(self, evidence: Evidence, now: float) -> None:
        look = RankLook(now, evidence, self.early.pop(evidence.look, None))
        self.stack = look.stack or self.stack
        self.taken.setdefault(evidence.look, look)
        self.early = {n: stack for n, stack in self.early.items() if n > evidence.look}
        if len(self.taken) > KEPT_LOOKS:
            del self.taken[min(self.taken)]

    def shown(self, stack: Stack) -> None:
        look = self.taken.get(stack.look)
        if look is None:
            self.early[stack.look] = stack
        else:
            look.stack = self.stack = stack

    def since(self, at: float) -> bool:
        """True if one was taken since then."""
        return any(look.at >= at for look in self.taken.values())

    @property
    def stopped(self) -> bool:
        """True if it runs no code at all: it was stopped by a signal, is frozen, or is dead."""
        return bool(self.taken) and self.taken[max(self.taken)].evidence.state in STOPPED

    @property
    def replaced(self) -> bool:
        """True if another program has taken the place of it: nothing brings that back."""
        return bool(self.taken) and self.taken[max(self.taken)].evidence.state == REPLACED

    @property
    def spared(self) -> bool:
        """True if it is a person that it waits for: then it is not for us to end it. One debugs it,
        or has stopped what reads its output, and whoever follows it would wait for that as well.
        """
        return self._debugged or self._unread

    @property
    def _debugged(self) -> bool:
        last = self.taken[max(self.taken)].evidence.state if self.taken else ""
        return last == TRACED or (self.stack is not None and self.stack.debugged)

    @property
    def _unread(self) -> bool:
        return self.stack is not None and self.stack.unread

    @property
    def within(self) -> bool:
        """True if it waits in torch's communication: it is others that it waits for."""
        return self.stack is not None and self.stack.within

    @property
    def proof(self) -> Proof:
        """The proof by the looks so far."""
        looks = [self.taken[number] for number in sorted(self.taken)]
        if not looks:
            return "none"
        if self.stopped:
            return "stopped"
        last = _apart([look for look in looks if look.evidence.stacks])[-LOOKS:]
        if len(last) < LOOKS or len({look.evidence.serial for look in last}) > 1:
            return "none"
        if len({look.stack.digest if look.stack else None for look in last}) > 1:
            return "none"
        if all(look.stack is not None and look.stack.turns for look in last):
            return "still"
        states = {look.evidence.state for look in last}
        return "still" if not states & UNSURE and self._idle(last) else "none"

    @property
    def busy(self) -> bool:
        """True if it was at work between its last two looks: it computed, or waited for a disk."""
        last = _apart([self.taken[number] for number in sorted(self.taken)])[-2:]
        return bool({look.evidence.state for look in last} & UNSURE) or not self._idle(last)

    def _idle(self, looks: list[RankLook]) -> bool:
        for before, after in zip(looks, looks[1:], strict=False):
            spent_ms = after.evidence.cpu_ms - before.evidence.cpu_ms
            if spent_ms > IDLE_MS_PER_S * max(LOOK_EVERY_S, after.at - before.at):
                return False
        return True

    @property
    def words(self) -> str:
        """Its place, for people: by its stack, or by the kernel."""
        last = self.taken[max(self.taken)].evidence if self.taken else None
        if last is None:
            return ""
        if last.state == REPLACED:
            return f"as its script put {last.kernel or 'a program'} in the place of its process"
        if last.state in STOPPED:
            return HALTED.get(last.state, "already dead")
        if self._debugged:
            return "in a debugger"
        if self._unread:
            return "as nobody reads its output"
        if self.stack is not None and self.stack.frame:
            return f"at {self.stack.frame}"
        kernel = f" (in the kernel: {last.kernel})" if last.kernel not in ("", "0") else ""
        return f"in code that keeps Python's lock{kernel}" if last.stacks else ""


def _apart(looks: list[RankLook]) -> list[RankLook]:
    """The newest of `looks`, and those before it that were answered early enough."""
    found: list[RankLook] = []
    for look in reversed(looks):
        if not found or look.at <= found[0].at - APART_S:
            found.insert(0, look)
    return found
