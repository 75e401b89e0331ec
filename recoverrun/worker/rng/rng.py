"""The random streams of a process as plain values: read, restore, jump ahead.

A microbatch draws its dropout masks and its augmentations from these streams, so re-executing it as
its slot means running it on that slot's streams (docs/recovery.md). Streams: torch's CPU and CUDA
generators, Python's `random`, and numpy's legacy generator where the script has imported numpy.
Generators that the script keeps in objects are the business of `object_generators`.
"""

import array
import ctypes
import functools
import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch

PYTHON_VERSION = 3
"""`random.Random.getstate()[0]` since Python 3.2 (Lib/random.py)."""

CPU_BYTES = 24 + 8 * 624 + 40
"""Of torch's CPU generator: head, words, cached normal samples (`_HEAD` below)."""

PYTHON_BYTES = (4 * 625, 4 * 625 + 8)
NUMPY_BYTES = (0, 24 + 4 * 624)
"""Without numpy, and with it."""


HOSTS = ("python", "numpy")
"""Streams of the interpreter: how many numbers a call takes of them, only its code knows."""


Alone = tuple[tuple[bytes, int], ...]
"""Of torch's CPU generator and each of CUDA's: its seed, and how many of its numbers since then
were drawn by code that the script means for this rank alone (`private_draws`)."""


class Streams:
    """Where every stream stands. Two of them are equal if and only if the same numbers follow.

    `torch_cpu` may be given as the tensor that torch answers with, which nobody else may hold: one
    is read for every microbatch, and only few of them are ever needed as bytes.
    """

    __slots__ = ("_alone", "_torch_cpu", "numpy", "python", "torch_cuda")

    def __init__(
        self,
        *,
        torch_cpu: bytes | torch.Tensor,
        torch_cuda: tuple[bytes, ...],
        python: bytes,
        numpy: bytes,
        alone: Alone = (),
    ) -> None:
        self._torch_cpu = torch_cpu
        self.torch_cuda = torch_cuda
        self.python = python
        self.numpy = numpy
        self._alone = alone

    @property
    def torch_cpu(self) -> bytes:
        if not isinstance(self._torch_cpu, bytes):
            self._torch_cpu = tensor_bytes(self._torch_cpu)
        return self._torch_cpu

    @property
    def alone(self) -> tuple[int, ...]:
        """How many numbers of torch's CPU generator and of each of CUDA's were drawn by code for
        this rank alone since they were seeded.
        """
        states = (self.torch_cpu, *self.torch_cuda)
        known = [*self._alone, *[(b"", 0)] * len(states)]
        return tuple(
            count if state[:8] == seed else 0
            for state, (seed, count) in zip(states, known, strict=False)
        )

    def with_alone(self, counts: Iterable[int]) -> "Streams":
        """The same with other counts of what was drawn `alone`."""
        states = (self.torch_cpu, *self.torch_cuda)
        return Streams(
            torch_cpu=self._torch_cpu,
            torch_cuda=self.torch_cuda,
            python=self.python,
            numpy=self.numpy,
            alone=tuple((state[:8], one) for state, one in zip(states, counts, strict=True)),
        )

    @property
    def hosts(self) -> dict[str, bytes]:
        """Of `HOSTS`, by name."""
        return {"python": self.python, "numpy": self.numpy}

    def hosted(self, hosts: Mapping[str, bytes]) -> "Streams":
        """The same with these streams of `HOSTS` in place of its own."""
        return Streams(
            torch_cpu=self._torch_cpu,
            torch_cuda=self.torch_cuda,
            python=hosts.get("python", self.python),
            numpy=hosts.get("numpy", self.numpy),
            alone=self._alone,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Streams):
            return NotImplemented
        mine = self.torch_cpu, self.torch_cuda, self.python, self.numpy
        return mine == (other.torch_cpu, other.torch_cuda, other.python, other.numpy)

    def __hash__(self) -> int:
        return hash((self.torch_cpu, self.torch_cuda, self.python, self.numpy))

    def __repr__(self) -> str:
        return f"Streams({hash(self):x})"

    def pack(self) -> list[Any]:
        """Plain values for msgpack."""
        return [self.torch_cpu, list(self.torch_cuda), self.python, self.numpy, list(self.alone)]

    @staticmethod
    def unpack(packed: list[Any]) -> "Streams":
        """Raises ValueError if `packed` is not what `pack` makes."""
        if type(packed) is not list or len(packed) != 5 or type(packed[1]) is not list:
            raise ValueError("random streams: not five parts")
        cpu, cuda, python, numpy, alone = packed
        if any(type(one) is not bytes for one in (cpu, *cuda, python, numpy)):
            raise ValueError("random streams: not bytes")
        known = len(python) in PYTHON_BYTES and len(numpy) in NUMPY_BYTES
        if len(cpu) != CPU_BYTES or not known:
            raise ValueError("random streams: wrong sizes")
        counted = type(alone) is list and all(type(one) is int and one >= 0 for one in alone)
        if not counted or len(alone) != 1 + len(cuda):
            raise ValueError("random streams: no counts of what was drawn alone")
        streams = Streams(torch_cpu=cpu, torch_cuda=tuple(cuda), python=python, numpy=numpy)
        return streams.with_alone(alone)


class Memo:
    """The last state of a generator as it lies in memory, and what it was packed to.

    These generators seldom move, and asking them for their state makes 625 numbers; a look at their
    memory costs a hundredth of that.
    """

    def __init__(self) -> None:
        self.image = b""
        self.packed = b""


class NumpyMemo(Memo):
    """The same, and where it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.generator: Any = None  # held, so that its memory is nobody else's
        self.places = (0, 0)  # of its words, and of the cached Gaussian


_python = Memo()
_numpy = NumpyMemo()


class _Own:
    """What this process has drawn alone so far."""

    alone: Alone = ()


_own = _Own()


def read() -> Streams:
    """The present state of all streams."""
    cuda: tuple[bytes, ...] = ()
    if torch.cuda.is_initialized():
        cuda = tuple(tensor_bytes(state) for state in torch.cuda.get_rng_state_all())
    return Streams(
        torch_cpu=torch.default_generator.get_state(),
        torch_cuda=cuda,
        python=_python_bytes(),
        numpy=_numpy_bytes(),
        alone=_own.alone,
    )


def read_hosts() -> dict[str, bytes]:
    """The present state of `HOSTS`."""
    return {"python": _python_bytes(), "numpy": _numpy_bytes()}


def restore(streams: Streams) -> None:
    """Make the numbers that followed `streams` follow again."""
    torch.set_rng_state(_bytes_tensor(streams.torch_cpu))
    if streams.torch_cuda and torch.cuda.is_initialized():
        torch.cuda.set_rng_state_all([_bytes_tensor(state) for state in streams.torch_cuda])
    if streams.python != _python_bytes():
        random.setstate(unpack_python(streams.python))
    if streams.numpy and "numpy" in sys.modules and streams.numpy != _numpy_bytes():
        _restore_numpy(streams.numpy)


def pack_python(state: Any) -> bytes:
    """`random.Random.getstate()` as bytes: 625 words, then the cached Gaussian if there is one."""
    _, words, gauss = state
    tail = b"" if gauss is None else array.array("d", [gauss]).tobytes()
    return array.array("I", words).tobytes() + tail


def unpack_python(packed: bytes) -> Any:
    words = array.array("I", packed[: 625 * 4])
    tail = packed[625 * 4 :]
    gauss = array.array("d", tail)[0] if tail else None
    return (PYTHON_VERSION, tuple(words), gauss)


def _python_bytes() -> bytes:
    return python_bytes(random._inst, _python)  # what `random` uses


def python_bytes(generator: random.Random, memo: Memo) -> bytes:
    """As `pack_python` has them; `memo` is of this generator."""
    image = _python_image(generator)
    if not image or image != memo.image:
        memo.packed, memo.image = pack_python(generator.getstate()), image
    return memo.packed


def _python_image(generator: Any) -> bytes:
    """The words and the position of a `random.Random` in memory; b"" if it has to be asked.

    In CPython the struct is the object's header, an int and the words (Modules/_randommodule.c);
    elsewhere it may look different, and a cached Gaussian is not in it.
    """
    if _RANDOM_AT is None or generator.gauss_next is not None:
        return b""
    return ctypes.string_at(id(generator) + _RANDOM_AT, 4 * 625)


def _random_at() -> int | None:
    """Where the position and the words of a `Random` lie behind its address, if as expected."""
    offset = object.__basicsize__
    made = random.Random(1)
    if sys.implementation.name != "cpython" or made.__sizeof__() < offset + 4 * 625:
        return None
    for _ in range(3):
        made.random()
        *words, position = made.getstate()[1]
        if ctypes.string_at(id(made) + offset, 4 * 625) != _words(position, *words):
            return None
    return offset


def _words(*values: int) -> bytes:
    return array.array("I", values).tobytes()


_RANDOM_AT = _random_at()


def _numpy_bytes() -> bytes:
    numpy = sys.modules.get("numpy")
    if numpy is None or "numpy.random" not in sys.modules:
        return b""
    image = _numpy_image(numpy)
    if image and image == _numpy.image:
        return _numpy.packed
    kind, keys, position, has_gauss, gauss = numpy.random.get_state()
    if kind != "MT19937":
        return b""
    head = array.array("q", [int(position), int(has_gauss)]).tobytes()
    packed = head + array.array("d", [float(gauss)]).tobytes() + bytes(keys.tobytes())
    _numpy.image, _numpy.packed = image, packed
    return packed


def _numpy_image(numpy: Any) -> bytes:
    """The words and the position of numpy's legacy generator (`BitGenerator.ctypes`), with the
    cached Gaussian; b"" if it has to be asked.
    """
    ask = getattr(numpy.random, "get_bit_generator", None)  # since numpy 1.24
    bits: Any = ask() if ask is not None else None
    if bits is None or bits is not _numpy.generator:
        at = _gauss_at(numpy.random.RandomState) if type(bits) is numpy.random.MT19937 else None
        if at is None:
            return b""
        _numpy.generator = bits
        _numpy.places = bits.ctypes.state_address, id(numpy.random.mtrand._rand) + at
    words, gauss = _numpy.places
    return ctypes.string_at(words, 4 * _WORDS + 4) + ctypes.string_at(gauss, 16)


@functools.cache
def _gauss_at(random_state: Any) -> int | None:
    """Where `has_gauss` and `gauss` lie behind the address of a `RandomState`, an int and a double
    (aug_bitgen_t in numpy/random/src/legacy), if they can be found there.
    """
    made = random_state(1)
    places = set(range(object.__basicsize__, random_state.__basicsize__ - 15, 8))
    for _ in range(6):  # a pair of samples is made at a time: the cache fills and empties
        made.standard_normal()
        _, _, _, has_gauss, gauss = made.get_state()
        told = array.array("i", [has_gauss]).tobytes(), array.array("d", [gauss]).tobytes()
        seen = {at: ctypes.string_at(id(made) + at, 16) for at in places}
        places = {at for at in places if (seen[at][:4], seen[at][8:]) == told}
    return places.pop() if len(places) == 1 else None


def _restore_numpy(packed: bytes) -> None:
    numpy: Any = sys.modules["numpy"]
    position, has_gauss = array.array("q", packed[:16])
    gauss = array.array("d", packed[16:24])[0]
    keys = numpy.frombuffer(packed[24:], dtype=numpy.uint32).copy()
    numpy.random.set_state(("MT19937", keys, position, has_gauss, gauss))


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    state = tensor if tensor.is_cpu and tensor.is_contiguous() else _plain(tensor)
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous()


def _bytes_tensor(packed: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


# ------------------------------------------------------------------------- jumping ahead
#
# All slots run the same code on data of the same shapes, so they draw equally often. Where that
# holds (the proofs show it), the stream of a lost slot at a later microbatch is its stream now,
# advanced by as many draws as this rank's own stream made over the same microbatches.

_HEAD = 24  # seed, left, seeded, next: at::CPUGeneratorImplStateLegacy (ATen/CPUGeneratorImpl.cpp)
_WORDS = 624
_TAIL = _HEAD + 8 * _WORDS
MAX_DRAWS = 1 << 25
"""So many are counted, within a third of a second; a proof counts those of two steps, and
dropout draws two for each of its numbers. More than these cannot be told from being seeded anew.
"""


# With `shared`, draws of code that the script means for one rank alone do not count: other ranks do
# not make them.


def jump(
    streams: Streams, before: Streams, after: Streams, *, hosts: bool = True, shared: bool = False
) -> Streams | None:
    """`streams` moved on as far as `before` is from `after`, or None where that cannot be told.

    `HOSTS` stay where they are in `streams`; if they moved otherwise, that is not told, unless the
    caller sees to them (`hosts=False`).
    """
    if hosts and before.hosts != after.hosts:
        return None
    if len(streams.torch_cuda) != len(before.torch_cuda):
        return None
    draws = draws_between(before.torch_cpu, after.torch_cpu)
    if draws is None:
        return None
    alone = [new - old for new, old in zip(after.alone, before.alone, strict=True)]
    if shared and (draws := draws - alone[0]) < 0:
        return None
    cuda = tuple(
        _philox_jump(*states, less=shared * one)
        for states, one in zip(
            zip(streams.torch_cuda, before.torch_cuda, after.torch_cuda, strict=True),
            alone[1:],
            strict=True,
        )
    )
    moved = Streams(
        torch_cpu=advanced(streams.torch_cpu, draws),
        torch_cuda=cuda,
        python=streams.python,
        numpy=streams.numpy,
    )
    return moved.with_alone(streams.alone)


alone_at: set[str] = set()
"""Where in the script something was drawn alone, up to now."""


def count_alone(before: Streams, where: str) -> None:
    """What was drawn since `before` was drawn by code `where` this rank is meant alone.

    What is no matter of counting (seeded anew, very many numbers) is left out: such a stream cannot
    be told from another's in any case.
    """
    after = read()
    if after == before:  # perhaps seeded, and put back
        _own.alone = before._alone
        return
    cuda = zip(before.torch_cuda, after.torch_cuda, strict=False)  # it may have begun in between
    drawn = [draws_between(before.torch_cpu, after.torch_cpu) or 0]
    drawn += [max(0, offset(new) - offset(old)) for old, new in cuda]
    counts = [old + new for old, new in zip(before.alone, drawn, strict=True)]
    alone_at.add(where)
    seeds = [state[:8] for state in (before.torch_cpu, *before.torch_cuda)]
    _own.alone = tuple(zip(seeds, counts, strict=True))


def forget_alone() -> None:
    """Torch's streams are seeded anew."""
    _own.alone = ()


def draws_between(before: bytes, after: bytes) -> int | None:
    """How many 32-bit numbers of torch's CPU generator lie between two states."""
    if before == after:
        return 0
    if before[:8] != after[:8]:
        return None  # seeded anew
    if before[_TAIL:] != after[_TAIL:]:
        return None  # a cached normal sample: not a matter of counting
    generator = torch.Generator()
    generator.set_state(_bytes_tensor(before))
    state, drawn = before, 0
    while state[_HEAD:_TAIL] != after[_HEAD:_TAIL]:
        if drawn > MAX_DRAWS:
            return None
        drawn += _draw(generator, _left(state))
        state = tensor_bytes(generator.get_state())
    drawn += _left(state) - _left(after)
    return drawn if drawn >= 0 and advanced(before, drawn) == after else None


def _left(state: bytes) -> int:
    """Numbers until the generator's words are renewed, counting the renewing one."""
    return int.from_bytes(state[8:12], "little")


def _draw(generator: torch.Generator, count: int) -> int:
    torch.empty(count, dtype=torch.int32).random_(generator=generator)
    return count


def advanced(state: bytes, draws: int) -> bytes:
    """Torch's CPU generator, so many 32-bit numbers later."""
    generator = torch.Generator()
    generator.set_state(_bytes_tensor(state))
    _draw(generator, draws)
    return tensor_bytes(generator.get_state())


def advanced_like(
    theirs: torch.Tensor, before: torch.Tensor, after: torch.Tensor
) -> torch.Tensor | None:
    """A generator of torch's for the CPU, moved on as far as ours; None where that is not told."""
    states = [tensor_bytes(state) for state in (theirs, before, after)]
    if any(len(state) != CPU_BYTES for state in states):
        return None
    draws = draws_between(states[1], states[2])
    return None if draws is None else _bytes_tensor(advanced(states[0], draws))


def offset(state: bytes) -> int:
    """CUDA's counter-based generator: (seed, offset), 8 bytes each (CUDAGeneratorImpl.cpp)."""
    return int.from_bytes(state[8:16], "little")


def _philox_jump(state: bytes, before: bytes, after: bytes, *, less: int = 0) -> bytes:
    moved = offset(state) + offset(after) - offset(before) - less
    return state[:8] + moved.to_bytes(8, "little") + state[16:]
