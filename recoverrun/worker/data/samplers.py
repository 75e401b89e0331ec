"""Samplers below a data loader: objects that hold others under the names that torch uses."""

from typing import Any

from torch.utils.data import DataLoader

RANK_NAMES = ("rank", "process_index", "dp_rank")
SAMPLER_NAMES = ("batch_sampler", "sampler", "base_sampler", "_sampler")


def samplers_of(loader: "DataLoader[Any]") -> list[Any]:
    """Sampler objects below a loader, outermost first, each once."""
    samplers: list[Any] = []
    todo = [vars(loader).get(name) for name in ("batch_sampler", "sampler")]
    while todo:
        sampler = todo.pop(0)
        if sampler is None or not hasattr(sampler, "__dict__"):
            continue
        if any(sampler is known for known in samplers):
            continue
        samplers.append(sampler)
        todo += [vars(sampler).get(name) for name in SAMPLER_NAMES]
    return samplers
