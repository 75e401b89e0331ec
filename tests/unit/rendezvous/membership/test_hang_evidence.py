"""The proof by looks at a process."""

from dataclasses import replace

import pytest

from rendezvous.membership.hang_evidence import LOOKS, Looks
from rendezvous.protocol.hang_messages import Evidence, Stack

SLEEPS = Evidence(
    rank=0, incarnation=0, hang=1, look=0, stacks=True, serial=5, state="S", cpu_ms=0,
    kernel="futex_wait",
)  # fmt: skip
LOCK = Stack(
    rank=0, generation=1, hang=1, look=0, digest=77, frame="train.py:3 f", turns=False,
    within=False,
)  # fmt: skip
SPINS = replace(LOCK, turns=True)

Shown = tuple[str, int, Stack | None]  # state, time computed so far (ms), stack


def looks_of(
    *shown: Shown, stacks: bool = True, serials: tuple[int, ...] = (), every_s: float = 1.0
) -> Looks:
    looks = Looks()
    for number, (state, cpu_ms, stack) in enumerate(shown, 1):
        serial = serials[number - 1] if serials else SLEEPS.serial
        evidence = replace(
            SLEEPS, look=number, state=state, cpu_ms=cpu_ms, stacks=stacks, serial=serial
        )
        looks.looked(evidence, every_s * number)
        if stack is not None:
            looks.shown(replace(stack, look=number))
    return looks


def test_one_look_at_a_stopped_process_is_enough() -> None:
    assert looks_of(("T", 9, None), stacks=False).proof == "stopped"


def test_one_look_at_a_frozen_process_is_enough() -> None:
    looks = looks_of(("F", 9, None), stacks=False)

    assert looks.proof == "stopped" and looks.words == "frozen with its control group"


def test_who_was_stopped_and_goes_on_is_not_stopped() -> None:
    assert looks_of(("T", 9, None), ("R", 99, LOCK)).proof == "none"


def test_an_idle_process_with_one_stack_is_still_after_the_last_look() -> None:
    look = ("S", 10, LOCK)

    assert looks_of(*[look] * (LOOKS - 1)).proof == "none"
    assert looks_of(*[look] * LOOKS).proof == "still"


def test_looks_without_stacks_prove_nothing_but_that_it_is_stopped() -> None:
    assert looks_of(*[("S", 10, None)] * LOOKS, stacks=False).proof == "none"


@pytest.mark.parametrize(
    ("looks", "why"),
    [
        ([("S", 0, LOCK), ("S", 30, LOCK), ("S", 200, LOCK)], "it computed in between"),
        ([("S", 0, LOCK), ("S", 0, replace(LOCK, digest=78)), ("S", 0, LOCK)], "it moved"),
        ([("S", 0, LOCK), ("S", 0, None), ("S", 0, LOCK)], "a stack is on its way"),
        ([("S", 0, LOCK), ("D", 0, LOCK), ("S", 0, LOCK)], "it waits for a disk"),
        ([("R", 0, LOCK), ("S", 0, LOCK), ("S", 0, LOCK)], "it is starved"),
        ([("R", 0, SPINS), ("R", 999, SPINS), ("R", 1999, LOCK)], "it calls functions"),
    ],
)
def test_who_may_still_come_is_not_condemned(looks: list[Shown], why: str) -> None:
    assert looks_of(*looks).proof == "none", why


def test_a_loop_that_calls_nothing_is_still_though_it_computes() -> None:
    assert looks_of(("R", 0, SPINS), ("R", 999, SPINS), ("R", 1999, SPINS)).proof == "still"


def test_code_that_keeps_the_lock_is_still_if_it_computes_nothing() -> None:
    idle: list[Shown] = [("S", 5, None)] * LOOKS
    computes: list[Shown] = [("R", 0, None), ("R", 999, None), ("R", 1999, None)]

    assert looks_of(*idle).proof == "still"
    assert looks_of(*computes).proof == "none"


def test_the_newest_looks_decide() -> None:
    busy: list[Shown] = [("R", 1000 * n, LOCK) for n in range(3)]
    idle: list[Shown] = [("S", 3000, LOCK)] * LOOKS

    assert looks_of(*busy, *idle).proof == "still"


def test_looks_at_two_marks_prove_nothing() -> None:
    assert looks_of(*[("S", 0, LOCK)] * LOOKS, serials=(5, 5, 6)).proof == "none"


def test_looks_that_a_launcher_answers_at_once_as_it_goes_on_count_as_one() -> None:
    """Its ranks had no time to show a stack: all of them would pass for one that keeps a lock."""
    assert looks_of(*[("S", 10, None)] * LOOKS, every_s=0.01).proof == "none"
    assert looks_of(*[("S", 10, None)] * LOOKS).proof == "still"


def test_a_stack_may_come_before_what_the_kernel_says() -> None:
    looks = Looks()
    looks.shown(replace(LOCK, look=1, within=True))
    looks.looked(replace(SLEEPS, look=1), 1.0)

    assert looks.stack is not None and looks.within


def test_words_say_where_it_stands() -> None:
    assert looks_of().words == ""
    assert looks_of(("S", 0, LOCK)).words == "at train.py:3 f"
    assert looks_of(("T", 0, LOCK)).words == "stopped by a signal"
    assert "keeps Python's lock (in the kernel: futex_wait)" in looks_of(("S", 0, None)).words


def test_who_waits_for_its_output_to_be_read_is_spared_until_it_is() -> None:
    unread: Shown = ("S", 0, replace(LOCK, unread=True))
    read_again: Shown = ("S", 0, LOCK)

    assert looks_of(unread, unread, unread).spared
    assert looks_of(unread, unread, unread).words == "as nobody reads its output"
    assert not looks_of(unread, unread, unread, read_again).spared
