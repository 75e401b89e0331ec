"""The HTML report as a browser shows it. The output names the folder of the pictures."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from recoverrun.reports.hang_stacks import HangStack
from recoverrun.reports.history import history
from recoverrun.reports.html_page import html_page
from recoverrun.reports.postmortem import judged
from rendezvous.journal.reader import read_run
from tests.e2e.browser import PROGRAM, Browser, browser
from tests.unit import journals
from tests.unit.eventful_journal import eventful

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium"),
]

RUNS = {"eventful": eventful, "clean": journals.clean, "exception": journals.user_exception}
STACK = "rank 1, thread 0x7f\n  data.py:131 load_batch\n" + 3 * ("  " + "a_long_frame." * 20 + "\n")
LEAST_CONTRAST = 4.5  # of text, by WCAG 2 (level AA)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="module")
def pictures(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("pictures")
    yield folder
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\npictures of the report: {folder}")


def _colours(png: bytes) -> int:
    """The number of different bytes in a picture: a page without anything has one or two."""
    data, at = b"", 8
    while at < len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + size]
        at += size + 12
    return len(set(zlib.decompress(data)))


@pytest.mark.parametrize("columns", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", RUNS)
def test_a_browser_shows_the_page_as_it_is_meant(
    chromium: Browser, pictures: Path, tmp_path: Path, name: str, scheme: str, columns: int
) -> None:
    facts = history(log := read_run(RUNS[name](tmp_path)))
    stacks = [HangStack(hang=1, rank=1, text=STACK, path=tmp_path)] if name == "eventful" else []
    page = tmp_path / "run.html"
    page.write_text(html_page(judged(facts, log), facts, stacks))

    seen = chromium.show(page, columns=columns, scheme=scheme)

    (pictures / f"{name}-{scheme}-{columns}.png").write_bytes(seen.picture)
    assert seen.asked == [page.as_uri()]
    assert seen.complaints == []
    assert seen.wide <= columns, "it has to be scrolled sideways"
    assert _colours(seen.picture) > 100
    assert "Where the time went" in seen.text and "goodput" in seen.text
    assert seen.drawn and all(width > 300 and height > 20 for width, height in seen.drawn)
    assert seen.light > 0.8 if scheme == "light" else seen.light < 0.05
    assert seen.least[0] >= LEAST_CONTRAST, seen.least
