"""One history of the view register: how many launchers, what network, which faults, when."""

import random
from dataclasses import dataclass, replace
from typing import Literal

from rendezvous.consensus.register_events import OnSilence

Kind = Literal["crash", "pause", "cut", "oneway", "leave", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`targets` are launchers by their place, -1 the one that leads. Behind the last is a witness,
    or etcd, if there is one.

    crash: gone; `proved` if its host refuses connections, `back_s` later a new one starts there.
    pause: stands still. cut: no messages between targets and others; oneway: none from them. A cut
    of `launchers` leaves the ways to that open. leave: a planned end. drop: the next `count`
    messages of `what` are lost, from targets if any.
    """

    kind: Kind
    at_s: float
    targets: tuple[int, ...] = ()
    for_s: float = 0.0
    proved: bool = False
    back_s: float = 0.0
    what: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    nodes: int
    rates: tuple[float, ...]  # of the clocks
    delay_s: float = 0.002
    loss: float = 0.0
    duplicate: float = 0.0
    work_s: float = 0.3  # between two looks of the data plane
    chaos_s: float = 20.0
    quiet_s: float = 20.0
    data_apart: bool = False  # do steps need no connection that a cut takes?
    moves: bool = False  # are launchers told of finished steps?
    witness: bool = False
    etcd: bool = False
    on_silence: OnSilence = "stop"
    faults: tuple[Fault, ...] = ()


def draw(seed: int, chaos_s: float = 20.0) -> Plan:
    """The history of `seed`; longer ones have more faults."""
    rng = random.Random(f"views {seed}")
    return _draw(rng, seed, rng.choice((2, 3, 3, 3, 4, 5, 5, 6, 7)), chaos_s)


def draw_in_turn(seed: int, chaos_s: float = 20.0) -> Plan:
    """Deaths that are proved, one soon after another, of launchers that often stand still."""
    rng = random.Random(f"in turn {seed}")
    nodes = rng.choice((3, 4, 4, 4, 5, 5, 6, 7))
    plan = _draw(rng, seed, nodes, chaos_s)
    faults = [replace(f, back_s=0.0) if f.kind == "crash" else f for f in plan.faults[:2]]
    at_s = rng.uniform(2.0, chaos_s / 2)
    for place in rng.sample(range(nodes), rng.randint(2, nodes - 1)):
        back_s = rng.choice((0.0, 0.0, 0.0, 0.3, 1.0))
        faults.append(Fault(kind="crash", at_s=at_s, targets=(place,), proved=True, back_s=back_s))
        at_s += rng.choice((0.0, 0.05, 0.3, 1.0, 2.0)) * rng.uniform(0.5, 1.5)
    stall_s = 1.0
    while stall_s < chaos_s:
        place, for_s = rng.randrange(nodes), rng.uniform(0.1, 1.5)
        faults.append(Fault(kind="pause", at_s=stall_s, targets=(place,), for_s=for_s))
        stall_s += rng.expovariate(0.7)
    return replace(plan, faults=tuple(faults))


def draw_witnessed(seed: int, chaos_s: float = 20.0) -> Plan:
    """The same with a witness, which has faults of its own."""
    rng = random.Random(f"witnessed {seed}")
    nodes = rng.choice((2, 2, 2, 2, 3, 4, 4, 5))
    plan = _draw(rng, seed, nodes, chaos_s)
    faults = [
        replace(fault, what="launchers") if fault.kind == "cut" and rng.random() < 0.6 else fault
        for fault in plan.faults
    ]
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        fault = _draw_fault(rng, nodes, chaos_s)
        kind: Kind = rng.choice(("crash", "crash", "pause", "cut"))
        faults.append(replace(fault, kind=kind, targets=(nodes,)))
    return replace(plan, witness=True, faults=tuple(faults))


def draw_etcd(seed: int, chaos_s: float = 20.0) -> Plan:
    """With etcd in place of votes; it cannot always be reached."""
    rng = random.Random(f"etcd {seed}")
    nodes = rng.choice((2, 2, 3, 3, 4, 5, 7))
    plan = _draw(rng, seed, nodes, chaos_s)
    faults = [
        replace(fault, what="launchers") if fault.kind == "cut" and rng.random() < 0.6 else fault
        for fault in plan.faults
    ]
    for _ in range(rng.choice((0, 0, 1, 2))):
        fault = _draw_fault(rng, nodes, chaos_s)
        kind: Kind = rng.choice(("pause", "cut"))
        faults.append(replace(fault, kind=kind, targets=(nodes,)))
    return replace(plan, etcd=True, faults=tuple(faults))


def _draw(rng: random.Random, seed: int, nodes: int, chaos_s: float) -> Plan:
    rough = rng.random() < 0.6
    count = rng.randint(1, max(2, int(chaos_s / 4)))
    return Plan(
        seed=seed,
        nodes=nodes,
        rates=tuple(rng.choice((0.99, 1.0, 1.01, rng.uniform(0.99, 1.01))) for _ in range(nodes)),
        delay_s=rng.choice((0.002, 0.002, 0.02, 0.15)),
        loss=rng.choice((0.01, 0.05, 0.15)) if rough else 0.0,
        duplicate=0.02 if rough else 0.0,
        work_s=rng.choice((0.15, 0.3, 0.5)),
        chaos_s=chaos_s,
        data_apart=rng.random() < 0.5,
        faults=tuple(_draw_fault(rng, nodes, chaos_s) for _ in range(count)),
        moves=random.Random(f"moves {seed}").random() < 0.3,
    )


def _draw_fault(rng: random.Random, nodes: int, chaos_s: float) -> Fault:
    kind: Kind = rng.choice(("crash", "crash", "pause", "cut", "cut", "oneway", "leave", "drop"))
    targets = (-1,) if rng.random() < 0.4 else (rng.randrange(nodes),)
    if kind == "cut" and rng.random() < 0.5:
        targets = tuple(rng.sample(range(nodes), rng.randint(1, max(1, nodes // 2))))
    return Fault(
        kind=kind,
        at_s=rng.uniform(0.5, chaos_s),
        targets=targets,
        for_s=rng.choice((0.3, 1.0, 2.2, 3.0, 4.0, 8.0)) * rng.uniform(0.8, 1.2),
        proved=rng.random() < 0.5,
        back_s=rng.choice((0.0, 0.3, 2.0, 5.0)),
        what=rng.choice(("NewConfiguration", "Accepted", "Accept", "Prepared", "Pong", "Granted")),
        count=rng.choice((1, 2, 5, 10)),
    )
