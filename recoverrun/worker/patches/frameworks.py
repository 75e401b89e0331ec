"""Frameworks whose loops train in the place of the script's own, and what they need beside.

Their loops are found as those of a script are, in the modules of `TRAINERS`; objects of classes
that these define belong to what a slot is, as those of the script's own classes do. What ranks tell
each other in there would not survive a loss by itself: `adaptations` says how it does.
"""

from types import ModuleType
from typing import TYPE_CHECKING, Any

from recoverrun.worker.instrumentation import TrainingHints
from recoverrun.worker.patches.monkeypatch import replace
from recoverrun.worker.rewriting.post_import import PostImportHook

if TYPE_CHECKING:  # it imports torch, which only the script does
    from recoverrun.worker.patches.parts import Parts

LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
"""One framework under two names."""

TRAINERS: dict[str, frozenset[str]] = {
    "transformers.trainer": frozenset(),
    "transformers.trainer_callback": frozenset(),
    **{f"{name}.loops.training_epoch_loop": frozenset({"advance"}) for name in LIGHTNING},
    **{f"{name}.loops.fit_loop": frozenset({"advance"}) for name in LIGHTNING},
}
"""Modules to instrument, and names in them that lead to a backward in another module."""

COUNTING = ("progress", "optimization.manual")
"""Modules of Lightning whose objects count what its loops have done, beside those adapted here."""

KNOWN = frozenset({"accelerate", "trl", "lightning_fabric"})
"""Further packages whose own loops need not be found: the script's, or those above, lead there."""

HINTS = TrainingHints(
    modules=TRAINERS,
    words={b"pipelining": frozenset({"step"})},
    packages=KNOWN.union(name.partition(".")[0] for name in TRAINERS),
)
"""A schedule of `torch.distributed.pipelining` trains in its `step`."""


LEADS = ("is_global_zero",)
ACCELERATE_LEADS = ("is_main_process",)
TRANSFORMERS_LEAD = ("should_save", "should_log")
"""Properties that are true on rank 0 alone, or on its deputy."""


def adaptations(parts: "Parts") -> dict[str, PostImportHook]:
    """The hooks for the modules of frameworks when they are imported."""
    from recoverrun.worker.rank0.failover import of_rank_zero

    def lightning_epoch(module: ModuleType) -> None:
        loop = module._TrainingEpochLoop
        replace(loop, "_broadcast_sigterm_tensor", lambda original: _unless_acting(parts, original))

    def counting_module(module: ModuleType) -> None:
        parts.worker.runtime.counting_modules.add(module.__name__)

    def lightning_optimization(module: ModuleType) -> None:
        counting_module(module)
        loop = module._AutomaticOptimization
        replace(loop, "_make_zero_grad_fn", lambda original: _unless_acting(parts, original))
        replace(loop, "_optimizer_step", lambda original: _closure_only(parts, original))

    def lightning_module(module: ModuleType) -> None:
        replace(module.LightningModule, "log", lambda original: _unless_acting(parts, original))

    def leads(owner: Any, names: tuple[str, ...]) -> None:
        for name in names:
            if isinstance(found := vars(owner).get(name), property):
                setattr(owner, name, of_rank_zero(parts.worker, name, found))

    adapted: dict[str, PostImportHook] = {}
    for name in LIGHTNING:
        adapted[f"{name}.loops.training_epoch_loop"] = lightning_epoch
        adapted[f"{name}.core.module"] = lightning_module
        adapted[f"{name}.loops.optimization.automatic"] = lightning_optimization
        adapted |= {f"{name}.loops.{part}": counting_module for part in COUNTING}
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
        adapted[f"{name}.strategies.parallel"] = lambda m: leads(vars(m)["ParallelStrategy"], LEADS)
    return {
        **adapted,
        "accelerate.state": lambda m: leads(vars(m)["PartialState"], ACCELERATE_LEADS),
        "transformers.training_args": lambda m: leads(
            vars(m)["TrainingArguments"], TRANSFORMERS_LEAD
        ),
        "accelerate.utils.random": lambda m: replace(m, "synchronize_rng_state", agreed),
        "transformers.trainer": lambda m: replace(
            vars(m)["Trainer"],
            "_get_num_items_in_batch",
            lambda original: counting(parts, original),
        ),
    }


def _unless_acting(parts: "Parts", original: Any) -> Any:
    """Lightning: do nothing in re-executed code, which would only count, or talk to nobody."""
    from ft_collectives.process_group.substitutes import substituting_roots

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if parts.worker.acting:
            return None
        with substituting_roots():
            return original(*args, **kwargs)

    return wrapper


def _closure_only(parts: "Parts", original: Any) -> Any:
    """Lightning: a re-executed optimizer step is the microbatch that it begins with."""

    def wrapper(loop: Any, batch_idx: int, closure: Any) -> None:
        if parts.worker.acting:
            closure()
        else:
            original(loop, batch_idx, closure)

    return wrapper


def agreed(original: Any) -> Any:
    """Wrap a function that tells ranks, or compares between them, what is the same on all."""
    from ft_collectives.process_group.substitutes import substituting_roots

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with substituting_roots():
            return original(*args, **kwargs)

    return wrapper


def counting(parts: "Parts", original: Any) -> Any:
    """For transformers' Trainer: count the tokens in all ranks' batches of a step, which divide the
    loss.

    A lost rank's are counted in its batches, which a clone of the loader gives.
    """
    from ft_collectives.process_group.substitutes import answering
    from recoverrun.worker.make_up.batches_ahead import batches_of

    def wrapper(trainer: Any, batch_samples: list[Any], device: Any) -> Any:
        if not parts.worker.protected or parts.worker.acting:
            return original(trainer, batch_samples, device)

        def tokens_of(rank: int) -> Any:
            theirs = batches_of(parts.worker, parts.left, parts.executor, rank, batch_samples)
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
