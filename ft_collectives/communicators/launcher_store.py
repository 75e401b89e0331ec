"""The c10d store whose keys the launchers hold, so that no rank hosts what another one needs.

torch looks these method names up through `PythonStore` (torch/csrc/distributed/c10d/init.cpp), also
from C++ threads and through PrefixStore; `deleteKey` and `getNumKeys` are spelt as C++ asks for
them. C++ keeps only its own half of the object alive, so every instance and clone is pinned.

A store of generation g > 0 is private to it: when a newer generation exists every wait in it fails
at once, which is what lets a half-built communicator go.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import ClassVar

from ft_collectives.communicators.c10d import DistStoreError, Store
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall

Call = Callable[[StoreCall], StoreAnswer]
"""Sends one call and waits for its answer. Thread-safe."""


class LauncherStore(Store):
    """The store of one generation; that of `generation` 0 lives as long as the job.

    Methods are those of torch's `Store` (Store.hpp) and raise DistStoreError, as torch's stores do:
    after a time-out, and once the generation is over.
    """

    pinned: ClassVar[list["LauncherStore"]] = []

    def __init__(self, call: Call, *, rank: int, generation: int, timeout: timedelta) -> None:
        super().__init__()
        self.call = call
        self._rank = rank
        self._generation = generation
        self._timeout = timeout
        LauncherStore.pinned.append(self)

    def _ask(
        self,
        op: str,
        keys: Sequence[str] = (),
        values: Sequence[bytes] = (),
        amount: int = 0,
        timeout: timedelta | None = None,
    ) -> StoreAnswer:
        limit = (timeout or self._timeout).total_seconds()
        answer = self.call(
            StoreCall(
                rank=self._rank,
                serial=0,
                generation=self._generation,
                op=op,  # type: ignore[arg-type]  # one of ours, spelt as a literal by each caller
                keys=tuple(keys),
                values=tuple(values),
                amount=amount,
                timeout_s=limit,
            )
        )
        if answer.status == "timeout":
            shown = ", ".join(list(keys)[:3])
            raise DistStoreError(f"store {op} timed out after {limit:.0f} s for {shown}")
        if answer.status == "superseded":
            raise DistStoreError(f"generation {self._generation} is over")
        return answer

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", [key], [_bytes(value)])

    def get(self, key: str) -> bytes:
        return self._ask("get", [key]).values[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._ask("wait", keys, timeout=timeout)

    def add(self, key: str, amount: int) -> int:
        return self._ask("add", [key], amount=amount).number

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._ask("cas", [key], [_bytes(expected), _bytes(desired)]).values[0]

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", [key]).number)

    deleteKey = delete_key

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("check", keys).number)

    def num_keys(self) -> int:
        return self._ask("count").number

    getNumKeys = num_keys

    def append(self, key: str, value: str | bytes) -> None:
        self._ask("append", [key], [_bytes(value)])

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return list(self._ask("mget", keys).values)

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        self._ask("mset", keys, [_bytes(value) for value in values])

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def clone(self) -> "LauncherStore":
        return LauncherStore(
            self.call, rank=self._rank, generation=self._generation, timeout=self._timeout
        )


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
