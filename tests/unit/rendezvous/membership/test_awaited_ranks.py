"""The ranks that are waited for: by the members of operations, not by each of their ranks."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from rendezvous.membership.awaited_ranks import AwaitedRanks
from rendezvous.membership.hang_events import Still
from rendezvous.protocol.hang_messages import Progress
from rendezvous.protocol.progress_page import NO_LIMIT_MS

Ranks = tuple[int, int, int]


def waits(
    rank: int, ranks: Ranks, since: float, what: str = "", limit_ms: int = NO_LIMIT_MS
) -> Still:
    mark = Progress(
        rank=rank, incarnation=0, serial=1, age_ms=0, phase=1, step=1, index=0, waits=True,
        ranks=ranks, limit_ms=limit_ms, what=what,
    )  # fmt: skip
    return Still(mark, since)


def test_members_are_waited_for_since_the_first_of_them_came() -> None:
    awaited = AwaitedRanks({
        0: waits(0, (0, 2, 3), 7.0, "a", 10_000),
        2: waits(2, (0, 2, 3), 5.0, "a"),
        1: waits(1, (1, 2, 3), 1.0, "b"),
    })  # fmt: skip

    assert (awaited.since(4), awaited.ends(4), awaited.by(4)) == (5.0, 17.0, (0, 2))
    assert (awaited.since(3), awaited.ends(3), awaited.by(3)) == (1.0, inf, (1,))
    assert (awaited.what(4), awaited.what(3)) == ("a", "b")
    assert awaited.since(6) is None


def test_where_members_are_not_told_all_are_waited_for() -> None:
    awaited = AwaitedRanks(
        {5: waits(5, (0, 0, 0), 3.0, "others"), 1: waits(1, (0, 1, 4), 4.0, "all")}
    )

    assert (awaited.since(99), awaited.by(99), awaited.what(99)) == (3.0, (5,), "others")
    assert (awaited.since(2), awaited.by(2), awaited.what(2)) == (3.0, (1, 5), "all")


@given(
    st.dictionaries(
        st.integers(0, 15),
        st.tuples(
            st.sampled_from([(0, 0, 0), (0, 1, 8), (0, 2, 8), (1, 2, 8), (4, 1, 4)]),
            st.floats(0, 100),
        ),
    )
)
def test_it_is_what_a_look_at_each_wait_would_show(known: dict[int, tuple[Ranks, float]]) -> None:
    awaited = AwaitedRanks({rank: waits(rank, *wait) for rank, wait in known.items()})

    for rank in set(range(20)) - known.keys():
        since = {
            one: at
            for one, ((first, stride, count), at) in known.items()
            if not count or rank in range(first, first + stride * count, stride)
        }
        assert awaited.since(rank) == min(since.values(), default=None)
        assert awaited.by(rank) == tuple(sorted(since))
