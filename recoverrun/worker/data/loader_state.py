"""Where a process stands as it makes a data iterator, and how a copy of the loader is put there."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from recoverrun.worker.data.iterator_origin import advanced_generators
from recoverrun.worker.data.samplers import samplers_of
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import Streams, read_streams, tensor_bytes


@dataclass(frozen=True, slots=True)
class LoaderState:
    """Where this process stood: its streams, and the loader's own generators and samplers.

    A loader and its sampler may share a generator, and then both move it: hence the identities.
    torchdata's StatefulDataLoader may go on from where another one stood: `resumed`.
    """

    streams: Streams
    states: dict[int, torch.Tensor]  # of each generator, by its identity
    generator: int
    samplers: tuple[tuple[int, Any], ...]  # identity of the generator, epoch
    resumed: Any = None

    @staticmethod
    def of(loader: "DataLoader[Any]") -> "LoaderState":
        samplers = samplers_of(loader)
        held = [getattr(owner, "generator", None) for owner in (loader, *samplers)]
        return LoaderState(
            streams=read_streams(),
            states={id(one): one.get_state() for one in held if isinstance(one, torch.Generator)},
            generator=id(held[0]),
            samplers=tuple(
                (id(generator), getattr(sampler, "epoch", None))
                for generator, sampler in zip(held[1:], samplers, strict=True)
            ),
            resumed=vars(loader).get("next_iter_state"),
        )

    @property
    def generator_states(self) -> tuple[bytes, ...]:
        """The states, in the order of the loader and its samplers."""
        return tuple(tensor_bytes(state) for state in self.states.values())

    def with_generators(self, states: tuple[bytes, ...]) -> "LoaderState":
        """The same with these states of generators. Raises NotReplayable."""
        if states == self.generator_states:
            return self
        if len(states) != len(self.states):
            raise NotReplayable("another rank shuffles its data by other generators")
        tensors = (torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in states)
        return replace(self, states=dict(zip(self.states, tensors, strict=True)))

    def moved_from(self, created: "LoaderState", theirs: tuple[bytes, ...]) -> "LoaderState":
        """Generators that stood at `theirs` where ours were `created` are moved on to here.

        Raises NotReplayable.
        """
        moved = advanced_generators(theirs, created.generator_states, self.generator_states)
        if moved is None:
            raise NotReplayable("a generator is seeded as the order of data begins")
        return self.with_generators(moved)

    def loader_generator(self) -> torch.Generator | None:
        """One of its own that stands where the loader's did, if that has one."""
        if self.generator not in self.states:
            return None
        made = torch.Generator()
        made.set_state(self.states[self.generator])
        return made

    def apply_to(self, clone: "DataLoader[Any]") -> None:
        """Put the generators and samplers of `clone` there; its generators are its own."""
        made = {key: torch.Generator() for key in self.states}
        for key, generator in made.items():
            generator.set_state(self.states[key])
        vars(clone)["generator"] = made.get(self.generator)
        for sampler, (key, epoch) in zip(samplers_of(clone), self.samplers, strict=True):
            if key in made:
                sampler.generator = made[key]
            if epoch is not None:
                sampler.epoch = epoch
        if self.resumed is not None:
            vars(clone)["next_iter_state"] = _for_rows(self.resumed, clone)


def _for_rows(state: Any, clone: "DataLoader[Any]") -> Any:
    """The state of a loader for `clone`, a copy of it. A data set that is no stream is the script's
    own, and must not be put anywhere.
    """
    if isinstance(clone.dataset, IterableDataset):
        return copy.deepcopy(state)
    return copy.deepcopy({**state, "dataset_state": None})
