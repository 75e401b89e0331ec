"""The plan of one simulated history: the job, the network, the faults. Drawn from a seed."""

import random
from dataclasses import dataclass, replace
from typing import Literal

from rendezvous.coordinator.recovery_policy import RecoveryPolicy

EARLY = ("start", "forward", "apply", "agree", "agreed")
REACTING = ("redo", "viewed", "decided")
WITHIN = ("forward", "settle", "reduce", "reduced", "vote", "voted", "apply", "between")
RETURNING = (
    "started", "ready", "ready", "invited", "invited", "held", "held", "joined", "joined",
    "received", "viewed", "between", "voted",
)  # fmt: skip
POINTS = (
    "agreed", "forward", "settle", "redo", "reduce", "reduced", "vote", "voted", "apply", "between",
    "viewed", "decided", "end",
)  # fmt: skip
"""Moments of a rank at which a fault may be aimed; `node` and `pause` faults use them too."""

FOR_EVER_S = 1000.0
"""How long a newcomer stops that hangs."""

FaultKind = Literal["kill", "crash", "node", "pause", "flake", "leader", "depose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something happens to `ranks`: at `at_s`, or `delay_s` after `trigger` reaches a point.

    kill: the kernel ends them by SIGKILL. crash: they exit with code 1 and an error of their own.
    node: their launcher is lost with them. pause: they stop for `for_s`, alive.
    flake: the collectives that they are in fail, and nobody dies.
    leader: their launcher is lost with them, and it had the coordinator.
    depose: another launcher coordinates from now on, and nobody is lost.
    """

    kind: FaultKind
    ranks: tuple[int, ...]
    at_s: float = -1.0
    trigger: int = -1
    step: int = -1
    point: str = ""
    delay_s: float = 0.0
    for_s: float = 0.0
    nth: int = 1  # the point may be reached several times in a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One history. Times are virtual seconds; probabilities count until `heal_at`."""

    seed: int
    replicas: int
    shards: int
    counts: tuple[int, ...]  # microbatches of each replica, by step
    ends: tuple[int, ...]  # steps that the script of each slot runs
    buckets: int = 2
    min_replicas: int = 1
    loss: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.002
    fifo: bool = True
    microbatch_s: float = 0.05
    collective_s: float = 0.01
    thread_s: float = 0.001  # how late a thread takes up what is ready for it
    kill_s: float = 0.02  # until the mates of a lost rank are dead
    reap_s: float = 0.002  # until the launcher has seen an exit
    overlap: bool = False  # buckets start in the last backward
    split: float = 0.3  # share of collectives that complete far apart on their members
    shown: float = 0.5  # share of abandoned collectives that fail on others instead of hanging
    contexts_lost: float = 0.0
    discards: tuple[int, ...] = ()  # by step: microbatches after which all scripts drop them once
    drops: tuple[tuple[str, int, int], ...] = ()  # (message, n, rank): the n-th one is lost
    returns: bool = False  # lost replicas come back
    arrival_s: float = 30.0  # so long a newcomer has for its first step
    again_s: float = 0.1  # until a process that starts again has its hooks
    prologue_s: float = 0.05  # until it stands before its loop
    packing_s: float = 0.0  # until a member that stands still has made what a newcomer is given
    transfer_s: float = 0.02  # until it has all of its state
    place_s: float = 0.0  # until another launcher is there for a lost one's place; 0: none comes
    heal_at: float = 0.0
    faults: tuple[Fault, ...] = ()

    @property
    def policy(self) -> RecoveryPolicy:
        return RecoveryPolicy(
            min_replicas=self.min_replicas, returns=self.returns, arrival_s=self.arrival_s
        )

    @property
    def steps(self) -> int:
        return max(self.ends)

    @property
    def world(self) -> tuple[int, ...]:
        return tuple(range(self.replicas * self.shards))

    @property
    def layout(self) -> tuple[tuple[int, ...], ...]:
        """Slots of adjacent ranks, as HSDP lays them out."""
        return tuple(
            tuple(range(slot * self.shards, (slot + 1) * self.shards))
            for slot in range(self.replicas)
        )

    @property
    def first_s(self) -> float:
        """Recovery can help by then in three of four histories."""
        collectives = self.counts[0] + 3
        waits_s = 0.3 + 0.5 * (self.loss > 0.0) + self.split + 16 * self.delay_s
        return waits_s + collectives * (5 * self.collective_s + 4 * self.thread_s)

    @property
    def work_s(self) -> float:
        """About how long the job takes without faults."""
        return sum(self.counts) * self.microbatch_s + 3 * self.steps * self.collective_s + 0.1


def draw(seed: int) -> Plan:
    """The history of `seed`."""
    rng = random.Random(f"plan {seed}")
    twice = rng.random() < 0.2  # a loss, and another one while survivors make up for it
    replicas = rng.choice((3, 3, 4)) if twice else rng.choice((2, 2, 3, 3, 3, 4, 4, 5))
    shards = rng.choice((2, 2, 3)) if twice else rng.choice((1, 1, 1, 2, 2, 3))
    shards = 1 if replicas == 5 else shards
    steps = rng.randint(3, 6)  # the first one is torch's own
    ends = [steps] * replicas
    if rng.random() < 0.06:
        ends[rng.randrange(replicas)] = rng.randint(1, steps)
    quiet = rng.random() < 0.45
    plan = Plan(
        seed=seed,
        replicas=replicas,
        shards=shards,
        counts=_draw_counts(rng, steps),
        ends=tuple(ends),
        buckets=rng.randint(1, 2),
        min_replicas=rng.choice((1, 1, 1, 2)),
        loss=0.0 if quiet else rng.choice((0.01, 0.05, 0.2)),
        duplicate=0.0 if quiet else rng.choice((0.0, 0.02, 0.1)),
        delay_s=rng.choice((0.0005, 0.002, 0.02, 0.15)),
        fifo=quiet or rng.random() < 0.4,
        microbatch_s=rng.choice((0.02, 0.05, 0.3)),
        collective_s=rng.choice((0.002, 0.01, 0.05)),
        thread_s=rng.choice((0.0002, 0.002, 0.02)),
        kill_s=rng.choice((0.005, 0.05, 0.4)),
        reap_s=rng.choice((0.001, 0.01, 0.2)),
        overlap=rng.random() < 0.5,
        split=rng.choice((0.1, 0.4, 0.8)),
        shown=rng.choice((0.0, 0.0, 0.5, 1.0)),
        contexts_lost=rng.choice((0.0, 0.3)),
    )
    count = rng.choice((0, 1, 1, 2, 2, 3, 4))
    faults = tuple(_draw_fault(rng, plan, first=number == 0) for number in range(count))
    faults = _draw_pair(rng, plan) + faults[:1] if twice else faults
    heal_at = 1.5 * plan.work_s + 3.0 + sum(fault.for_s for fault in faults)
    return replace(plan, faults=faults, heal_at=heal_at, discards=_draw_discards(rng, plan))


def draw_any(seed: int) -> Plan:
    """The history of `seed`; in one of four, lost replicas come back."""
    return draw_arrivals(seed) if seed % 4 == 3 else draw(seed)


def draw_arrivals(seed: int) -> Plan:
    """The history of `seed`, in which lost replicas come back, and are lost again."""
    plan = draw(seed)
    rng = random.Random(f"arrivals {seed}")
    steps, replicas = rng.randint(6, 14), max(plan.replicas, rng.choice((2, 3, 4)))
    ends = [steps] * replicas
    if rng.random() < 0.1:
        ends[rng.randrange(replicas)] = rng.randint(1, steps)
    plan = replace(
        plan,
        replicas=replicas,
        counts=(*[plan.counts[0]] * (steps - 1), plan.counts[-1]),
        ends=tuple(ends),
        returns=True,
        arrival_s=rng.choice((30.0, 30.0, 4.0)),
        again_s=rng.choice((0.02, 0.2, 1.0)),
        prologue_s=rng.choice((0.01, 0.1, 0.5)),
        packing_s=random.Random(f"parcel {seed}").choice((0.0, 0.0, 0.0, 0.02, 0.2)),
        transfer_s=rng.choice((0.002, 0.02, 0.3)),
        microbatch_s=rng.choice((0.02, 0.05)),
        split=rng.choice((0.02, 0.1, 0.4)),
    )
    count = rng.choice((0, 1, 1, 2, 2, 3))
    victim = rng.choice(plan.world)
    first = Fault(
        kind=rng.choice(("kill", "kill", "crash")),
        ranks=(victim,),
        trigger=victim,
        step=rng.randint(1, 3),
        point=rng.choice(WITHIN),
    )
    lost = plan.layout[victim // plan.shards]
    later = tuple(_draw_return_fault(rng, plan, lost) for _ in range(count))
    faults = (first, *later, *(plan.faults[:1] if rng.random() < 0.5 else ()))
    slow_s = 2 * plan.split * plan.steps  # collectives that complete far apart
    healed = rng.choice((0.5, 1.0, 2.0)) * (plan.work_s + slow_s)
    waits_s = sum(fault.for_s for fault in faults if fault.for_s < FOR_EVER_S)
    heal_at = healed + plan.again_s + waits_s
    return replace(plan, faults=faults + _draw_donor_loss(plan, lost), heal_at=heal_at, discards=())


def draw_places(seed: int) -> Plan:
    """The history of `seed`, in which nodes are lost, and other launchers take their places."""
    plan = draw_arrivals(seed)
    rng = random.Random(f"places {seed}")
    first = rng.choice(plan.world)
    many = rng.randint(1, 2 * plan.shards)
    ranks = tuple(rank for rank in range(first, first + many) if rank in plan.world)
    point = rng.choice(WITHIN)
    node = Fault(kind="node", ranks=ranks, trigger=first, step=rng.randint(1, 3), point=point)
    lost = plan.layout[first // plan.shards]
    later = tuple(_draw_return_fault(rng, plan, lost) for _ in range(rng.choice((0, 1, 1, 2))))
    nodes = tuple(replace(one, kind="node") if rng.random() < 0.4 else one for one in later)
    leaders: tuple[Fault, ...] = ()
    if rng.random() < 0.3:
        leaders = (_draw_leader(rng, plan, rng.choice(plan.world)),)
        nodes = tuple(one for one in nodes if one.for_s < FOR_EVER_S)
    place_s = rng.choice((0.05, 0.3, 1.0))
    extra_s = 2.0 + 8.0 * len(leaders) + place_s
    faults = (node, *nodes, *leaders)
    return replace(plan, faults=faults, place_s=place_s, heal_at=plan.heal_at + extra_s)


def _draw_return_fault(rng: random.Random, plan: Plan, lost: tuple[int, ...]) -> Fault:
    """A fault that aims at the return of ranks: at who comes, at who sends its state, or others."""
    kind: FaultKind = rng.choice(("kill", "kill", "kill", "node", "pause", "flake"))
    point = rng.choice(RETURNING)
    of_newcomer = point in ("started", "ready", "joined", "received")
    trigger = rng.choice(lost if of_newcomer else plan.world)
    fault = Fault(
        kind=kind,
        ranks=(rng.choice(lost if rng.random() < 0.5 else plan.world),),
        trigger=trigger,
        point=point,
        delay_s=rng.choice((0.0, 0.0, 0.002, 0.02, 0.2)) * rng.random(),
        for_s=rng.choice((0.3, 1.0, 8.0)) if kind == "pause" else 0.0,
        nth=rng.choice((1, 1, 1, 2, 3)),
    )
    hangs = fault.for_s == 8.0 and point in ("joined", "received")
    return replace(fault, ranks=(trigger,), delay_s=0.0, for_s=FOR_EVER_S) if hangs else fault


def _draw_donor_loss(plan: Plan, lost: tuple[int, ...]) -> tuple[Fault, ...]:
    """The end of a member while a newcomer waits for its packed state, or just before.

    Drawn from a stream of its own: histories in which they take none stay what they are.
    """
    rng = random.Random(f"donor {plan.seed}")
    if not plan.packing_s or rng.random() < 0.4:
        return ()
    member = rng.choice([rank for rank in plan.world if rank not in lost])
    point, delay_s = rng.choice((("held", 0.0), ("joined", plan.packing_s * rng.random())))
    trigger = member if point == "held" else rng.choice(lost)
    fault = Fault(kind="kill", ranks=(member,), trigger=trigger, point=point, delay_s=delay_s)
    return (fault,)


def draw_takeover(seed: int) -> Plan:
    """The history of `seed`, in which the launcher that coordinates is lost, once or twice."""
    plan = draw_any(seed)
    # Who took its place before the coordinator moved is watched as any other rank that hangs.
    plan = replace(plan, faults=tuple(f for f in plan.faults if f.for_s < FOR_EVER_S))
    rng = random.Random(f"succession {seed}")
    ranks = rng.sample(plan.world, min(len(plan.world) - 1, rng.choice((1, 1, 2))))
    faults = tuple(_draw_leader(rng, plan, rank) for rank in ranks)
    extra_s = 8.0 * len(faults)
    return replace(plan, faults=plan.faults[:2] + faults, heal_at=plan.heal_at + extra_s)


def _draw_leader(rng: random.Random, plan: Plan, rank: int) -> Fault:
    """The coordinator moves: its node is lost, or deposed, perhaps before anybody has begun."""
    kind: FaultKind = "leader" if rng.random() < 0.8 else "depose"
    if plan.returns and rng.random() < 0.7:
        fault = _draw_return_fault(rng, plan, rng.choice(plan.layout))
        return replace(fault, kind=kind, ranks=(rank,), for_s=0.0)
    if kind == "depose" and rng.random() < 0.3:
        return Fault(kind=kind, ranks=(rank,), at_s=0.05 * rng.random())
    fault = _draw_fault(rng, plan, first=rng.random() < 0.5)
    return replace(fault, kind=kind, ranks=(rank,))


def _draw_discards(rng: random.Random, plan: Plan) -> tuple[int, ...]:
    """Now and then a loss is not finite on all ranks, and `zero_grad` follows instead of a step."""
    if rng.random() < 0.9:
        return ()
    return tuple(rng.randint(0, count - plan.overlap) for count in plan.counts)


def _draw_counts(rng: random.Random, steps: int) -> tuple[int, ...]:
    """The same in every step, except that the data may end within the last one."""
    usual = rng.randint(1, 3)
    last = rng.randint(1, usual) if rng.random() < 0.2 else usual
    return (*[usual] * (steps - 1), last)


def _draw_fault(rng: random.Random, plan: Plan, *, first: bool) -> Fault:
    """A fault; later ones of a history aim more often at what an earlier one set off."""
    kind: FaultKind = rng.choice(
        ("kill", "kill", "kill", "kill", "crash", "node", "pause", "flake")
    )
    victim = rng.choice(plan.world)
    ranks: tuple[int, ...] = (victim,)
    if kind == "node":  # a node may host part of a replica, or ranks of two
        ranks = tuple(range(victim, min(victim + rng.randint(1, 3), len(plan.world))))
    for_s = rng.choice((0.3, 1.0, 3.0, 8.0)) if kind == "pause" else 0.0
    early = first and rng.random() < 0.12  # before recovery can help: that ends a history
    if rng.random() < 0.3:
        share = rng.random()
        at_s = share * plan.first_s if early else plan.first_s + 1.2 * share * plan.work_s
        return Fault(kind=kind, ranks=ranks, at_s=at_s, for_s=for_s)
    usual = POINTS if first or rng.random() < 0.5 else REACTING
    point = rng.choice(EARLY if early else usual)
    step = 0 if early else rng.randrange(1, plan.steps)
    anyhow = point in (*REACTING, "agree", "agreed", "end")
    return Fault(
        kind=kind,
        ranks=ranks,
        trigger=victim if rng.random() < 0.6 else rng.choice(plan.world),
        step=-1 if anyhow else step,
        point=point,
        delay_s=rng.choice((0.0, 0.0, 0.001, 0.01)) * rng.random(),
        for_s=for_s,
        nth=rng.choice((1, 1, 1, 2, 3)),
    )


def _draw_pair(rng: random.Random, plan: Plan) -> tuple[Fault, ...]:
    """One replica is lost, and another while a third one re-executes its microbatches."""
    slots = rng.sample(range(plan.replicas), 3)
    first, second, third = (rng.choice(plan.layout[slot]) for slot in slots)
    step = rng.randrange(1, plan.steps)
    return (
        Fault(kind="kill", ranks=(first,), trigger=first, step=step,
              point=rng.choice(("forward", "reduce", "vote", "between"))),
        Fault(kind=rng.choice(("kill", "flake")), ranks=(second,), trigger=third, step=-1,
              point=rng.choice(("redo", "redo", "decided")), nth=rng.choice((1, 1, 2)),
              delay_s=rng.random() * plan.microbatch_s * rng.choice((0.0, 0.1, 1.0))),
    )  # fmt: skip
