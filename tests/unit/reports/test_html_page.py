"""The page: one file, nothing from elsewhere, no text of the run that becomes markup."""

import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from recoverrun.reports.hang_stacks import HangStack
from recoverrun.reports.history import history
from recoverrun.reports.html_page import html_page
from recoverrun.reports.postmortem import judged
from rendezvous.journal.reader import RunLog, read_run
from tests.unit import journals
from tests.unit.eventful_journal import eventful

EVIL = "</title></pre></td><script>alert(1)</script><img src=//evil.example/x onerror=alert(2)>"


def _page(log: RunLog, *stacks: HangStack) -> str:
    facts = history(log)
    return html_page(judged(facts, log), facts, stacks)


class _Elements(HTMLParser):
    """The elements of the page, as a browser would have them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", journals.RUNS)
def test_a_page_is_whole_and_asks_nobody_for_anything(tmp_path: Path, name: str) -> None:
    """Check 11 of the user experience."""
    page = _page(read_run(journals.RUNS[name](tmp_path)))

    found = _Elements(page)

    assert found.open == []
    assert not found.names & {"script", "link", "img", "iframe", "object", "image", "use", "base"}
    assert not [a for a, _ in found.attributes if a.startswith("on") or a in ("src", "href")]
    assert "http://" not in page and "https://" not in page
    assert "@import" not in page and "url(" not in page
    assert "default-src 'none'" in page


def test_no_text_of_the_run_becomes_markup(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    story.start(inject=EVIL)
    story.steps(0, 3)
    story.exit(3, code=1, error=f"ValueError: {EVIL}")
    story.kill(2)
    story.lose(1, 3, EVIL)
    story.decide(4)
    story.commit(4, redone=1)
    story.recovered(4, {1: 3}, [(1, 0)])
    story.write("notice.give", EVIL, rank=0, event="promise.weaken")
    story.write("run.start", EVIL, EVIL.replace("/", "|"), run_id=EVIL, inject=EVIL, argv=[EVIL],
                world_size=6, nnodes=2, version=EVIL)  # fmt: skip
    story.end(1, 3, EVIL)
    stack = HangStack(hang=1, rank=3, text=EVIL, path=tmp_path)

    page = _page(read_run(story.close()), stack)

    found = _Elements(page)
    assert not found.names & {"script", "img"}
    assert "&lt;script&gt;" in page
    assert found.open == []


def test_it_is_for_light_dark_and_paper(tmp_path: Path) -> None:
    page = _page(read_run(journals.one_loss(tmp_path)))

    assert "prefers-color-scheme:dark" in page
    assert "@media print" in page
    assert 'name="viewport"' in page


def test_it_shows_pictures_tables_and_stacks(tmp_path: Path) -> None:
    stack = HangStack(hang=1, rank=3, text="in load_batch", path=tmp_path)

    page = _page(read_run(journals.one_loss(tmp_path)), stack)

    labels = re.findall(r'aria-label="([^"]+)"', page)
    assert labels == [
        "when each replica took part", "microbatches of each replica", "step times",
        "where the time went", "parts of recoveries",
    ]  # fmt: skip
    for text in ("completed 40 steps", "sigkill", "in load_batch", "100.0 %", "rank 3 was killed"):
        assert text in page


def test_many_steps_make_a_small_page(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    story.start()
    story.steps(0, 9)
    facts = history(log := read_run(story.close()))
    found = judged(facts, log)
    step = facts.commits[-1]
    began = time.process_time()
    facts.commits += [step.__class__(**{name: getattr(step, name) for name in step.__slots__}
                                     | {"step": n, "ts": step.ts + 0.4 * n, "ms": 400.0 + n % 97})
                      for n in range(10, 50_000)]  # fmt: skip

    page = html_page(found, facts, ())

    assert len(page) < 300_000
    assert time.process_time() - began < 20  # 1 s on a quiet machine


def test_of_a_run_without_steps_there_is_a_page(tmp_path: Path) -> None:
    page = _page(read_run(tmp_path))

    assert _Elements(page).open == []
    assert "nothing readable in this directory" in page


def test_it_tells_who_hung_who_was_slow_and_what_was_gone_back_to(tmp_path: Path) -> None:
    page = _page(read_run(eventful(tmp_path)))

    for text in ("● hangs", "rank 3 slowed each step by 90 ms", "back to step 20: 7 steps done"):
        assert text in page
    assert "77 of 77 committed are exact, 17 done again" in page
    assert "<dt>with it</dt><dd>rank 2</dd>" in page
