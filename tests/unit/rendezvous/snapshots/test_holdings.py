"""The bay that is written to next, and those that are never written over."""

from rendezvous.protocol.incarnations import attempt_of, incarnation
from rendezvous.snapshots.holdings import Bay, KeeperHoldings, WritableBay, with_slack
from rendezvous.snapshots.identity import NONE, SnapshotId

FIRST, NEXT = incarnation(0, 0), incarnation(1, 0)


class Keeper(KeeperHoldings):
    """Of rank 0; memory is numbered as it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.made_bays = 0
        self.attach(0, FIRST)

    def room(self, who: int = FIRST, nbytes: int = 100) -> int:
        room = self.reserve(0, who, nbytes)
        assert room is not None
        return self.take(room, who, nbytes)

    def take(self, room: WritableBay, who: int, nbytes: int = 100) -> int:
        if room.number is not None:
            return room.number
        self.made_bays += 1
        self.made(Bay(self.made_bays, 0, nbytes, who))
        return self.made_bays

    def fill(self, step: int, who: int = FIRST) -> int:
        number, found = self.room(who), SnapshotId(attempt_of(who), step)
        assert self.filled(0, who, number, found, 1)
        assert self.summed(number, found)
        return number


def _steps(keeper: Keeper) -> list[int]:
    return [step for _, step, _, _, _ in keeper.statement()]


def test_two_bays_take_turns_and_the_older_one_goes() -> None:
    keeper = Keeper()

    assert [keeper.fill(step) for step in (1, 2, 3, 4)] == [1, 2, 1, 2]
    assert _steps(keeper) == [3, 4]


def test_what_is_safe_stays_however_old_it_gets() -> None:
    keeper = Keeper()
    keeper.fill(1)
    keeper.keep((0, 0, (0, 1), NONE))

    for step in (2, 3, 4):
        keeper.fill(step)
        assert _steps(keeper) == [1, step]


def test_what_the_job_has_gone_back_to_stays_and_what_was_safe_before_goes() -> None:
    keeper = Keeper()
    keeper.fill(1)
    keeper.fill(2)
    keeper.keep((0, 0, (0, 2), NONE))
    keeper.keep((1, 0, (0, 1), NONE))  # another rank has lost its part of the newer one
    keeper.keep((0, 0, (0, 2), NONE))  # late
    keeper.attach(0, NEXT)
    keeper.fill(2, NEXT)

    assert [held[:2] for held in keeper.statement()] == [(0, 1), (1, 2)]


def test_what_is_to_be_next_stays_beside_what_is_safe() -> None:
    keeper = Keeper()
    keeper.fill(1)
    keeper.fill(2)
    keeper.keep((0, 0, (0, 1), (0, 2)))
    assert keeper.reserve(0, FIRST, 100) is None

    keeper.keep((0, 1, (0, 2), NONE))
    keeper.fill(3)
    assert _steps(keeper) == [2, 3]


def test_a_bay_that_is_reserved_has_no_content() -> None:
    keeper = Keeper()
    keeper.fill(1)
    keeper.fill(2)
    keeper.room()

    assert _steps(keeper) == [2]


def test_what_is_read_stays() -> None:
    keeper = Keeper()
    first = keeper.fill(1)
    keeper.reading(first, 1)
    keeper.fill(2)
    keeper.fill(3)
    assert _steps(keeper) == [1, 3]
    keeper.reading(first, -1)
    keeper.fill(4)
    assert _steps(keeper) == [3, 4]


def test_memory_that_another_process_may_write_to_is_given_to_nobody() -> None:
    keeper = Keeper()
    keeper.fill(1)
    torn = keeper.room()
    keeper.attach(0, NEXT)
    assert keeper.room(NEXT) not in (1, torn)

    assert not keeper.filled(0, FIRST, torn, SnapshotId(0, 2), 1)
    assert _steps(keeper) == [1]


def test_memory_of_a_process_that_is_gone_is_used_again() -> None:
    keeper = Keeper()
    keeper.fill(1)
    torn = keeper.room()
    keeper.end(0, FIRST)
    keeper.attach(0, NEXT)

    assert keeper.room(NEXT) == torn


def test_a_process_speaks_for_its_own_attempt_only() -> None:
    keeper = Keeper()
    keeper.attach(0, NEXT)
    number = keeper.room(NEXT)

    assert not keeper.filled(0, NEXT, number, SnapshotId(0, 5), 1)
    assert keeper.filled(0, NEXT, number, SnapshotId(1, 5), 1)


def test_a_process_that_was_replaced_does_not_come_back() -> None:
    keeper = Keeper()
    keeper.attach(0, NEXT)

    assert not keeper.attach(0, FIRST)
    assert not keeper.speaks(0, FIRST)


def test_what_is_being_summed_stays() -> None:
    keeper = Keeper()
    keeper.fill(1)
    keeper.keep((0, 0, (0, 1), NONE))
    number = keeper.room()
    keeper.filled(0, FIRST, number, SnapshotId(0, 2), 1)
    assert keeper.reserve(0, FIRST, 100) is None

    assert keeper.summed(number, SnapshotId(0, 2))
    assert keeper.room() == number
    assert not keeper.summed(number, SnapshotId(0, 2))


def test_a_bay_that_is_too_small_goes_when_it_may() -> None:
    keeper = Keeper()
    keeper.fill(1)
    keeper.keep((0, 0, (0, 1), NONE))
    keeper.fill(2)
    room = keeper.reserve(0, FIRST, 1000)

    assert room is not None
    assert (room.number, room.dropped) == (None, (2,))
    assert _steps(keeper) == [1]


def test_of_a_job_that_went_back_the_newer_attempt_counts_more() -> None:
    keeper = Keeper()
    keeper.fill(10)
    keeper.fill(20)
    keeper.keep((0, 0, (0, 10), NONE))  # the one that all ranks have
    keeper.attach(0, NEXT)
    keeper.fill(12, NEXT)

    assert keeper.statement()[-1][:2] == (1, 12)
    assert _steps(keeper) == [10, 12]


def test_turns_are_left_out_and_all_are_taken_again_once_they_are_counted_anew() -> None:
    keeper, step = Keeper(), 0

    def takes(turn: int) -> bool:
        nonlocal step
        if (room := keeper.reserve(0, FIRST, 100, turn)) is None:
            return False
        number, step = keeper.take(room, FIRST), step + 1
        assert keeper.filled(0, FIRST, number, SnapshotId(0, step), 1)
        return keeper.summed(number, SnapshotId(0, step))

    assert [turn for turn in range(1, 13) if takes(turn)] == [1, 2, 3, 4, 8]
    assert [turn for turn in range(1, 4) if takes(turn)] == [1, 2]


def test_a_snapshot_that_holds_some_more_finds_room_in_the_bay_that_is_there() -> None:
    keeper, nbytes = Keeper(), 300 << 20
    numbers = []

    for step, more in enumerate((0, 4096, 8192, 65536, 1 << 20, 0)):
        room = keeper.reserve(0, FIRST, nbytes + more)
        assert room is not None
        numbers.append(keeper.take(room, FIRST, with_slack(nbytes + more)))
        assert keeper.filled(0, FIRST, numbers[-1], SnapshotId(0, step), 1)
        assert keeper.summed(numbers[-1], SnapshotId(0, step))

    assert numbers == [1, 2, 1, 2, 1, 2]


def test_memory_ahead_of_a_snapshot_is_what_that_gets_and_nothing_told_is_lost_for_it() -> None:
    keeper = Keeper()

    def ahead() -> int | None:
        room = keeper.reserve(0, FIRST, 100, None)
        return None if room is None else keeper.take(room, FIRST)

    assert [ahead(), keeper.fill(1), ahead(), keeper.fill(2), ahead()] == [1, 1, 2, 2, None]
    keeper.keep((0, 0, (0, 2), NONE))
    assert _steps(keeper) == [1, 2]
    assert ahead() == 1  # the older one is of no use any more
    assert _steps(keeper) == [2]


def test_a_snapshot_that_does_not_fit_is_none_any_more_whatever_is_kept() -> None:
    keeper = Keeper()
    keeper.fill(1)
    number = keeper.fill(2)
    order = (0, 0, (0, 2), NONE)
    keeper.keep(order)

    assert keeper.keep(order, {SnapshotId(0, 2)}) == [number]
    assert _steps(keeper) == [1]
    assert keeper.room() == number
