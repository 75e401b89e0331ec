"""The ranks that leave where a proof fails: those that came back, and only if it is all their
doing.
"""

import pytest

from recoverrun.worker.verification.partners import blamed, partner_of
from rendezvous.protocol.layout import Layout

FOUR = Layout(((0,), (1,), (2,), (3,)))
PAIRS = Layout(((0, 1), (2, 3), (4, 5)))

STAYED, BACK = False, True


def test_each_rank_executes_for_the_next_slot_where_that_holds_the_same_part() -> None:
    assert [partner_of(PAIRS, rank) for rank in range(6)] == [2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ({0: (True, STAYED), 1: (False, BACK), 2: (True, STAYED), 3: (True, STAYED)}, [1]),
        ({0: (True, STAYED), 1: (False, BACK), 2: (True, STAYED), 3: (False, BACK)}, [1, 3]),
        # Rank 0 executes for rank 1, and cannot: what that one has computed may be wrong.
        ({0: (False, STAYED), 1: (True, BACK), 2: (True, STAYED), 3: (True, STAYED)}, []),
        ({0: (False, BACK), 1: (False, BACK), 2: (True, STAYED), 3: (True, STAYED)}, []),
        ({0: (True, STAYED), 1: (False, BACK), 2: (False, STAYED), 3: (True, STAYED)}, []),
        (dict.fromkeys(range(4), (True, BACK)), []),
    ],
)
def test_those_that_came_back_are_to_blame_if_they_alone_fail_and_compute_what_is_right(
    tried: dict[int, tuple[bool, bool]], expected: list[int]
) -> None:
    assert blamed(FOUR, tried) == expected
