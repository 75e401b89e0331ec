"""What the machine of a step is told (`Event`) and what it wants done (`Effect`): plain values.

The worker makes events of what its script, the launcher and the data plane do, and carries the
effects out (`recoverrun.worker.step`); the simulator does the same with a model of a worker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rendezvous.protocol.messages import Decision, Identity, Message, View

# ------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewed:
    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulated:
    """One microbatch's gradient is in the accumulators of this rank."""

    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The script is about to use the gradients; its own `microbatches` are done."""

    microbatches: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """The script dropped its gradients unused (`zero_grad`): the step begins anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """Every bucket of the step was reduced in `generation`; this rank holds the sums."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted:
    """The vote of `generation` is complete; `counts` is how often each identity is in the sum.

    `taken` is how many microbatches each rank has taken, where that differs.
    """

    generation: int
    counts: tuple[int, ...]
    taken: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The script has ended normally."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Viewed | Decided | Accumulated | Settled | Discarded | Reduced | Voted | Ended | Tick


# ------------------------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Re-execute these identities, in order; feed `Accumulated` after each."""

    identities: tuple[Identity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Reduce every bucket in `generation` from the kept accumulators; feed `Reduced`."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """All-reduce `ballot` (one count per identity) over all live ranks; feed `Voted`."""

    generation: int
    ballot: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Give the held sums to the script; the step is committed."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """An invariant does not hold; stop the job with exit code 85."""

    invariant: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Differ:
    """The script's ranks differ, so that this step is not one step of all; stop the job."""

    reason: str


Effect = Send | Compute | Reduce | Vote | Apply | Break | Differ
