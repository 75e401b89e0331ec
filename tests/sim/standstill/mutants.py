"""Planted bugs: each rule of the machine is switched off, and some run shows it.

The runs are directed: one trouble each, as small as it may be.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rendezvous.membership import hang_evidence, hang_joins, hang_limits, joint_stalls, standstill
from rendezvous.protocol.progress_page import Phase
from tests.sim.mutants import Mutant
from tests.sim.standstill.activities import Hang, Stall
from tests.sim.standstill.plan import HangAt, Plan

SMALL = Plan(seed=0, replicas=4, shards=1, nodes=1, steps=14, step_s=0.3, epoch=6)


def _stalls(kind: Stall, least_s: float = 8.0, most_s: float = 9.0) -> Plan:
    return replace(
        SMALL, stall_chance=1.0, stalls=(kind,), stall_s=least_s, stall_most_s=most_s, steps=6
    )


def _hangs(kind: Hang, phase: Phase, rank: int = 1, step: int = 4) -> Plan:
    return replace(SMALL, hangs=(HangAt(rank, step, phase, kind),))


def _frozen(plan: Plan, first_s: float, for_s: float) -> Iterator[Plan]:
    """Its second launcher stands still from another moment on in each."""
    for number in range(12):
        frozen = ((1, first_s + 0.5 * number, for_s),)
        yield replace(plan, nodes=2, frozen=frozen)


SELDOM = tuple(
    replace(_stalls("idle", 3.8), seed=seed, replicas=12, steps=40, stall_chance=0.3)
    for seed in range(4)
)
"""Of many steps few are slow, so that these are not the usual ones."""


@dataclass(frozen=True, slots=True)
class Bug:
    """Found by the checker that `code` names, in one of `plans`."""

    code: Mutant
    plans: tuple[Plan, ...]


def _bug(
    name: str, module: object, path: str, old: str, new: str, checker: str, *plans: Plan
) -> Bug:
    return Bug(Mutant(name, module, path, old, new, checker, 0), plans)  # type: ignore[arg-type]


BUGS = (
    _bug(
        "one look proves it", hang_evidence, "Looks.proof",
        "[-LOOKS:]\n    if len(last) < LOOKS or", "[-1:]\n    if len(last) < 1 or",
        "innocent", _stalls("pool"),
    ),
    _bug(
        "whoever is at its limit is lost", standstill, "Standstill._condemn",
        'limit_s if proof != "none" else PATIENCE * limit_s', "limit_s",
        "innocent", _stalls("computes"),
    ),
    _bug(
        "who computes is idle", hang_evidence, "Looks._idle",
        "if spent_ms >", "if False and spent_ms >", "innocent", _stalls("pool"),
    ),
    _bug(
        "stacks are not compared", hang_evidence, "Looks.proof",
        "if len({look.stack.digest if look.stack else None for look in last}) > 1:", "if False:",
        "innocent", _stalls("polls"),
    ),
    _bug(
        "a disk does not answer", hang_evidence, "Looks.proof",
        "not states & UNSURE and ", "", "innocent", _stalls("disk"),
    ),
    _bug(
        "a busy loop may still come", hang_evidence, "Looks.proof",
        "if all(look.stack is not None and look.stack.turns for look in last):", "if False:",
        "late", _hangs("turns", Phase.MICROBATCH),
    ),
    _bug(
        "who is stopped may go on", hang_evidence, "Looks.proof",
        "if self.stopped:", "if False:",
        "late", _hangs("stopped", Phase.BETWEEN),
    ),
    _bug(
        "one limit for all phases", hang_limits, "HangLimits.limit_s",
        "regular = phase in EVERY_STEP", "regular = True",
        "innocent", replace(SMALL, checkpoint_s=20.0),
    ),
    _bug(
        "nothing is learned from who came late", hang_limits, "HangLimits.limit_s",
        "max(least_s, TIMES * longest_s)", "least_s",
        "innocent", *SELDOM,
    ),
    _bug(
        "steps are no measure", hang_limits, "HangLimits.stepped",
        "self._step_s = median(self._steps)", "pass",
        "innocent", replace(_stalls("idle", 20.0, 25.0), step_s=10.0, stall_chance=0.4, steps=14),
    ),
    _bug(
        "who waits within its replica is free", standstill, "Standstill._waited_for",
        " if not suspects[rank].looks.within", "",
        "mate", replace(_hangs("lock", Phase.MICROBATCH), shards=2),
    ),
    _bug(
        "the script's own limit is not known", standstill, "Standstill._limit_s",
        "awaited.ends(rank) - MARGIN_S - still.blamed_since", "limit_s",
        "limit", replace(_hangs("lock", Phase.BETWEEN), limit_s=30.0),
    ),
    _bug(
        "looks are seldom by the time of the limit", standstill, "Standstill._look_is_due",
        "still.asked_stacks if stacks else still.asked", "still.asked",
        "limit", replace(_hangs("lock", Phase.BETWEEN), limit_s=30.0),
    ),
    _bug(
        "of all together a silent launcher is no obstacle", joint_stalls, "JointStalls._looked",
        "self._look >= LOOKS_TOGETHER and all(", "self._look >= LOOKS_TOGETHER or all(",
        "stuck", *_frozen(
            replace(_hangs("calls", Phase.MICROBATCH, 3, 6), transfers_s=((5, 4.0),)), 5.0, 30.0
        ),
    ),
    _bug(
        "a slow operation is given no more each time", joint_stalls, "JointStalls._patience_s",
        "limit_s *= TIMES ** min(self._meetings, MEETINGS)", "return limit_s",
        "stuck", replace(SMALL, transfers_s=((5, 20.0),)),
    ),
    _bug(
        "members that have parted are not told apart", hang_joins, "Joins.whole",
        "if not one.late", "if True",
        "stuck", replace(SMALL, parted=(2, 5)),
    ),
    _bug(
        "what one has completed it has not joined", hang_joins, "Joins._joined",
        "return dict(stack.joined).get(channel, -1) >= number", "return False",
        "parted", replace(SMALL, stuck=(5, 1), torn=True),
    ),
    _bug(
        "who is stopped as it waits is none of the quiet", standstill, "Standstill._waits",
        "or still.looks.stopped", "", "stuck", replace(SMALL, stopped=(2, 5)),
    ),
    _bug(
        "nobody looks whether one is stopped as it waits", standstill, "Standstill._glance",
        "if now <", "if True or now <", "late",
        replace(SMALL, stopped=(2, 10), transfers_s=((5, 4.0),)),
    ),
    _bug(
        "a replica whose shards have parted is lost", standstill, "Standstill._condemn",
        "if still.looks.within and shown and Joins(waiting).crossed:", "if False:",
        "parted", replace(SMALL, shards=2, parted=(3, 5)),
    ),
    _bug(
        "a stuck operation is waited for", joint_stalls, "JointStalls.wait",
        "if lag_s < limit_s or not self._looked(waiting, stacks=parted):", "if True:",
        "late", replace(SMALL, stuck=(5, 9)),
    ),
)  # fmt: skip
