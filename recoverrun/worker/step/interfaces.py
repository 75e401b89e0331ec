"""The interfaces between the driver and those that execute, make up and prove, and strategies.

The driver imports none of the packages that implement these: `boot.assembly` gives them to it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ft_collectives.communicators.channel import Accelerator
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.step.reducer import Reducer
from ft_collectives.step.vote import Tally, VoteGroup
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import Microbatch, Top
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import LostContexts
from rendezvous.protocol.views import Identity


class Replayer(Protocol):
    """Executes microbatches as other ranks, and keeps what that needs of our own (`replay`)."""

    @property
    def compares(self) -> bool:
        """True while gradients may be compared: of first microbatches here, or in a proof."""

    def capture_top(
        self, step: int, index: int, attempt: int, top: Top, *, wanted: bool
    ) -> Context | None:
        """The context of this rank as an iteration begins; None if no execution may begin there."""

    def forward_begins(self, values: Any) -> None:
        """These inputs enter the model. Raises `Unwind` where an execution ends there."""

    def ends(self, losses: Any) -> None:
        """A backward begins, from these losses."""

    def skips(self) -> bool:
        """True if the backward that would begin in re-executed code is passed over."""

    def backward_begins(self) -> None:
        """The backward of a re-executed microbatch. Raises `Unwind` where it is spoiled."""

    def backward_done(self) -> None:
        """A backward has ended, and with it the execution. Raises `Unwind`."""

    def ran(self, step: int, microbatch: Microbatch, strategy: Strategy | None) -> None:
        """The backward of one of our own microbatches has ended."""

    def last_after(self) -> Context | None:
        """The context of this rank as its last backward ended."""

    def transaction_ends(self) -> None:
        """The gradients of the transaction are whole; code after it may read them."""

    def serve(self, strategy: Strategy) -> None:
        """Gradients are those of `strategy` from now on."""

    @property
    def look_at_the_clock(self) -> Callable[[], None]:
        """Called by the control thread: interrupt an execution that takes too long."""


class Follows(Protocol):
    """Keeps what is known of lost ranks (`make_up`)."""

    def inherit(self, left: LostContexts) -> None:
        """Take the contexts of lost ranks, on the control thread."""

    def follow(self, here: Context) -> None:
        """This rank has come to its point `here`: move what is known of lost ranks up to it."""


class MakesUp(Protocol):
    """Computes microbatches of lost ranks (`make_up`)."""

    def compute(self, identity: Identity) -> None:
        """Make up one microbatch of a lost slot. Raises what the script's own code raises."""

    def tell(self, generation: int) -> None:
        """Agree with all survivors on where lost ranks stand, before gradients are reduced."""

    @property
    def inputs(self) -> int:
        """A digest of the inputs of this rank's first microbatch of the transaction, 0 if it has
        none (`vote.INPUTS_MASK`).
        """

    def hear(self, tally: Tally) -> None:
        """Note the inputs of all ranks, from the vote."""

    def applies(self, step: int) -> None:
        """The transaction is committed, with the work of lost ranks that all have."""

    def end_step(self, step: int) -> None:
        """The sums of the transaction are delivered."""


class Rehearses(Protocol):
    """Attempts a microbatch in a copy of this process (`verification`)."""

    def is_wanted(self, identity: Identity) -> bool:
        """True if a rank may have ended by that microbatch of the present transaction."""

    def hold(self, identity: Identity, attempt: Callable[[], None]) -> str:
        """Do `attempt` in a copy. The reason why the copy did not come to its end, or "". Raises
        the NotReplayable that `attempt` raised there.
        """


class Verifier(Protocol):
    """Proves what the run promises (`verification`)."""

    def fitness(self, fabric: Fabric, vote_group: VoteGroup) -> str:
        """The reason why this script cannot be served, as all ranks find it, or "". All ranks
        enter.
        """

    def first(self) -> None:
        """The first transaction is over: prove what this run promises. All ranks enter."""

    def wants(self, top: Top) -> bool:
        """True if a proof may have to begin at this iteration, though no execution does so far."""

    def begins(self, top: Top, context: Context) -> None:
        """A transaction begins at `top`, or has begun with an iteration around."""

    def reduces(self) -> None:
        """Gradients are about to be reduced. Raises FaultyRank if this machine spoilt them."""

    @property
    def word(self) -> int:
        """The proof that this rank would enter once the transaction is committed."""

    @property
    def digest(self) -> int:
        """A digest that is equal on all ranks as long as they run alike."""

    def hear(self, tally: Tally) -> None:
        """Note the words and digests of all ranks, from the vote."""

    def committed(self) -> None:
        """A transaction is committed. Run the proof that all ranks have voted for, if any."""


class Learns(Protocol):
    """Knows something of the script that a process in a lost rank's place has to be told."""

    def learned(self) -> Any:
        """Its knowledge, as plain values for msgpack."""

    def learn(self, learned: Any) -> None:
        """Take over what others know, in such a process."""


class Returns(Protocol):
    """Lets lost ranks take part again (`arrival`)."""

    def wants(self, top: Top) -> bool:
        """True if a fresh process may have to be told how this iteration began."""

    def first_forward(self) -> None:
        """A forward begins, before the first transaction is over."""

    def begins(self, top: Top, context: Context) -> None:
        """A transaction begins at `top`, from where microbatches are executed again."""

    def committed(self) -> None:
        """A transaction is committed."""


class NoReturn:
    """The `Returns` of a run to which nobody comes back."""

    def wants(self, top: Top) -> bool:
        return False

    def first_forward(self) -> None:
        """Nothing is kept."""

    def begins(self, top: Top, context: Context) -> None:
        """Nobody is waited for."""

    def committed(self) -> None:
        """Nobody came back."""


class StrategyHost(Protocol):
    """The services of the driver that a strategy may use."""

    @property
    def worker(self) -> WorkerState: ...

    @property
    def replayer(self) -> Replayer: ...

    def watched_by(self, strategy: Strategy) -> None:
        """`strategy` serves a script that wraps no model, once it has seen a step of it."""

    def serve(self, strategy: Strategy, layout: Layout, over: Accelerator | None) -> bool:
        """Have `strategy` serve a model that is replicated as `layout` says. False if refused."""

    def begin(self) -> None:
        """The first synchronising backward is over."""

    def settle(self) -> None:
        """Make the gradients of this transaction whole, agreed and final."""

    def new_reducer(self) -> Reducer:
        """Make the reducer of a model's gradients; all ranks make theirs in the same order."""

    def forward_begins(self, values: Any) -> None:
        """The root module's forward begins, in training, on these inputs."""

    def bucket_reached(self) -> None:
        """A backward brings the gradients of a bucket."""

    def final_in(self) -> int:
        """The generation in which the backward that runs may start its reductions, 0 if none."""

    @property
    def in_schedule(self) -> bool:
        """True in a step of a pipeline's schedule: its parts are no microbatches."""


class HearsBackwards(StrategyHost, Protocol):
    """A listener to every backward of the script (`driver`)."""

    def backward_begins(self, losses: Any) -> None:
        """A backward begins. Raises `Unwind` where re-executed code is at its end."""

    def backward_done(self) -> None:
        """A backward has returned. Raises `Unwind` likewise."""

    def hooks_gradients(self) -> None:
        """The script uses gradients while backward runs."""

    def schedule(self) -> AbstractContextManager[None]:
        """Run a step of a pipeline's schedule in this scope."""
