"""The streams of Python's `random` and of numpy's legacy generator, as bytes.

Both are Mersenne Twisters of 624 words. They are read for every microbatch but seldom move, so a
reading first looks at the generator's memory, and asks the generator only if that has changed.
"""

import array
import ctypes
import functools
import random
import sys
from typing import Any

PYTHON_VERSION = 3
"""`random.Random.getstate()[0]` since Python 3.2 (Lib/random.py)."""

PYTHON_BYTES = (4 * 625, 4 * 625 + 8)
NUMPY_BYTES = (0, 24 + 4 * 624)
"""Sizes of a packed state: Python's without and with a cached Gaussian; numpy's without and with
numpy."""

WORDS = 624

Image = tuple[bytes, ...]
"""A generator as it lies in memory; () if it has to be asked."""

_Words = ctypes.c_char * (4 * (WORDS + 1))  # and a position
_Gauss = ctypes.c_char * 16  # an int, and a double


class Memo:
    """The last state of a generator as it lies in memory, and what it was packed to.

    These generators seldom move, and asking them for their state makes 625 numbers; a look at their
    memory costs a hundredth of that.
    """

    def __init__(self) -> None:
        self.image: Image = ()
        self.packed = b""
        self.at = 0  # the address of its words, of which `window` shows the memory
        self.window: Any = None


class NumpyMemo(Memo):
    """The same, and where it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.generator: Any = None  # held, so that its memory is nobody else's
        self.gauss: Any = None  # shows the cached Gaussian


# The last packed states of this process' generators: only a memory of them.
_python = Memo()
_numpy = NumpyMemo()


def read_hosts() -> dict[str, bytes]:
    """Return the present states by the name of the stream."""
    return {"python": read_python(), "numpy": read_numpy()}


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


def read_python() -> bytes:
    return python_bytes(random._inst, _python)  # what `random` uses


def restore_python(packed: bytes) -> None:
    if packed != read_python():
        random.setstate(unpack_python(packed))


def python_bytes(generator: random.Random, memo: Memo) -> bytes:
    """The bytes that `pack_python` packs; `memo` is of this generator."""
    image = _python_image(generator, memo)
    if not image or image != memo.image:
        memo.packed, memo.image = pack_python(generator.getstate()), image
    return memo.packed


def _python_image(generator: Any, memo: Memo) -> Image:
    """The words and the position of a `random.Random` in memory.

    In CPython the struct is the object's header, an int and the words (Modules/_randommodule.c);
    elsewhere it may look different, and a cached Gaussian is not in it.
    """
    if _RANDOM_AT is None or generator.gauss_next is not None:
        return ()
    at = id(generator) + _RANDOM_AT
    if memo.at != at:  # `generator` is alive: the window is on its memory as long as they agree
        memo.at, memo.window = at, _Words.from_address(at)
    return (memo.window.raw,)


def _random_at() -> int | None:
    """The offsets of position and words of a `Random` behind its address, if as expected."""
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


def read_numpy() -> bytes:
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


def restore_numpy(packed: bytes) -> None:
    """Without effect if the script has not imported numpy, or had not when `packed` was read."""
    if packed and "numpy" in sys.modules and packed != read_numpy():
        _restore_numpy(packed)


def _numpy_image(numpy: Any) -> Image:
    """The words and the position of numpy's legacy generator (`BitGenerator.ctypes`), and the
    cached Gaussian.
    """
    ask = getattr(numpy.random, "get_bit_generator", None)  # since numpy 1.24
    bits: Any = ask() if ask is not None else None
    if bits is None or bits is not _numpy.generator:
        at = _gauss_at(numpy.random.RandomState) if type(bits) is numpy.random.MT19937 else None
        if at is None:
            return ()
        _numpy.generator = bits
        _numpy.window = _Words.from_address(bits.ctypes.state_address)
        _numpy.gauss = _Gauss.from_address(id(numpy.random.mtrand._rand) + at)
    return _numpy.window.raw, _numpy.gauss.raw


@functools.cache
def _gauss_at(random_state: Any) -> int | None:
    """The offsets of `has_gauss` and `gauss` behind the address of a `RandomState`, an int and a
    double (aug_bitgen_t in numpy/random/src/legacy), if they can be found there.
    """
    made = random_state(1)
    places = set(range(object.__basicsize__, random_state.__basicsize__ - 15, 8))
    for _ in range(6):  # a pair of samples is made at a time: the cache fills and empties
        made.standard_normal()
        _, _, _, has_gauss, gauss = made.get_state()
        expected = array.array("i", [has_gauss]).tobytes(), array.array("d", [gauss]).tobytes()
        seen = {at: ctypes.string_at(id(made) + at, 16) for at in places}
        places = {at for at in places if (seen[at][:4], seen[at][8:]) == expected}
    return places.pop() if len(places) == 1 else None


def _restore_numpy(packed: bytes) -> None:
    numpy: Any = sys.modules["numpy"]
    position, has_gauss = array.array("q", packed[:16])
    gauss = array.array("d", packed[16:24])[0]
    keys = numpy.frombuffer(packed[24:], dtype=numpy.uint32).copy()
    numpy.random.set_state(("MT19937", keys, position, has_gauss, gauss))
