"""The c10d store: what torch's TCPStore would answer, held where no worker's death can take it.

Theory of operation. Keys live in namespaces: 0 lasts as long as the job, and each generation has
one of its own, so that nobody ever reads the address of a dead rank. When a generation begins, the
namespaces of older ones are dropped and everybody who waits in them is answered "superseded" at
once; a call that arrives later with an old generation gets the same answer. Generation 0 calls are
never superseded.

A call may arrive twice, because its sender repeats what was not answered. A repeated wait goes on
waiting, a repeated write gets the first one's answer again and changes nothing.

`values` of an answer: the values asked for ("get", "mget"), the value after the operation ("cas"),
or, with status "timeout", one sentence for the user. `number` is the sum ("add"), the count
("count"), and 1 or 0 for "check" and "delete".
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal, assert_never

from rendezvous.protocol.store_messages import StoreAnswer, StoreCall

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1

WRITES = frozenset({"set", "mset", "append", "add", "cas", "delete"})
"""Operations that change the store."""

REMEMBERED = 64
"""Answers to writes kept for each rank: it has far fewer threads, and each waits for one."""


@dataclass(frozen=True, slots=True)
class Called:
    call: StoreCall


@dataclass(frozen=True, slots=True)
class Superseded:
    """Generation `generation` has begun."""

    generation: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Called | Superseded | Tick


Caller = tuple[int, int]
"""(rank, serial): one call."""


@dataclass(slots=True)
class _Waiter:
    call: StoreCall
    missing: set[str]


@dataclass(slots=True)
class _Memory:
    """The last answers to one rank, by serial."""

    answers: OrderedDict[int, StoreAnswer] = field(default_factory=OrderedDict)

    def keep(self, answer: StoreAnswer) -> None:
        self.answers[answer.serial] = answer
        if len(self.answers) > REMEMBERED:
            self.answers.popitem(last=False)


class Store:
    """Machine: store calls in, answers out."""

    def __init__(self) -> None:
        self._generation = 1
        self._spaces: dict[int, dict[str, bytes]] = {0: {}}
        self._waiters: dict[Caller, _Waiter] = {}
        self._waits: dict[tuple[int, str], set[Caller]] = {}  # by generation and missing key
        self._expiries: list[tuple[float, Caller]] = []  # a heap; answered calls stay until due
        self._memories: dict[int, _Memory] = {}

    def step(self, event: Event, now: float) -> list[StoreAnswer]:
        """Take one event at monotonic time `now` (seconds)."""
        match event:
            case Called(call=call):
                answers = self._called(call, now)
            case Superseded(generation=generation):
                answers = self._supersede(generation)
            case Tick():
                answers = self._expire(now)
            case _:
                assert_never(event)
        self.check()
        return answers

    def deadline(self) -> float | None:
        """The time of the next `Tick`, or None."""
        while self._expiries and self._expiries[0][1] not in self._waiters:
            heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else None

    def check(self) -> None:
        stale = [g for g in self._spaces if 0 < g < self._generation]
        assert not stale, f"INV-5: keys of generations {stale} live in {self._generation}"

    def snapshot(self) -> dict[str, object]:
        return {
            "generation": self._generation,
            "keys": {space: len(keys) for space, keys in sorted(self._spaces.items())},
            "waiters": len(self._waiters),
        }

    @property
    def generation(self) -> int:
        """The newest that it was told to have begun."""
        return self._generation

    def knows(self, call: StoreCall) -> bool:
        """True if this repeats a write, which changes nothing any more."""
        memory = self._memories.get(call.rank)
        return memory is not None and call.serial in memory.answers

    def contents(self) -> tuple[list[tuple[int, str, bytes]], list[StoreAnswer]]:
        """All keys as (generation, key, value), and the answers that are remembered."""
        spaces = self._spaces.items()
        keys = [(g, key, value) for g, space in spaces for key, value in space.items()]
        answers = [a for memory in self._memories.values() for a in memory.answers.values()]
        return keys, answers

    @classmethod
    def restored(
        cls, generation: int, keys: Iterable[tuple[int, str, bytes]], answers: Iterable[StoreAnswer]
    ) -> "Store":
        """A store with these contents. Whoever waited in another one has to call again."""
        store = cls()
        store._generation = generation
        for space, key, value in keys:
            store._spaces.setdefault(space, {})[key] = value
        for answer in answers:
            store._memories.setdefault(answer.rank, _Memory()).keep(answer)
        return store

    # --------------------------------------------------------------------------- calls

    def _called(self, call: StoreCall, now: float) -> list[StoreAnswer]:
        memory = self._memories.setdefault(call.rank, _Memory())
        known = memory.answers.get(call.serial)
        if known is not None:
            return [known]
        if 0 < call.generation < self._generation:
            return [_answer(call, status="superseded")]
        fault = _malformed(call)
        if fault:
            return [_refusal(call, fault)]
        space = self._spaces.setdefault(call.generation, {})
        match call.op:
            case "get" | "wait" | "mget":
                return self._read(space, call, now)
            case "check":
                return [_answer(call, number=int(all(key in space for key in call.keys)))]
            case "count":
                return [_answer(call, number=len(space))]
            case "set" | "mset" | "append" | "add" | "cas" | "delete":
                answer = _write(space, call)
                memory.keep(answer)
                return [answer, *self._wake(call.generation, call.keys)]
            case _:
                assert_never(call.op)

    def _read(self, space: dict[str, bytes], call: StoreCall, now: float) -> list[StoreAnswer]:
        caller = (call.rank, call.serial)
        if caller in self._waiters:
            return []
        missing = {key for key in call.keys if key not in space}
        if not missing:
            return [_found(space, call)]
        self._waiters[caller] = _Waiter(call, missing)
        heappush(self._expiries, (now + max(0.0, call.timeout_s), caller))
        for key in missing:
            self._waits.setdefault((call.generation, key), set()).add(caller)
        return []

    # --------------------------------------------------------------------------- waiting

    def _wake(self, generation: int, keys: tuple[str, ...]) -> list[StoreAnswer]:
        """Answer whoever waited for the last of its keys."""
        space = self._spaces[generation]
        ready: list[StoreCall] = []
        for key in keys:
            if key not in space:
                continue
            for caller in sorted(self._waits.pop((generation, key), ())):
                waiter = self._waiters[caller]
                waiter.missing.discard(key)
                if not waiter.missing:
                    ready.append(waiter.call)
        return [answer for call in ready if (answer := self._finish(space, call)) is not None]

    def _finish(self, space: dict[str, bytes], call: StoreCall) -> StoreAnswer | None:
        gone = {key for key in call.keys if key not in space}
        if not gone:
            del self._waiters[call.rank, call.serial]
            return _found(space, call)
        # A key that had been there was deleted in the meantime: its reader waits for it again.
        self._waiters[call.rank, call.serial].missing = gone
        for key in gone:
            self._waits.setdefault((call.generation, key), set()).add((call.rank, call.serial))
        return None

    def _forget(self, call: StoreCall) -> None:
        waiter = self._waiters.pop((call.rank, call.serial))
        for key in waiter.missing:
            waiting = self._waits.get((call.generation, key), set())
            waiting.discard((call.rank, call.serial))
            if not waiting:
                self._waits.pop((call.generation, key), None)

    def _supersede(self, generation: int) -> list[StoreAnswer]:
        if generation <= self._generation:
            return []
        self._generation = generation
        self._spaces = {g: s for g, s in self._spaces.items() if g == 0 or g >= generation}
        left = [w.call for w in self._waiters.values() if 0 < w.call.generation < generation]
        for call in left:
            self._forget(call)
        return [_answer(call, status="superseded") for call in left]

    def _expire(self, now: float) -> list[StoreAnswer]:
        answers = []
        while (expires_at := self.deadline()) is not None and expires_at <= now:
            call = self._waiters[heappop(self._expiries)[1]].call
            answers.append(_refusal(call, self._missing(call)))
            self._forget(call)
        return answers

    def _missing(self, call: StoreCall) -> str:
        missing = sorted(self._waiters[call.rank, call.serial].missing)
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return f"nobody set {', '.join(map(repr, missing[:3]))}{more} within {call.timeout_s:g} s"


def _malformed(call: StoreCall) -> str:
    """The fault in the shape of a call, or ""."""
    keys, values = len(call.keys), len(call.values)
    wanted = {"set": 1, "append": 1, "cas": 2, "mset": keys}.get(call.op, 0)
    many = call.op in ("wait", "check", "mset", "mget", "count")
    if (not many and keys != 1) or values != wanted:
        return f"{call.op} came with {keys} keys and {values} values"
    if call.generation < 0:
        return f"there is no generation {call.generation}"
    return ""


def _write(space: dict[str, bytes], call: StoreCall) -> StoreAnswer:
    match call.op:
        case "cas":
            return _compare_and_set(space, call)
        case "add":
            return _add(space, call)
        case "delete":
            return _answer(call, number=int(space.pop(call.keys[0], None) is not None))
        case "append":
            space[call.keys[0]] = space.get(call.keys[0], b"") + call.values[0]
        case _:
            space.update(zip(call.keys, call.values, strict=True))
    return _answer(call)


def _add(space: dict[str, bytes], call: StoreCall) -> StoreAnswer:
    key = call.keys[0]
    total = _number(space.get(key, b"0"))
    if total is None:
        return _refusal(call, f"the value of {key!r} is no number to add to")
    total += call.amount
    if not INT_MIN <= total <= INT_MAX:
        return _refusal(call, f"the sum in {key!r} leaves 64 bits")
    space[key] = b"%d" % total
    return _answer(call, number=total)


def _compare_and_set(space: dict[str, bytes], call: StoreCall) -> StoreAnswer:
    """Compare and set as TCPStore does: an empty expectation creates a key; without one, the key
    stays absent.
    """
    key = call.keys[0]
    expected, desired = call.values
    if key not in space:
        if expected:
            return _answer(call, values=(expected,))
        space[key] = desired
    elif space[key] == expected:
        space[key] = desired
    return _answer(call, values=(space[key],))


def _number(value: bytes) -> int | None:
    digits = value[1:] if value[:1] == b"-" else value
    # Bounded before int(): the time of that grows with the square of the length.
    return int(value) if digits.isdigit() and len(digits) <= 20 else None


def _found(space: dict[str, bytes], call: StoreCall) -> StoreAnswer:
    values = () if call.op == "wait" else tuple(space[key] for key in call.keys)
    return _answer(call, values=values)


def _refusal(call: StoreCall, why: str) -> StoreAnswer:
    return _answer(call, status="timeout", values=(why.encode(),))


def _answer(
    call: StoreCall,
    *,
    status: Literal["ok", "timeout", "superseded"] = "ok",
    values: tuple[bytes, ...] = (),
    number: int = 0,
) -> StoreAnswer:
    return StoreAnswer(
        rank=call.rank, serial=call.serial, status=status, values=values, number=number
    )
