"""The store answers as torch's TCPStore does; no key of a dead generation is ever read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.store.kv import Called, Store, Superseded, Tick


class Client:
    """One rank that calls the store; time passes only where it is told to."""

    def __init__(self) -> None:
        self.store = Store()
        self.serial = 0

    def call(
        self,
        op: Any,
        *keys: str,
        values: tuple[bytes, ...] = (),
        amount: int = 0,
        generation: int = 0,
        rank: int = 0,
        timeout_s: float = 10.0,
        now: float = 0.0,
    ) -> list[StoreAnswer]:
        self.serial += 1
        call = StoreCall(
            rank=rank,
            serial=self.serial,
            generation=generation,
            op=op,
            keys=keys,
            values=values,
            amount=amount,
            timeout_s=timeout_s,
        )
        return self.store.step(Called(call), now)

    def one(self, op: Any, *keys: str, **more: Any) -> StoreAnswer:
        (answer,) = self.call(op, *keys, **more)
        return answer


def test_what_was_set_is_what_is_read() -> None:
    client = Client()

    client.call("set", "a", values=(b"1",))
    client.call("mset", "b", "c", values=(b"2", b""))

    assert client.one("get", "a").values == (b"1",)
    assert client.one("mget", "c", "b").values == (b"", b"2")
    assert client.one("wait", "a", "b").values == ()
    assert client.one("check", "a", "b", "c").number == 1
    assert client.one("check", "a", "z").number == 0
    assert client.one("count").number == 3


def test_a_sum_is_kept_as_decimal_text() -> None:
    client = Client()

    assert client.one("add", "n", amount=3).number == 3
    assert client.one("add", "n", amount=-5).number == -2
    assert client.one("get", "n").values == (b"-2",)
    client.call("set", "n", values=(b"40",))
    assert client.one("add", "n", amount=2).number == 42


@pytest.mark.parametrize(
    "value", [b"", b"x", b"1.5", b"-", b" 1", b"9" * 30, str(2**63 - 1).encode()]
)
def test_what_is_no_sum_is_not_added_to(value: bytes) -> None:
    client = Client()
    client.call("set", "n", values=(value,))

    answer = client.one("add", "n", amount=1)

    assert answer.status == "timeout" and b"'n'" in answer.values[0]
    assert client.one("get", "n").values == (value,)


def test_compare_and_set_follows_tcp_store() -> None:
    client = Client()

    assert client.one("cas", "k", values=(b"x", b"y")).values == (b"x",)
    assert client.one("check", "k").number == 0
    assert client.one("cas", "k", values=(b"", b"y")).values == (b"y",)
    assert client.one("cas", "k", values=(b"", b"z")).values == (b"y",)
    assert client.one("cas", "k", values=(b"y", b"z")).values == (b"z",)
    assert client.one("get", "k").values == (b"z",)


def test_append_and_delete() -> None:
    client = Client()

    client.call("append", "k", values=(b"a",))
    client.call("append", "k", values=(b"b",))

    assert client.one("get", "k").values == (b"ab",)
    assert client.one("delete", "k").number == 1
    assert client.one("delete", "k").number == 0


def test_a_reader_waits_until_the_last_of_its_keys_is_there() -> None:
    client = Client()

    assert client.call("wait", "a", "b", rank=1) == []
    assert client.call("get", "a", rank=2) == []
    first = client.call("set", "a", values=(b"1",))
    second = client.call("add", "b", amount=1)

    assert [a.rank for a in first] == [0, 2] and first[1].values == (b"1",)
    assert [a.rank for a in second] == [0, 1]


def test_a_key_that_is_gone_again_is_waited_for_again() -> None:
    client = Client()
    client.call("wait", "a", "b", rank=1)

    client.call("set", "a", values=(b"1",))
    client.call("delete", "a")

    assert [a.rank for a in client.call("set", "b", values=(b"2",))] == [0]
    assert [a.rank for a in client.call("set", "a", values=(b"3",))] == [0, 1]


def test_a_wait_ends_at_its_deadline_with_a_sentence() -> None:
    client = Client()
    client.call("wait", "a", "b", timeout_s=2.0, now=1.0)
    client.call("set", "a", values=(b"1",), now=2.0)

    assert client.store.deadline() == 3.0
    assert client.store.step(Tick(), 2.9) == []
    (late,) = client.store.step(Tick(), 3.0)

    assert late.status == "timeout"
    assert late.values == (b"nobody set 'b' within 2 s",)
    assert client.store.deadline() is None
    assert client.call("set", "b", values=(b"2",), now=4.0)[1:] == []


def test_a_new_generation_lets_the_waiting_go_and_forgets_the_old_keys() -> None:
    client = Client()
    client.call("set", "address", values=(b"old",), generation=1)
    client.call("set", "job", values=(b"kept",))
    client.call("get", "other", generation=1, rank=1)
    client.call("get", "other", rank=2)

    freed = client.store.step(Superseded(2), 0.0)

    assert [(a.rank, a.status) for a in freed] == [(1, "superseded")]
    assert client.one("get", "address", generation=1).status == "superseded"
    assert client.one("set", "address", values=(b"late",), generation=1).status == "superseded"
    assert client.one("check", "address", generation=2).number == 0
    assert client.one("get", "job").values == (b"kept",)


def test_generations_do_not_see_each_others_keys() -> None:
    client = Client()

    client.call("set", "k", values=(b"0",))
    client.call("set", "k", values=(b"1",), generation=1)

    assert client.one("get", "k").values == (b"0",)
    assert client.one("get", "k", generation=1).values == (b"1",)


def test_a_repeated_write_is_answered_again_and_done_once() -> None:
    client = Client()
    client.call("add", "n", amount=1)
    client.serial -= 1

    again = client.one("add", "n", amount=1)

    assert again.number == 1
    assert client.one("add", "n", amount=1).number == 2


def test_a_repeated_wait_keeps_its_deadline() -> None:
    client = Client()
    client.call("get", "k", timeout_s=5.0, now=0.0)
    client.serial -= 1
    client.call("get", "k", timeout_s=5.0, now=4.0)

    assert client.store.deadline() == 5.0
    assert len(client.call("set", "k", values=(b"1",), now=4.5)) == 2


@pytest.mark.parametrize(
    ("op", "keys", "values"),
    [
        ("set", (), ()),
        ("set", ("a",), ()),
        ("set", ("a", "b"), (b"1",)),
        ("cas", ("a",), (b"1",)),
        ("mset", ("a", "b"), (b"1",)),
        ("get", (), ()),
        ("add", ("a",), (b"1",)),
        ("delete", ("a", "b"), ()),
    ],
)
def test_a_misshapen_call_is_answered_and_changes_nothing(
    op: str, keys: tuple[str, ...], values: tuple[bytes, ...]
) -> None:
    client = Client()

    answer = client.one(op, *keys, values=values)

    assert answer.status == "timeout" and answer.values
    assert client.one("count").number == 0


KEYS = st.sampled_from(["a", "b", "c"])
OPS = st.one_of(
    st.tuples(st.just("set"), KEYS, st.binary(max_size=2)),
    st.tuples(st.just("delete"), KEYS, st.just(b"")),
    st.tuples(st.just("get"), KEYS, st.just(b"")),
    st.tuples(st.just("advance"), st.just(""), st.just(b"")),
)


@given(st.lists(OPS, max_size=30))
def test_every_reader_gets_exactly_one_answer(ops: list[tuple[str, str, bytes]]) -> None:
    # The book of the test: plain dictionaries, and a reader that waits forever.
    client = Client()
    book: dict[str, bytes] = {}
    waiting: dict[int, str] = {}
    generation = 1
    for op, key, value in ops:
        if op == "advance":
            generation += 1
            freed = {a.serial for a in client.store.step(Superseded(generation), 0.0)}
            assert freed == set(waiting)
            book, waiting = {}, {}
            continue
        values = (value,) if op == "set" else ()
        answers = client.call(op, key, values=values, generation=generation, timeout_s=1e9)
        serial = client.serial
        if op == "set":
            book[key] = value
            woken = {s for s, wanted in waiting.items() if wanted == key}
            assert {a.serial for a in answers} == {serial} | woken
            waiting = {s: wanted for s, wanted in waiting.items() if s not in woken}
        elif op == "delete":
            assert answers[0].number == int(book.pop(key, None) is not None)
        elif key in book:
            assert answers[0].values == (book[key],)
        else:
            assert answers == []
            waiting[serial] = key
