"""The state of a loader when its iterator is made, and a copy of the loader put into that state."""

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
    """The random streams of this process, and the loader's generators and samplers, at one moment.

    A loader and its sampler may share a generator, and then both move it: hence the identities.
    torchdata's StatefulDataLoader may go on from the state of another loader: `resumed`.
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
            states={
                id(generator): generator.get_state()
                for generator in held
                if isinstance(generator, torch.Generator)
            },
            generator=id(held[0]),
            samplers=tuple(
                (id(generator), getattr(sampler, "epoch", None))
                for generator, sampler in zip(held[1:], samplers, strict=True)
            ),
            resumed=vars(loader).get("next_iter_state"),
        )

    @property
    def generator_states(self) -> tuple[bytes, ...]:
        """The states of all generators, the loader's first, then its samplers'."""
        return tuple(tensor_bytes(state) for state in self.states.values())

    def with_generators(self, states: tuple[bytes, ...]) -> "LoaderState":
        """Return the same with these states of generators. Raises NotReplayable."""
        if states == self.generator_states:
            return self
        if len(states) != len(self.states):
            raise NotReplayable("another rank shuffles its data by other generators")
        tensors = (torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in states)
        return replace(self, states=dict(zip(self.states, tensors, strict=True)))

    def moved_from(self, created: "LoaderState", theirs: tuple[bytes, ...]) -> "LoaderState":
        """Return this state with generators that were at `theirs` as ours were at `created`.

        They are moved on as far as ours have moved since.

        Raises NotReplayable.
        """
        moved = advanced_generators(theirs, created.generator_states, self.generator_states)
        if moved is None:
            raise NotReplayable("a generator is seeded as the order of data begins")
        return self.with_generators(moved)

    def loader_generator(self) -> torch.Generator | None:
        """Return a new generator in the state of the loader's, if that has one."""
        if self.generator not in self.states:
            return None
        made = torch.Generator()
        made.set_state(self.states[self.generator])
        return made

    def apply_to(self, clone: "DataLoader[Any]") -> None:
        """Put `clone` into this state; it gets generators of its own."""
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
    """Return the state of a loader for `clone`, a copy of it.

    A map-style data set is the script's own object, whose state must stay as it is.
    """
    if isinstance(clone.dataset, IterableDataset):
        return copy.deepcopy(state)
    return copy.deepcopy({**state, "dataset_state": None})
