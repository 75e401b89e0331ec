"""Long series for pictures: so few points that a file stays small, and no peak is lost."""

from collections.abc import Sequence

Point = tuple[float, float]

MOST = 2000
"""Points of one series in a picture."""


def thinned(points: Sequence[Point], most: int = MOST) -> list[Point]:
    """At most `most` of the points, which are in the order of x: of each equal span of x the least
    and the greatest, in their order.
    """
    if len(points) <= most:
        return list(points)
    first, last = points[0][0], points[-1][0]
    spans = max(1, most // 2)
    width = max(last - first, 1e-9) / spans
    kept: list[Point] = []
    here: list[Point] = []
    at = 0
    for point in points:
        span = min(spans - 1, int((point[0] - first) / width))
        if span != at:
            kept += _extremes(here)
            here, at = [], span
        here.append(point)
    return kept + _extremes(here)


def _extremes(points: Sequence[Point]) -> list[Point]:
    if len(points) < 3:
        return list(points)
    found = {min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])}
    return sorted(found)
