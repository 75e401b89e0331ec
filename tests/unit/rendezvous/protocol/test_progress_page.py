"""The page that tells where a worker stands: whole marks or none, of one thread of one process."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.protocol.progress_page import (
    NO_LIMIT_MS,
    PAGE_BYTES,
    Phase,
    ProgressWriter,
    Wait,
    members,
    parse,
    read_page,
    spread,
)

WAIT = Wait(7, 3, 2, NO_LIMIT_MS, (0, 2, 4), "the reduction of gradients")


class Page:
    """A writer, its page, and a clock that stands at what it is set to."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "page")
        self.now_ns = 5
        self.writer = ProgressWriter(self.path, lambda: self.now_ns)

    def read(self) -> bytes:
        return Path(self.path).read_bytes()


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def test_a_mark_tells_phase_step_microbatch_wait_and_when(page: Page) -> None:
    page.writer.protects()
    page.writer.at(Phase.SETTLE, 12, 3)
    page.now_ns = 99
    page.writer.waits(WAIT)

    place = read_page(page.path)

    assert place == (3, 99, Phase.SETTLE, 12, 3, WAIT)


def test_who_goes_on_waits_no_longer_and_is_where_it_was(page: Page) -> None:
    page.writer.protects()
    page.writer.at(Phase.DATA, 4)
    page.writer.waits(WAIT)
    page.writer.goes_on()

    place = read_page(page.path)

    assert place is not None and place.wait is None
    assert (place.serial, place.phase, place.step) == (4, Phase.DATA, 4)


def test_before_the_first_transaction_is_over_every_phase_is_the_first(page: Page) -> None:
    page.writer.at(Phase.DATA, 1)
    before = read_page(page.path)
    page.writer.protects()
    page.writer.at(Phase.DATA, 1)
    after = read_page(page.path)

    assert before is not None and before.phase is Phase.FIRST
    assert after is not None and after.phase is Phase.DATA


def test_another_thread_of_the_worker_is_not_heard(page: Page) -> None:
    other = threading.Thread(target=page.writer.waits, args=(WAIT,))
    other.start()
    other.join()

    place = read_page(page.path)

    assert place is not None and place.serial == 1 and place.wait is None


def test_a_forked_child_writes_nothing_and_keeps_what_is_mapped(page: Page) -> None:
    pid = os.fork()
    if not pid:
        # The map must be there: a copy of the process is compared with what it was copied from.
        page.writer.detach()
        page.writer.at(Phase.DATA, 8)
        os._exit(0 if page.path in Path("/proc/self/maps").read_text() else 1)
    _, status = os.waitpid(pid, 0)

    place = read_page(page.path)

    assert os.waitstatus_to_exitcode(status) == 0
    assert place is not None and place.serial == 1
    page.writer.at(Phase.DATA, 8)
    again = read_page(page.path)
    assert again is not None and again.serial == 2, "the parent goes on writing"


def test_no_mixture_of_two_marks_is_believed(page: Page) -> None:
    old = page.read()
    page.now_ns = 77
    page.writer.waits(WAIT)
    new = page.read()
    differ = [at for at in range(PAGE_BYTES) if old[at] != new[at]]

    torn = [parse(new[:cut] + old[cut:]) for cut in range(differ[0] + 1, differ[-1] + 1)]

    assert parse(old) and parse(new)
    assert not any(torn)


@given(st.binary(max_size=2 * PAGE_BYTES))
def test_garbage_is_no_mark(content: bytes) -> None:
    assert parse(content) is None


def test_a_page_that_is_not_there_is_no_mark(tmp_path: Path) -> None:
    assert read_page(str(tmp_path / "none")) is None


def test_a_page_is_made_anew_where_another_worker_left_one(tmp_path: Path) -> None:
    for _ in range(2):
        ProgressWriter(str(tmp_path / "page")).waits(WAIT)

    place = read_page(str(tmp_path / "page"))

    assert place is not None and place.serial == 2


def test_a_link_in_the_place_of_the_page_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "page").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match="page"):
        ProgressWriter(str(tmp_path / "page"))

    assert not (tmp_path / "elsewhere").exists()


def test_words_that_are_too_long_are_cut_and_stay_readable(page: Page) -> None:
    page.writer.waits(WAIT._replace(what="a" * 39 + "é"))

    place = read_page(page.path)

    assert place is not None and place.wait is not None and place.wait.what == "a" * 39


@given(first=st.integers(0, 500), stride=st.integers(1, 64), count=st.integers(1, 64))
def test_members_at_even_distances_are_told(first: int, stride: int, count: int) -> None:
    ranks = list(range(first, first + stride * count, stride))

    told = spread(members(ranks))

    assert told is not None and list(told) == ranks


@pytest.mark.parametrize("ranks", [(), (0, 1, 4), (3, 1), (2, 2)])
def test_other_members_are_not_told(ranks: tuple[int, ...]) -> None:
    assert spread(members(ranks)) is None
