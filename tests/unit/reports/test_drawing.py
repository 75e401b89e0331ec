"""Pictures are well-formed, and their text is text."""

import xml.etree.ElementTree as ElementTree

import pytest

from recoverrun.reports.drawing import Drawing, ticks, time_ticks


def test_text_of_a_run_stays_text() -> None:
    drawing = Drawing(10, 'a "label" <b>')
    drawing.text(0, 0, "</text><script>alert(1)</script>")
    drawing.box(0, 0, 5, 5, "x", title="</title><script>alert(2)</script>\x1b[31m")

    markup = drawing.markup()

    assert "<script" not in markup
    root = ElementTree.fromstring(markup)
    assert [one.text for one in root.iter("text")] == ["</text><script>alert(1)</script>"]
    assert root.get("aria-label") == 'a "label" <b>'


def test_a_box_without_width_is_left_out() -> None:
    drawing = Drawing(10, "")
    drawing.box(1, 1, 0, 5, "x")

    assert "rect" not in drawing.markup()


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [(0, 10, 5, [0, 2, 4, 6, 8, 10]), (0, 2, 2, [0, 1, 2]), (3, 3, 4, [3])],
)
def test_ticks_are_round(low: float, high: float, most: int, expected: list[float]) -> None:
    assert ticks(low, high, most) == pytest.approx(expected)


@pytest.mark.parametrize("seconds", [0.3, 12, 100, 5_000, 90_000, 3_000_000, 1e9])
def test_times_are_few_and_within(seconds: float) -> None:
    found = time_ticks(seconds, 8)

    assert 1 <= len(found) <= 9
    assert found[0] == 0 and found[-1] <= seconds * 1.0001
