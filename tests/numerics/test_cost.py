"""The cost of protected groups while nobody is lost."""

import os

import pytest

from tests.numerics import cost_scripts, worlds


def test_nothing_grows_with_the_operations() -> None:
    outcome = worlds.run(cost_scripts.growth, size=3)

    for counts in outcome.results.values():
        early, late = counts[:4], counts[4:]
        assert early == late


def test_connecting_adds_no_event_thread_and_none_of_them_is_in_a_hurry() -> None:
    results = worlds.run(cost_scripts.event_threads, size=2).results

    for before, after, policies in results.values():
        assert before == after > 0
        assert policies == [os.SCHED_BATCH]


def test_a_small_all_reduce_costs_a_known_multiple_of_the_native_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    native, protected = worlds.run(cost_scripts.cost, size=2).results[0]

    with capsys.disabled():
        print(
            f"\nall-reduce of 4 bytes: {native:.0f} us native, {protected:.0f} us protected, "
            f"ratio {protected / native:.1f}"
        )
