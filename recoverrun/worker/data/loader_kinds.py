"""The kinds of what a loader is made of: what ranks may hold apart in one, others of its kind show.

    train = DataLoader(Lines(files[rank::world]))       # the first epochs
    train = DataLoader(Rows(table[rank::world]))        # the later ones

Nobody has seen yet how ranks differ in the second one.
"""

from collections.abc import Iterator
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset

from recoverrun.worker.data.samplers import RANK_NAMES, samplers_of

SEEDED = "manual_seed"
"""The call by which a generator is a rank's own."""

ALIKE = (BatchSampler, RandomSampler, SequentialSampler)
"""Samplers that loaders make, which hold nothing of a rank but a generator."""


def kinds_of(loader: "DataLoader[Any]") -> dict[str, str]:
    """Each kind, and the name by which the script's text calls what makes such a one. Samplers that
    carry a rank are left out: another's is known.
    """
    found = {
        f"{type(one).__module__}.{type(one).__qualname__}": type(one).__qualname__
        for one in _parts(loader)
    }
    for function in (loader.collate_fn, loader.worker_init_fn):
        while isinstance(function, partial):
            function = function.func
        if isinstance(function, FunctionType) and not function.__module__.startswith("torch."):
            found[f"{function.__module__}.{function.__qualname__}"] = type(loader).__qualname__
    samplers = [vars(one).get("generator") for one in samplers_of(loader)]
    if any(isinstance(one, torch.Generator) for one in (loader.generator, *samplers)):
        found["torch.Generator"] = SEEDED
    return {f"a loader of {kind}": name.rpartition(".")[2] for kind, name in found.items()}


def _parts(loader: "DataLoader[Any]") -> Iterator[Any]:
    """The loader, its data set with those that are cut out of others, and its samplers."""
    yield loader
    data: Any = loader.dataset
    while isinstance(data, Subset):
        yield data
        data = data.dataset
    yield data
    given = [vars(loader).get("batch_sampler"), vars(loader).get("sampler"), *samplers_of(loader)]
    for sampler in given:
        ranked = any(type(getattr(sampler, name, None)) is int for name in RANK_NAMES)
        if sampler is not None and type(sampler) not in ALIKE and not ranked:
            yield sampler
