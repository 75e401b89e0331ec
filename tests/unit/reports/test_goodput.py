"""The waterfall in words and numbers: it adds up, and names what nobody explains."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recoverrun.reports.goodput import (
    BUCKETS,
    Bucket,
    Goodput,
    goodput_json,
    goodput_line,
    ratios_line,
    rows,
)


def goodput(**buckets: int) -> Goodput:
    known: dict[Bucket, int] = {name: buckets.get(name, 0) for name in BUCKETS}
    whole = sum(known.values())
    shown = {b: us for b, us in known.items() if us or b in ("useful", "unknown")}
    return Goodput(
        wall_us=whole, buckets=shown, steps=3, again=0, usual_us=400_000,
        work_us=2 * known["useful"], allocated_us=2 * whole, alive_us=2 * whole - whole // 2,
    )  # fmt: skip


def _tenths(share: str) -> int:
    return 0 if share == "<0.1 %" else round(10 * float(share.removesuffix(" %")))


@given(st.lists(st.integers(0, 10**12), min_size=len(BUCKETS), max_size=len(BUCKETS)))
def test_the_shares_that_people_read_sum_to_one_hundred(amounts: Sequence[int]) -> None:
    found = goodput(**dict(zip(BUCKETS, amounts, strict=True)))

    shown = rows(found)

    if not sum(amounts):
        assert shown == ()
        return
    assert sum(_tenths(row.share) for row in shown) == 1000
    assert sum(row.us for row in shown) == found.wall_us
    assert shown[0].name == "useful"
    assert shown[-1].name == "unknown"


def test_the_parts_of_recoveries_are_one_row_that_names_them() -> None:
    row = rows(goodput(useful=10**6, detect=1_000, redo=150_000, recovery=2_000))[1]

    assert (row.name, row.us) == ("recovery", 153_000)
    assert row.meaning == "detect 1, redo 150, between 2 ms"


def test_a_line_says_where_most_of_the_time_went() -> None:
    found = goodput(useful=99_300_000, startup=400_000, degraded=200_000, redo=60_000, vote=40_000)

    line = goodput_line(found)

    assert line == "99.3 %  lost: startup 400 ms · degraded 200 ms · recovery 100 ms"


def test_the_three_ratios() -> None:
    found = goodput(useful=600, startup=400)

    assert (found.ratio, found.of_allocated, found.of_alive) == (0.6, 0.6, 0.8)
    assert (
        ratios_line(found) == "60.0 % of time · 60.0 % of all replicas' · 80.0 % of live replicas'"
    )


def test_json_says_the_same() -> None:
    found = goodput(useful=600_000, startup=400_000)

    told = goodput_json(found)

    assert told["ratio"] == 0.6
    assert told["buckets"] == {
        "useful": {"s": 0.6, "share": 0.6},
        "startup": {"s": 0.4, "share": 0.4},
        "unknown": {"s": 0.0, "share": 0.0},
    }


@pytest.mark.parametrize("found", [goodput()])
def test_no_time_is_no_share(found: Goodput) -> None:
    assert goodput_line(found) == ""
    assert goodput_json(found)["ratio"] == 0.0
