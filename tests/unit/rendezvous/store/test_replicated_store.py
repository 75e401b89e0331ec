"""A store and its copies: what leaves when, and what another launcher has of it."""

from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.store.replicated_store import CHANGE_BYTES, PART_BYTES, Effect, ReplicatedStore, Say


class Pair:
    """A leader "a" and its follower "b"; what they say arrives at once."""

    def __init__(self) -> None:
        self.a, self.b = ReplicatedStore(founder=True), ReplicatedStore(founder=True)
        self.said: list[Say] = []
        self.b.follow(0, 1, "a", 0.0)
        self.deliver(self.a.lead(0, 1, ("b",), 0.0, anew=True))

    def deliver(self, effects: list[Effect]) -> list[StoreAnswer]:
        """Carry out what either wants until there is nothing more; the answers that leave."""
        answers = []
        todo = [("a", effect) for effect in effects]
        while todo:
            sender, effect = todo.pop(0)
            if isinstance(effect, StoreAnswer):
                answers.append(effect)
                continue
            self.said.append(effect)
            to = self.b if effect.to == "b" else self.a
            todo += [(effect.to, e) for e in to.hear(sender, effect.message, 0.0)]
        return answers

    def call(self, op: str, *values: bytes, serial: int = 1) -> list[StoreAnswer]:
        return self.deliver(self.a.call(call(op, *values, serial=serial), 0.0))

    def take_over(self, attempt: int = 0, *, anew: bool = False) -> None:
        self.b.lead(attempt, 2, (), 1.0, anew=anew)


def call(op: str, *values: bytes, serial: int = 1, amount: int = 1) -> StoreCall:
    return StoreCall(
        rank=0, serial=serial, generation=0, op=op,  # type: ignore[arg-type]
        keys=("key",), values=values, amount=amount, timeout_s=5.0,
    )  # fmt: skip


def test_a_write_is_answered_when_the_follower_has_it() -> None:
    pair = Pair()

    effects = pair.a.call(call("set", b"value"), 0.0)

    assert [type(effect) for effect in effects] == [Say]
    assert [answer.status for answer in pair.deliver(effects)] == ["ok"]


def test_reading_is_nothing_that_a_follower_has_to_know() -> None:
    pair = Pair()
    pair.call("set", b"value")
    pair.said.clear()

    (answer,) = pair.call("get", serial=2)

    assert answer.values == (b"value",) and not pair.said


def test_the_follower_goes_on_and_gives_the_same_answer_again() -> None:
    pair = Pair()
    (first,) = pair.call("add")

    pair.take_over()

    assert pair.b.call(call("add"), 1.0) == [first]
    (second,) = pair.b.call(call("add", serial=2), 1.0)
    assert isinstance(second, StoreAnswer) and second.number == 2


def test_who_follows_answers_nobody() -> None:
    pair = Pair()

    assert pair.b.call(call("add"), 0.0) == []


def test_all_that_is_stored_reaches_a_new_follower_in_frames_that_fit() -> None:
    leader, late = ReplicatedStore(founder=True), ReplicatedStore(founder=False)
    leader.lead(0, 1, (), 0.0, anew=True)
    for serial in range(5):
        value = bytes(PART_BYTES // 2)
        stored = StoreCall(
            rank=0, serial=serial, generation=0, op="set", keys=(f"key{serial}",), values=(value,),
            amount=0, timeout_s=5.0,
        )  # fmt: skip
        leader.call(stored, 0.0)
    late.follow(0, 1, "a", 0.0)

    parts = [e for e in leader.lead(0, 1, ("b",), 0.0, anew=False) if isinstance(e, Say)]
    for part in parts:
        late.hear("a", part.message, 0.0)

    assert len(parts) > 2 and late.complete
    late.lead(0, 2, (), 1.0, anew=False)
    (found,) = late.call(_get("key4"), 1.0)
    assert isinstance(found, StoreAnswer) and len(found.values[0]) == PART_BYTES // 2


def _get(key: str) -> StoreCall:
    return StoreCall(
        rank=0, serial=9, generation=0, op="get", keys=(key,), values=(), amount=0, timeout_s=5.0
    )


def test_a_new_attempt_begins_with_nothing() -> None:
    pair = Pair()
    pair.call("set", b"of a dead rank")

    assert pair.b.holds(0) and not pair.b.holds(1)
    pair.take_over(attempt=1, anew=True)

    (answer,) = pair.b.call(call("check", serial=2), 1.0)
    assert isinstance(answer, StoreAnswer) and answer.number == 0


def test_what_no_frame_could_carry_to_a_follower_is_refused() -> None:
    pair = Pair()

    (answer,) = pair.call("set", bytes(CHANGE_BYTES))

    assert answer.status == "timeout" and b"are allowed" in answer.values[0]
    assert pair.call("check", serial=2)[0].number == 0
