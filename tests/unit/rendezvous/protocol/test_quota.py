"""Quotas: even, at home, each identity once, for every small job and set of losses."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendezvous.protocol.quota import identities, share_out, standing_quota

SMALL = [
    (replicas, microbatches, live)
    for replicas in range(1, 7)
    for microbatches in range(1, 7)
    for count in range(1, replicas + 1)
    for live in itertools.combinations(range(replicas), count)
]


def test_standing_quotas_give_each_lost_identity_to_one_replica_for_all_small_jobs() -> None:
    for replicas, microbatches, live in SMALL:
        quota = standing_quota(live, range(replicas), microbatches)

        dealt = [identity for extra in quota.values() for identity in extra]
        lost = set(range(replicas)) - set(live)
        assert sorted(dealt) == list(identities(lost, microbatches)), (replicas, live)


def test_standing_quotas_differ_by_at_most_one_for_all_small_jobs() -> None:
    for replicas, microbatches, live in SMALL:
        quota = standing_quota(live, range(replicas), microbatches)

        loads = [len(extra) for extra in quota.values()]
        assert max(loads) - min(loads) <= 1, (replicas, microbatches, live)


def test_without_a_loss_nobody_has_extras() -> None:
    assert standing_quota((0, 1, 2), (0, 1, 2), 4) == {0: (), 1: (), 2: ()}


def test_the_earliest_replicas_take_the_rest() -> None:
    assert standing_quota((0, 2, 3), (0, 1, 2, 3), 2) == {0: ((1, 0),), 2: ((1, 1),), 3: ()}


def test_extras_are_contiguous_ranges_in_canonical_order() -> None:
    quota = standing_quota((0, 3), (0, 1, 2, 3), 3)

    assert quota == {0: ((1, 0), (1, 1), (1, 2)), 3: ((2, 0), (2, 1), (2, 2))}


def test_nobody_left_to_compute_is_an_error() -> None:
    with pytest.raises(ValueError, match="no replica is left"):
        share_out([(0, 0)], {})


LOADS = st.dictionaries(st.integers(0, 5), st.integers(0, 12), min_size=1, max_size=6)
MISSING = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=36)


@settings(max_examples=100, deadline=None)
@given(missing=MISSING, loads=LOADS)
def test_shares_are_a_partition_and_no_move_would_make_them_more_even(
    missing: set[tuple[int, int]], loads: dict[int, int]
) -> None:
    extra = share_out(missing, loads)

    dealt = [identity for ids in extra.values() for identity in ids]
    assert sorted(dealt) == sorted(missing)
    final = {replica: loads[replica] + len(extra[replica]) for replica in loads}
    least = min(final.values())
    assert all(final[r] <= least + 1 for r in final if extra[r]), final


@settings(max_examples=100, deadline=None)
@given(missing=MISSING, loads=LOADS)
def test_shares_do_not_depend_on_the_order_of_arguments(
    missing: set[tuple[int, int]], loads: dict[int, int]
) -> None:
    turned = dict(reversed(loads.items()))

    assert share_out(sorted(missing, reverse=True), turned) == share_out(missing, loads)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_loads_stay_even_when_replicas_are_lost_in_any_phase_of_a_step(data: st.DataObject) -> None:
    """Losses one after another; each time survivors have done any part of what they had to do."""
    replicas = data.draw(st.integers(2, 6))
    microbatches = data.draw(st.integers(1, 6))
    live = list(range(replicas))
    done = {slot: set(identities((slot,), microbatches)) for slot in live}
    while len(live) > 1:
        live.remove(data.draw(st.sampled_from(live)))
        held = set().union(*(done[slot] for slot in live))
        missing = set(identities(range(replicas), microbatches)) - held
        extra = share_out(missing, {slot: len(done[slot]) for slot in live})

        final = [len(done[slot]) + len(extra[slot]) for slot in live]
        assert max(final) - min(final) <= 1, final
        assert sum(final) == replicas * microbatches
        for slot in live:
            count = data.draw(st.integers(0, len(extra[slot])))
            done[slot] |= set(extra[slot][:count])
