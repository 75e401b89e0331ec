"""Tracebacks of many ranks on one console."""

from recoverrun.launcher.output.console_line import ConsoleLine
from recoverrun.launcher.output.repeated_tracebacks import LINES_MOST, RepeatedTracebacks

HEAD = "Traceback (most recent call last):"


def _lines(rank: int, *texts: str) -> list[ConsoleLine]:
    return [ConsoleLine(rank, f"n:{rank}│ ", text) for text in texts]


def _traceback(rank: int, error: str = "ValueError: bad") -> list[ConsoleLine]:
    return _lines(rank, HEAD, '  File "train.py", line 3, in <module>', "    load()", error)


def _texts(lines: list[ConsoleLine]) -> list[str]:
    return [line.text for line in lines]


def test_a_traceback_of_many_ranks_is_told_in_full_once() -> None:
    sieve = RepeatedTracebacks()

    first = sieve.sift(_traceback(3), last=False)
    again = [sieve.sift(_traceback(rank), last=False) for rank in range(4, 67)]

    assert first == _traceback(3)
    assert _texts(again[0]) == ["ValueError: bad (traceback as of rank 3)"]
    assert sum(map(len, again)) == LINES_MOST


def test_what_differs_in_numbers_alone_is_the_same_and_its_line_tells_the_numbers() -> None:
    sieve = RepeatedTracebacks()
    sieve.sift(_lines(0, f"[rank0]: {HEAD}", "[rank0]:   x", "[rank0]: Error: row 7"), last=False)

    found = sieve.sift(
        _lines(1, f"[rank1]: {HEAD}", "[rank1]:   x", "[rank1]: Error: row 8"), last=False
    )

    assert _texts(found) == ["[rank1]: Error: row 8 (traceback as of rank 0)"]


def test_other_errors_and_a_rank_that_repeats_itself_are_shown() -> None:
    sieve = RepeatedTracebacks()

    shown = [
        sieve.sift(block, last=False)
        for block in (_traceback(0), _traceback(0), _traceback(1, "KeyError: 'x'"))
    ]

    assert [len(lines) for lines in shown] == [4, 4, 4]


def test_a_traceback_in_pieces_is_held_until_it_is_whole_or_nothing_more_comes() -> None:
    sieve = RepeatedTracebacks()
    *begun, end = _traceback(0)

    assert sieve.sift(_lines(0, "step 1"), last=False) == _lines(0, "step 1")
    assert sieve.sift(begun, last=False) == []
    assert sieve.sift(_lines(1, "step 1"), last=False) == _lines(1, "step 1")
    assert sieve.sift([end], last=False) == _traceback(0)
    assert sieve.sift(begun, last=False) == []
    assert sieve.sift([], last=True) == begun


def test_errors_that_led_to_others_are_folded_with_what_stands_between() -> None:
    sieve = RepeatedTracebacks()
    between = ["", "During handling of the above exception, another exception occurred:", ""]

    def chained(rank: int) -> list[ConsoleLine]:
        second = _traceback(rank, "RuntimeError: worse")
        return [*_traceback(rank), *_lines(rank, *between), *second, *_lines(rank, "bye")]

    assert sieve.sift(chained(0), last=False) == chained(0)
    assert _texts(sieve.sift(chained(1), last=False)) == [
        "ValueError: bad (traceback as of rank 0)",
        "RuntimeError: worse (traceback as of rank 0)",
        "bye",
    ]
