"""Claims of a commit are counted, not written out: checked against all identities written out."""

import random
import time
from collections import Counter
from dataclasses import replace

import pytest

from recoverrun.reports.commits import Claims, Commit, same_account
from rendezvous.protocol.views import Identity

COMMIT = Commit(
    ts=0.0,
    seq=0,
    node="n1",
    step=0,
    generation=1,
    quota={},
    done=None,
    redone=0,
    microbatches=0,
    total=0,
    ms=0.0,
    inferred=(),
    unseen=(),
    attempt=0,
)


def _written_out(commit: Commit) -> dict[int, tuple[Identity, ...]]:
    if commit.done is not None:
        return dict(commit.done)
    return {slot: tuple((slot, i) for i in range(count)) for slot, count in commit.quota.items()}


def _drawn(rng: random.Random) -> Commit:
    """Few slots and microbatches, so that all kinds of faults are frequent."""
    quota = {slot: rng.randrange(-1, 5) for slot in rng.sample(range(5), rng.randrange(5))}
    if rng.random() < 0.4:
        return replace(COMMIT, quota=quota)
    done = {
        slot: tuple((rng.randrange(-1, 4), rng.randrange(-1, 5)) for _ in range(rng.randrange(6)))
        for slot in quota
    }
    return replace(COMMIT, quota=quota, done=done)


@pytest.mark.parametrize("seed", range(300))
def test_claims_say_what_all_identities_would(seed: int) -> None:
    rng = random.Random(seed)
    commit, slots, microbatches = _drawn(rng), rng.randrange(1, 4), rng.randrange(5)
    table = _written_out(commit)
    told = Counter(identity for done in table.values() for identity in done)
    home = {(slot, index) for slot in range(slots) for index in range(microbatches)}

    claims = Claims(commit)

    assert claims.total == told.total()
    assert claims.missing(slots, microbatches, 99) == (sorted(home - told.keys()),
                                                       len(home - told.keys()))  # fmt: skip
    foreign, count = claims.foreign(slots, microbatches, 99)
    assert (sorted(foreign), count) == (sorted(told.keys() - home), len(told.keys() - home))
    assert claims.twice() == sorted(identity for identity, many in told.items() if many > 1)
    assert all(claims.count(slot) == len(table.get(slot, ())) for slot in range(6))
    assert claims.missing(slots, microbatches, 2)[0] == sorted(home - told.keys())[:2]


def test_one_account_is_known_however_it_is_written() -> None:
    short = replace(COMMIT, quota={0: 2, 1: 3, 2: 0})
    long = replace(COMMIT, node="n2", done={0: ((0, 1), (0, 0)), 1: ((1, 0), (1, 1), (1, 2))})
    other = replace(long, done={0: ((0, 1), (0, 0)), 1: ((1, 0), (1, 1), (0, 2))})

    assert same_account(short, long)
    assert not same_account(short, other)
    assert not same_account(short, replace(short, quota={0: 2, 1: 3, 2: 0}))  # of one node


def test_large_numbers_take_no_longer_than_small_ones() -> None:
    huge = replace(COMMIT, quota=dict.fromkeys(range(6), 1 << 39))
    began = time.process_time()

    claims = Claims(huge)

    assert claims.total == 6 << 39
    assert claims.missing(8, 1 << 40, 3)[1] == (8 << 40) - (6 << 39)
    assert claims.foreign(2, 1 << 10, 3)[1] == (6 << 39) - (2 << 10)
    assert time.process_time() - began < 1.0
