"""The choices of a generated script: one for each question, by a seed.

The choices are independent wherever a script can hold them both; `_mended` drops what cannot go
together. A plan says also who is killed and when, so that a seed is the whole story.
"""

import random
from dataclasses import asdict, dataclass, replace

STEPS = 9  # optimizer steps, at least

PLACES = (
    "loader", "loader-renewed", "generator", "closure", "attribute", "count", "slots", "list",
    "deque", "file", "queue", "thread", "global", "permutation", "sentinel", "cursor", "cycle",
    "dict", "iterator", "module", "sampling", "pipe",
)  # fmt: skip
LOOPED = ("loader", "generator", "iterator")  # the script may also run a `for` over them

STREAMS = (
    "none", "python", "numpy", "numpy-closure", "numpy-dict", "numpy-list", "torch",
    "torch-closure", "torch-dict", "torch-list", "torch-lazy", "random-object", "dropout",
    "random-decides", "data-decides",
)  # fmt: skip
HIDDEN = ("numpy-spawned", "torch-cloned")
"""Generators that no constructor of the script's has made."""

WHEN = ("at once", "at once", "from 5", "every third")
READERS = ("nothing", "nothing", "clip", "norm", "adaptive", "rate", "zeroing")
ACCUMULATION = (
    "single", "single", "no-sync-2", "no-sync-3", "naked-2", "uneven", "ramp", "post-local",
)  # fmt: skip
JUDGES = ("nobody", "nobody", "every rank", "rank 0", "noisy", "logged", "steering")
WRAPPERS = ("ddp", "ddp", "ddp", "ddp", "by-hand")
SHARDED = "hsdp"
"""FSDP2 on a mesh of two replicas; planned where replicas come back."""

SHAPES = ("module", "main", "main")
LOOPS = ("steps", "flat", "while", "for")
OPTIMIZERS = ("sgd", "momentum", "adamw")
BOOKS = ("kept open", "opened each time")
ODDITIES = ("unequal", "halves", "rewrapped", "poison", "exits", "leaves")
PHASES = ("forward", "backward", "reduce", "vote", "between")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    world: int
    place: str  # where the place in the data lives
    stream: str  # what draws
    when: str  # it draws
    reader: str  # of gradients
    reads_from: int  # this step on
    accumulation: str
    judge: str  # who evaluates
    wrapper: str
    shape: str  # where the loop stands
    loop: str
    optimizer: str
    schedule: bool  # of the learning rate
    books: str  # how the script's own log is written
    ranks_seed: bool  # streams differ between ranks
    victim: int
    step: int  # of the loss
    phase: str  # "" where the script kills itself, in the midst of a microbatch
    odd: str = ""  # something that few scripts do

    @property
    def inject(self) -> str:
        return f"r{self.victim}@step:{self.step}:{self.phase}" if self.phase else ""

    @property
    def suicide(self) -> str:
        """The microbatch of the script that ends its own process: rank, step, microbatch."""
        return "" if self.phase else f"{self.victim}:{self.step}:0"

    def __str__(self) -> str:
        shown = asdict(self)
        hidden = ("seed", "victim", "step", "phase", "schedule", "ranks_seed", "reads_from")
        words = [str(shown[name]) for name in shown if name not in hidden]
        return " | ".join([*words, self.inject or f"dies in {self.suicide}"])


def planned(seed: int, *, returns: bool = False) -> Plan:
    """The plan of this seed, whatever else is run. Where replicas are to come back, the loss leaves
    time for that, and a third of the plans have shards.
    """
    draw = random.Random(f"hunt {seed}")
    world = draw.choice((2, 2, 3))
    plan = Plan(
        seed=seed,
        world=world,
        place=draw.choice(PLACES),
        stream=draw.choice(STREAMS),
        when=draw.choice(WHEN),
        reader=draw.choice(READERS),
        reads_from=draw.choice((0, 0, 4)),
        accumulation=draw.choice(ACCUMULATION),
        judge=draw.choice(JUDGES),
        wrapper=draw.choice(WRAPPERS),
        shape=draw.choice(SHAPES),
        loop=draw.choice(LOOPS),
        optimizer=draw.choice(OPTIMIZERS),
        schedule=draw.random() < 0.2,
        books=draw.choice(BOOKS),
        ranks_seed=draw.random() < 0.8,
        victim=draw.randrange(world),
        step=draw.randint(2, STEPS - 2),
        phase=draw.choice((*PHASES, *PHASES, "", "", "")),
    )
    odd = draw.choice(ODDITIES) if draw.random() < 0.15 else ""
    hidden = draw.choice(HIDDEN) if draw.random() < 0.1 else plan.stream
    plan = _mended(replace(plan, odd=odd, stream=hidden))
    if not returns:
        return plan
    plan = replace(plan, step=min(plan.step, STEPS // 2))
    return _sharded(plan) if not plan.odd and seed % 3 == 0 else plan


def _sharded(plan: Plan) -> Plan:
    """The nearest plan under FSDP2: of four ranks two hold a replica, of two each one."""
    return replace(
        plan,
        wrapper=SHARDED,
        world=2 * (plan.world - 1),
        reader=plan.reader if plan.reader == "clip" else "nothing",
        accumulation="single" if plan.accumulation == "post-local" else plan.accumulation,
        judge="every rank" if plan.judge == "rank 0" else plan.judge,  # a forward is for all
    )


def _mended(plan: Plan) -> Plan:
    """The nearest plan that is a script."""
    if plan.place not in LOOPED and plan.loop == "for":
        plan = replace(plan, loop="flat")
    if plan.place == "loader":  # as nearly everybody runs it
        plan = replace(plan, loop="for")
    if plan.wrapper == "by-hand" and plan.accumulation in ("naked-2", "post-local"):
        plan = replace(plan, accumulation="no-sync-2")
    if plan.accumulation == "post-local":  # nobody's gradients are the mean of all ranks
        plan = replace(plan, reader="nothing")
    if plan.place == "global" and plan.shape == "main":
        plan = replace(plan, shape="module")
    return _odd(plan)


def _odd(plan: Plan) -> Plan:
    """The needs of an oddity: a wrapper that it is about, somebody who is left."""
    if plan.odd in ("unequal", "halves", "rewrapped"):
        plan = replace(plan, wrapper="ddp", accumulation="single", reader="nothing")
    if plan.odd in ("poison", "exits", "leaves"):
        plan = replace(plan, world=3, phase="")
    return plan
