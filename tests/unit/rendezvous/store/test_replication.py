"""When an answer of the store may leave, and what a follower takes from whom."""

from rendezvous.protocol.register_messages import Copied, Copy, Whole
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.store import kv
from rendezvous.store.replication import (
    Apply,
    Done,
    Follow,
    Heard,
    Install,
    Lead,
    Release,
    Replication,
    SendWhole,
    Tick,
    To,
)

ANSWER = StoreAnswer(rank=0, serial=7, status="ok", values=(), number=1)
CHANGE = Done(call=b"add", superseded=0, answers=(ANSWER,))


def copy(term: int, index: int) -> Copy:
    return Copy(term=term, index=index, call=b"add", superseded=0)


def whole(term: int, index: int) -> Whole:
    return Whole(
        term=term, index=index, part=0, parts=1, generation=1, keys=(), answers=()
    )  # fmt: skip


def leader(term: int = 1, *followers: str) -> Replication:
    machine = Replication(founder=True)
    machine.step(Lead(term, followers), 0.0)
    for node in followers:
        machine.step(Heard(node, Copied(term=term, index=0)), 0.0)
    return machine


def test_without_followers_an_answer_leaves_at_once() -> None:
    assert leader().step(CHANGE, 0.0) == [Release((ANSWER,))]


def test_an_answer_waits_for_every_follower() -> None:
    machine = leader(1, "b", "c")

    assert machine.step(CHANGE, 0.0) == [To("b", copy(1, 1)), To("c", copy(1, 1))]
    assert machine.step(Heard("b", Copied(term=1, index=1)), 0.1) == []
    assert machine.step(Heard("c", Copied(term=1, index=1)), 0.1) == [Release((ANSWER,))]


def test_an_answer_that_shows_a_change_waits_with_it() -> None:
    machine = leader(1, "b")
    machine.step(Done(call=b"set", superseded=0, answers=()), 0.0)

    assert machine.step(Done(call=b"", superseded=0, answers=(ANSWER,)), 0.0) == []
    assert machine.step(Heard("b", Copied(term=1, index=1)), 0.1) == [Release((ANSWER,))]


def test_a_follower_that_was_left_out_is_not_waited_for() -> None:
    machine = leader(1, "b", "c")
    machine.step(CHANGE, 0.0)
    machine.step(Heard("b", Copied(term=1, index=1)), 0.1)

    assert machine.step(Lead(1, ("b",)), 2.0) == [Release((ANSWER,))]


def test_what_is_not_confirmed_is_said_again() -> None:
    machine = leader(1, "b")
    machine.step(CHANGE, 0.0)

    at = machine.deadline()

    assert at is not None
    assert machine.step(Tick(), at) == [To("b", copy(1, 1))]


def test_a_new_follower_gets_the_whole_and_holds_answers_up() -> None:
    machine = leader(1, "b")

    assert machine.step(Lead(1, ("b", "c")), 1.0) == [SendWhole("c", 1, 0)]
    machine.step(CHANGE, 1.0)
    assert machine.step(Heard("b", Copied(term=1, index=1)), 1.1) == []


def test_a_late_confirmation_of_an_earlier_term_releases_nothing() -> None:
    machine = leader(1, "b")
    machine.step(Follow(2, "c"), 1.0)
    machine.step(Lead(3, ("b",)), 2.0)
    machine.step(CHANGE, 2.0)

    assert machine.step(Heard("b", Copied(term=1, index=9)), 2.1) == []


def test_a_follower_takes_no_change_before_the_whole_of_its_term() -> None:
    machine = Replication(founder=True)
    machine.step(Follow(2, "a"), 0.0)

    refused = machine.step(Heard("a", copy(2, 1)), 0.1)
    taken = machine.step(Heard("a", whole(2, 0)), 0.2)

    assert refused == [To("a", Copied(term=2, index=-1))]
    assert taken == [Install((whole(2, 0),)), To("a", Copied(term=2, index=0))]
    assert machine.step(Heard("a", copy(2, 1)), 0.3)[0] == Apply(b"add", 0)


def test_a_follower_takes_nothing_from_a_deposed_leader() -> None:
    machine = Replication(founder=True)
    machine.step(Follow(1, "a"), 0.0)
    machine.step(Heard("a", whole(1, 0)), 0.1)
    machine.step(Follow(2, "b"), 0.2)

    assert machine.step(Heard("a", copy(1, 1)), 0.3) == []


def test_a_newcomer_could_not_lead_before_it_has_the_whole() -> None:
    machine = Replication(founder=False)
    machine.step(Follow(1, "a"), 0.0)
    before = machine.complete
    machine.step(Heard("a", whole(1, 4)), 0.1)

    assert (before, machine.complete) == (False, True)


def test_a_restored_store_gives_a_repeated_call_its_first_answer() -> None:
    call = StoreCall(
        rank=1, serial=5, generation=0, op="add", keys=("n",), values=(), amount=2, timeout_s=1.0
    )
    store = kv.Store()
    first = store.step(kv.Called(call), 0.0)

    keys, answers = store.contents()
    other = kv.Store.restored(store.generation, keys, answers)

    assert other.knows(call)
    assert other.step(kv.Called(call), 9.0) == first
    assert other.contents() == (keys, answers)
