"""A headless Chromium that opens a file and tells all that a reader's browser would do with it.

It is spoken to through two pipes (`--remote-debugging-pipe`): no port, and no library.
"""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
"""A Chromium, or None."""

ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--hide-scrollbars", "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip

BESIDE = """(() => {
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(
    v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4
  ).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const colour = words => (words.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const clear = c => c.length > 3 && c[3] === 0;
  const behind = one => {
    for (let at = one; at; at = at.parentElement) {
      const found = colour(getComputedStyle(at).backgroundColor);
      if (!clear(found)) return found;
    }
    return [255, 255, 255];
  };
  let least = [99, ""];
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || one.closest("svg, style") || !one.getClientRects().length) continue;
    const pair = [light(colour(getComputedStyle(one).color)), light(behind(one))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < least[0]) least = [ratio, one.textContent.trim().slice(0, 40)];
  }
  return {
    wide: document.documentElement.scrollWidth, high: document.documentElement.scrollHeight,
    light: light(behind(document.body)), least, text: document.body.innerText,
    drawn: [...document.querySelectorAll("svg")].map(one => {
      const {width, height} = one.getBoundingClientRect(); return [width, height];
    }),
  };
})()"""
"""Of a page: its size and the light of its ground, its text and pictures, and the words with the
least contrast. Both are reckoned as WCAG 2 does.
"""


@dataclass
class Seen:
    """A page as it was shown."""

    wide: int
    high: int
    light: float  # of the ground: 0 is black, 1 white
    least: tuple[float, str]  # contrast, and the words that have it
    text: str
    drawn: list[tuple[float, float]]  # width and height of each picture
    asked: list[str] = field(default_factory=list)  # for these addresses
    complaints: list[str] = field(default_factory=list)  # of its console
    picture: bytes = b""


class Browser:
    """One Chromium, and one page in it."""

    def __init__(self, to: BinaryIO, of: BinaryIO) -> None:
        self._to, self._of = to, of
        self._number = 0
        self._session = ""
        self._events: list[dict[str, Any]] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        joined = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = joined["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def show(self, page: Path, *, columns: int, scheme: str) -> Seen:
        """Open a file in a window of this width."""
        self._events.clear()
        self._size(columns, 900)
        wish = [{"name": "prefers-color-scheme", "value": scheme}]
        self._ask("Emulation.setEmulatedMedia", features=wish)
        self._ask("Page.navigate", url=page.as_uri())
        while not self._of_kind("Page.loadEventFired"):
            self._receive()
        looked = self._ask("Runtime.evaluate", expression=BESIDE, returnByValue=True)
        assert "value" in looked["result"], looked
        seen = Seen(**looked["result"]["value"])
        self._size(columns, seen.high)
        seen.picture = base64.b64decode(self._ask("Page.captureScreenshot")["data"])
        seen.asked = [o["request"]["url"] for o in self._of_kind("Network.requestWillBeSent")]
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        seen.complaints = [json.dumps(one) for kind in kinds for one in self._of_kind(kind)]
        return seen

    def _size(self, columns: int, lines: int) -> None:
        self._ask("Emulation.setDeviceMetricsOverride", width=columns, height=lines,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip

    def _of_kind(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self._events if event["method"] == method]

    def _ask(self, method: str, /, **params: Any) -> dict[str, Any]:
        """The answer of the browser, which may tell of other things before."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        self._to.write(json.dumps(asked).encode() + b"\0")
        self._to.flush()
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        words = bytearray()
        while (byte := self._of.read(1)) != b"\0":
            assert byte, "the browser has ended"
            words += byte
        message: dict[str, Any] = json.loads(words)
        if "method" in message:
            self._events.append(message)
        return message


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A Chromium whose profile and complaints are in a folder."""
    assert PROGRAM is not None
    (ours_in, theirs_out), (theirs_in, ours_out) = os.pipe(), os.pipe()
    command = [PROGRAM, *ARGUMENTS, f"--user-data-dir={folder / 'profile'}"]
    # It reads descriptor 3 and writes descriptor 4.
    line = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", line, "bash", *command], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, pass_fds=(theirs_in, theirs_out),
        )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        with os.fdopen(ours_out, "wb") as to, os.fdopen(ours_in, "rb") as of:
            yield Browser(to, of)
    finally:  # It ends with its pipes.
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
