"""The events (`Event`) and the effects (`Effect`) of the machine of a step: plain values.

The worker makes events of what its script, the launcher and the data plane do, and carries the
effects out (`recoverrun.worker.step`); the simulator does the same with a model of a worker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rendezvous.protocol.messages import Decision, Message
from rendezvous.protocol.views import Identity, View

# ------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewed:
    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulated:
    """The gradient of one microbatch is in the accumulators of this rank."""

    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The commit point: the script has computed its own `microbatches` of the step."""

    microbatches: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """The script has dropped its gradients unused (`zero_grad`): the step begins anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """All buckets of the step were reduced in `generation`, and this rank holds the sums."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted:
    """The vote of `generation` is complete: `counts` is how often each identity is in the sum.

    `unequal`: members have taken unequally many microbatches; then `counts` is empty. So many of
    them knew, in this generation, that lost ranks are ready to take part again: `invited`.
    """

    generation: int
    counts: tuple[int, ...]
    unequal: bool = False
    invited: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Members have told each other how many microbatches each has `taken`, by rank, and `since`
    which generation those are there that came back after they were lost.
    """

    generation: int
    taken: Mapping[int, int]
    since: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invited:
    """Lost ranks are ready to take part again, as it was said in `generation`."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conceded:
    """All know that ranks took unequally many microbatches to this step, `total` of them."""

    generation: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The script has ended normally."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = (
    Viewed
    | Decided
    | Invited
    | Accumulated
    | Settled
    | Discarded
    | Reduced
    | Voted
    | Compared
    | Conceded
    | Ended
    | Tick
)


# ------------------------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Re-execute these identities, in order, and feed `Accumulated` after each."""

    identities: tuple[Identity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Reduce all buckets in `generation` from the kept accumulators, and feed `Reduced`."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """All-reduce `ballot` (one count for each identity) over all live ranks, and feed `Voted`.

    `invited`: this rank is one of those that know of lost ranks that are ready; it is counted.
    """

    generation: int
    ballot: tuple[int, ...]
    invited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Tell all members of `generation` how many microbatches this rank has taken, and feed
    `Compared`. Nobody leaves before all of them know that they differ: until then some could report
    a sum with them as whole.
    """

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """Ranks take unequally many microbatches, `total` of them, and nobody is lost: the step is
    torch's. From here on no loss can be made good: say so, then feed `Conceded`.
    """

    reason: str
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """This rank came back and does otherwise than the others: its process ends."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Give the held sums to the script: the step is committed."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """An invariant does not hold: stop the job with exit code 85."""

    invariant: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Differ:
    """The script's ranks differ in what belongs to this step: stop the job."""

    reason: str


Effect = Send | Compute | Reduce | Vote | Compare | Uneven | Withdraw | Apply | Break | Differ
