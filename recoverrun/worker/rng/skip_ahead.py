"""Skip-ahead: a stream of another rank, moved on by as many draws as this rank's own made.

All ranks run the same code on data of the same shapes, so they draw equally often; proofs check
that. The stream of a lost rank at a later microbatch is then its last known stream, advanced by the
number of draws that this rank's own stream made over the same microbatches.
"""

import torch

from recoverrun.worker.rng.streams import CPU_BYTES, Streams, bytes_tensor, tensor_bytes

_HEAD = 24  # seed, left, seeded, next: at::CPUGeneratorImplStateLegacy (ATen/CPUGeneratorImpl.cpp)
_WORDS = 624
_TAIL = _HEAD + 8 * _WORDS
MAX_DRAWS = 1 << 25
"""The most draws that are counted, which takes a third of a second. A proof counts those of two
steps, and dropout draws two for each of its numbers. More look like being seeded anew."""


def skip_ahead(
    streams: Streams, before: Streams, after: Streams, *, hosts: bool = True, shared: bool = False
) -> Streams | None:
    """Return `streams` moved on by the draws from `before` to `after`; None if these are unknown.

    The streams of `host_streams` stay as they are in `streams`. If ours moved, the result is
    unknown, unless the caller takes care of them (`hosts=False`). With `shared`, private draws
    are not counted: other ranks do not make them.
    """
    if hosts and before.hosts != after.hosts:
        return None
    if len(streams.torch_cuda) != len(before.torch_cuda):
        return None
    draws = draws_between(before.torch_cpu, after.torch_cpu)
    if draws is None:
        return None
    private = [new - old for new, old in zip(after.private, before.private, strict=True)]
    if shared and (draws := draws - private[0]) < 0:
        return None
    cuda = tuple(
        _skip_philox(*states, less=shared * count)
        for states, count in zip(
            zip(streams.torch_cuda, before.torch_cuda, after.torch_cuda, strict=True),
            private[1:],
            strict=True,
        )
    )
    moved = Streams(
        torch_cpu=skip_draws(streams.torch_cpu, draws),
        torch_cuda=cuda,
        python=streams.python,
        numpy=streams.numpy,
    )
    return moved.with_private(streams.private)


def draws_between(before: bytes, after: bytes) -> int | None:
    """Return how many 32-bit numbers of torch's CPU generator lie between two states."""
    if before == after:
        return 0
    if before[:8] != after[:8]:
        return None  # seeded anew
    if before[_TAIL:] != after[_TAIL:]:
        return None  # a cached normal sample: not a matter of counting
    generator = torch.Generator()
    generator.set_state(bytes_tensor(before))
    state, drawn = before, 0
    while state[_HEAD:_TAIL] != after[_HEAD:_TAIL]:
        if drawn > MAX_DRAWS:
            return None
        drawn += _draw(generator, _left(state))
        state = tensor_bytes(generator.get_state())
    drawn += _left(state) - _left(after)
    return drawn if drawn >= 0 and skip_draws(before, drawn) == after else None


def _left(state: bytes) -> int:
    """Numbers until the generator's words are renewed, counting the renewing one."""
    return int.from_bytes(state[8:12], "little")


def _draw(generator: torch.Generator, count: int) -> int:
    torch.empty(count, dtype=torch.int32).random_(generator=generator)
    return count


def skip_draws(state: bytes, draws: int) -> bytes:
    """Return the state of torch's CPU generator `draws` 32-bit numbers later."""
    generator = torch.Generator()
    generator.set_state(bytes_tensor(state))
    _draw(generator, draws)
    return tensor_bytes(generator.get_state())


def skip_like(
    theirs: torch.Tensor, before: torch.Tensor, after: torch.Tensor
) -> torch.Tensor | None:
    """Return the state `theirs` of a CPU generator, moved on as far as ours; None if unknown."""
    states = [tensor_bytes(state) for state in (theirs, before, after)]
    if any(len(state) != CPU_BYTES for state in states):
        return None
    draws = draws_between(states[1], states[2])
    return None if draws is None else bytes_tensor(skip_draws(states[0], draws))


def philox_offset(state: bytes) -> int:
    """Return the counter of a CUDA state: seed, offset, 8 bytes each (CUDAGeneratorImpl.cpp)."""
    return int.from_bytes(state[8:16], "little")


def _skip_philox(state: bytes, before: bytes, after: bytes, *, less: int = 0) -> bytes:
    moved = philox_offset(state) + philox_offset(after) - philox_offset(before) - less
    return state[:8] + moved.to_bytes(8, "little") + state[16:]
