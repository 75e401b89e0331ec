"""One history of snapshots: how many nodes and ranks, how often, which faults, when."""

import random
from dataclasses import dataclass, replace
from typing import Literal

BOOT_S = 0.2
"""From the start of a process to its first step."""

Kind = Literal[
    "worker", "keeper", "stall", "node", "coordinator", "all", "stuck", "deaf", "exchange", "two"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """worker, keeper, node: killed; all: every worker. stall: a keeper stands still for `for_s`.
    stuck: what a worker writes goes on for `for_s` after the next restart. deaf: messages
    between this node and the coordinator are lost for `for_s`. coordinator: another one takes over.
    exchange: killed. two: this node and the next one, at once.
    """

    kind: Kind
    at_s: float
    target: int = 0
    for_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    nodes: int
    nproc: int
    every: int
    parity: int  # nodes that may be lost
    replicas: int = 1
    returns: bool = False  # lost replicas come back
    step_s: float
    delay_s: float = 0.002  # of a message
    sum_s: float = 0.01  # to make checksums
    loss: float = 0.0
    duplicate: float = 0.0
    chaos_s: float = 12.0
    quiet_s: float = 18.0
    faults: tuple[Fault, ...] = ()


def draw(seed: int) -> Plan:
    rng = random.Random(f"snapshots {seed}")
    rough = rng.random() < 0.5
    nodes, nproc = rng.choice((1, 1, 2, 3)), rng.choice((1, 2))
    parity = 0
    if rng.random() < 0.6:  # nodes that make parity
        nodes, nproc, parity = rng.choice((2, 3, 4, 5)), rng.choice((1, 1, 2)), rng.choice((1, 2))
    kinds: tuple[Kind, ...] = (
        "worker", "worker", "keeper", "keeper", "stall", "all", "stuck", "deaf", "coordinator",
        "node", *(("node", "node", "exchange", "exchange", "two") if parity else ()),
    )  # fmt: skip
    faults = tuple(
        Fault(
            kind=rng.choice(kinds),
            at_s=rng.uniform(0.3, 12.0),
            target=rng.randrange(nodes * nproc),
            for_s=rng.choice((0.05, 0.3, 1.0, 2.0)) * rng.uniform(0.5, 1.5),
        )
        for _ in range(rng.randint(1, 8))
    )
    return Plan(
        seed=seed,
        nodes=nodes,
        nproc=nproc,
        parity=parity,
        every=rng.choice((1, 2, 3, 5)),
        step_s=rng.choice((0.02, 0.1, 0.3)),
        delay_s=rng.choice((0.002, 0.02, 0.1)),
        sum_s=rng.choice((0.001, 0.02, 0.15)),
        loss=rng.choice((0.02, 0.1)) if rough else 0.0,
        duplicate=0.05 if rough else 0.0,
        faults=faults,
    )


def draw_returning(seed: int) -> Plan:
    """The same, and lost replicas come back."""
    return replace(draw_replicated(seed), returns=True)


def draw_replicated(seed: int) -> Plan:
    """Of a job with several replicas: the same, and more losses, one of them as some ranks have
    sealed a snapshot and others have not.
    """
    rng, plan = random.Random(f"replicas {seed}"), draw(seed)
    nodes = plan.nodes if plan.nodes * plan.nproc > 1 else 2
    world = nodes * plan.nproc
    many = rng.choice([one for one in range(2, world + 1) if not world % one])
    kinds: tuple[Kind, ...] = ("worker", "worker", "all", "node", "keeper")
    more = tuple(
        Fault(kind=rng.choice(kinds), at_s=rng.uniform(0.3, 12.0), target=rng.randrange(world))
        for _ in range(rng.randint(1, 6))
    )
    sealed_s = BOOT_S + (plan.every * rng.randint(1, 4) + 1) * plan.step_s
    first = Fault(kind="worker", at_s=sealed_s + 0.001, target=rng.randrange(world))
    return replace(plan, nodes=nodes, replicas=many, faults=(first, *plan.faults, *more))
