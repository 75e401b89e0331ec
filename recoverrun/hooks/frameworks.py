"""Frameworks whose loops train in the place of the script's own, and what they need beside.

Their loops are found as those of a script are, in the modules of `TRAINERS`; objects of classes
that these define belong to what a slot is, as those of the script's own classes do. What ranks tell
each other in there would not survive a loss by itself: `ADAPTATIONS` says how each of it does.
"""

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it imports torch, which only the script does
    from recoverrun.hooks.session import Session

Arrived = Callable[[ModuleType], None]

TRAINERS: dict[str, frozenset[str]] = {
    "transformers.trainer": frozenset(),
    "transformers.trainer_callback": frozenset(),
}
"""Modules to instrument, and names in them that lead to a backward in another module."""


def adaptations(session: "Session") -> dict[str, Arrived]:
    """What to do with each module of a framework when it is imported."""
    from recoverrun.hooks.patches import replace

    return {
        "accelerate.utils.random": lambda m: replace(m, "synchronize_rng_state", agreed),
        "transformers.trainer": lambda m: replace(
            m.Trainer, "_get_num_items_in_batch", lambda original: counting(session, original)
        ),
    }


def agreed(original: Any) -> Any:
    """Repeats from rank 0 what has been set alike on all ranks before."""
    from ft_collectives.spokesmen import speaking_for_roots

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with speaking_for_roots():
            return original(*args, **kwargs)

    return wrapper


def counting(session: "Session", original: Any) -> Any:
    """Of transformers' Trainer: the tokens in all ranks' batches of a step, which divide the loss.

    A lost rank's are counted in its batches, which a clone of the loader gives.
    """
    from ft_collectives.spokesmen import answering
    from recoverrun.hooks.batches import batches_of

    def wrapper(trainer: Any, batch_samples: list[Any], device: Any) -> Any:
        if session.machine is None or session.acting:
            return original(trainer, batch_samples, device)

        def tokens_of(rank: int) -> Any:
            theirs = batches_of(session, rank, batch_samples)
            if theirs is None:
                return None
            args = trainer.args
            asked = args.average_tokens_across_devices
            args.average_tokens_across_devices = False
            try:
                return original(trainer, theirs, device)
            finally:
                args.average_tokens_across_devices = asked

        with answering(tokens_of):
            return original(trainer, batch_samples, device)

    return wrapper
