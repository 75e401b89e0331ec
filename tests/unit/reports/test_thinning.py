"""Fewer points, and no peak is lost."""

from hypothesis import given
from hypothesis import strategies as st

from recoverrun.reports.thinning import thinned

SERIES = st.lists(st.floats(-1e6, 1e6), max_size=400).map(
    lambda values: [(float(x), y) for x, y in enumerate(values)]
)


@given(SERIES, st.integers(2, 100))
def test_a_thinned_series_is_short_in_order_and_has_both_extremes(
    points: list[tuple[float, float]], most: int
) -> None:
    kept = thinned(points, most)

    assert len(kept) <= max(most, 2)
    assert kept == sorted(kept)
    assert set(kept) <= set(points)
    if points:
        assert min(y for _, y in kept) == min(y for _, y in points)
        assert max(y for _, y in kept) == max(y for _, y in points)


def test_a_short_series_stays() -> None:
    assert thinned([(0.0, 1.0), (1.0, 2.0)], 2) == [(0.0, 1.0), (1.0, 2.0)]
