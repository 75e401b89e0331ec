"""The surroundings of a loop, which an execution of its body leaves as they were."""

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from recoverrun.worker.context import module_state, undo_log
from recoverrun.worker.context.module_state import ModuleStructure
from recoverrun.worker.context.namespaces import modules_in
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.step import switches
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.tracking.microbatches import Top


@contextmanager
def unchanged(
    top: Top,
    names: dict[str, Any],
    own_modules: frozenset[str],
    optimizers: Collection[torch.optim.Optimizer],
    strategy: Strategy | None,
) -> Iterator[ModuleStructure]:
    """Afterwards modules, objects, variables, optimizers and buffers are what they were."""
    modules = modules_in({**top.globals, **top.names}, own_modules)
    spaces = [vars(sys.modules[name]) for name in sorted(own_modules) if name in sys.modules]
    spaces = [*spaces, top.names, names]
    buffers = strategy.buffers() if strategy is not None else []
    untouched = module_state.untouched(modules, buffers)
    with untouched as structure, undo_log.optimizers_rest(optimizers):
        with undo_log.unchanged(spaces, modules, optimizers, own_modules):
            with REGISTRY.as_at(top.made), switches.as_at(top.switches):
                yield structure
