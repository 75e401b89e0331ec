"""Words and numbers for people: what is safe to print, and how spans and lists are written.

Journal text is input: an exception message may carry escape sequences, and a host name may carry
characters that turn the line around. Everything that goes from a journal to a terminal passes
through `sanitize`.
"""

import re
import signal
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# CSI and OSC sequences as a whole, so that their parameters do not stay behind as litter.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]"
)
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SPACES = re.compile(r"\s+")

_SIGNALLED = re.compile(r"\bwas ended by signal (\d+)\b")


def sanitize(text: str, limit: int = 400) -> str:
    """`text` as one line that a terminal prints as it stands, of at most `limit` characters.

    Escape sequences go, white space folds, and characters that control (C0, C1, bidirectional
    overrides, zero width, surrogates, unassigned) become U+FFFD, so that nothing hides silently.
    """
    # Only what can be printed is worth scanning: an exception text may be a megabyte.
    visible = _ESCAPES.sub("", text[: 4 * limit + 4096])
    folded = _SPACES.sub(" ", visible).strip()[: limit + 1]
    safe = "".join("\ufffd" if unicodedata.category(c) in _HARMFUL else c for c in folded)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of our screens, once for UTF-8 and once for terminals without it."""

    ok: str
    bad: str
    alive: str
    joining: str
    moved: str
    line: str
    bar: str
    dot: str
    dash: str
    arrow: str
    warn: str
    ellipsis: str
    times: str
    sparks: str


UNICODE = Glyphs(
    ok="✓",
    bad="✖",
    alive="●",
    joining="◌",
    moved="⇄",
    line="━",
    bar="█",
    dot="·",
    dash="–",
    arrow="→",
    warn="!",
    ellipsis="…",
    times="×",
    sparks="▁▂▃▄▅▆▇█",
)
ASCII = Glyphs(
    ok="ok",
    bad="x",
    alive="o",
    joining="~",
    moved="<>",
    line="-",
    bar="#",
    dot=":",
    dash="-",
    arrow="->",
    warn="!",
    ellipsis="...",
    times="x",
    sparks="_.-=+*%#",
)

_TO_ASCII = str.maketrans(
    {
        "·": ":",
        "–": "-",
        "—": "-",
        "→": "->",
        "…": "...",
        "×": "x",
        "✓": "ok",
        "✖": "x",
        "●": "o",
        "◌": "~",
        "⇄": "<>",
        "━": "-",
        "─": "-",
        "█": "#",
        "’": "'",
        "≤": "<=",
    }
)


def ascii_only(text: str) -> str:
    """`text` for a terminal that knows nothing but ASCII."""
    return text.translate(_TO_ASCII).encode("ascii", "replace").decode("ascii")


def encodes(encoding: str | None) -> bool:
    """True if a stream of this encoding can carry our characters."""
    return (encoding or "").lower().replace("-", "").replace("_", "") in {"utf8", "utf16", "utf32"}


def span(seconds: float) -> str:
    """A span as a person says it: 412 ms, 1.6 s, 2m 05s, 6h 19m."""
    if seconds < 0.0005:
        return "0 ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 172800:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def clock(seconds: float) -> str:
    """A span as h:mm:ss."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def plural(count: int, noun: str) -> str:
    """ "1 replica", "3 replicas", "1,200 steps"."""
    if count == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "ch", "x")) else "s"
    return f"{count:,} {noun}{ending}"


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers, runs of three and more folded: 0, 4-7, 9."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    parts: list[str] = []
    for first, last in runs:
        if last - first >= 2:
            parts.append(f"{first}-{last}")
        else:
            parts += [str(number) for number in range(first, last + 1)]
    return ", ".join(parts)


def in_order(numbers: Iterable[int]) -> str:
    """Numbers whose order says something; as in `ranges` where they ascend: 7, 4-6."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number > runs[-1][-1]:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(map(ranges, runs))


def ranks(numbers: Iterable[int]) -> str:
    """ "rank 3", "ranks 2, 3", "ranks 0-7"; "no rank" for none."""
    unique = sorted(set(numbers))
    if not unique:
        return "no rank"
    return f"rank {unique[0]}" if len(unique) == 1 else f"ranks {ranges(unique)}"


def named_signals(sentence: str) -> str:
    """The coordinator knows signals by number, people by name."""

    def name(match: re.Match[str]) -> str:
        try:
            return f"was killed by {signal.Signals(int(match[1])).name}"
        except ValueError:
            return match[0]

    return _SIGNALLED.sub(name, sentence)


def signal_told(sentence: str) -> int:
    """The number of the signal that ended a process, as the coordinator says it; 0 if none did."""
    found = _SIGNALLED.search(sentence)
    return 0 if found is None else int(found[1])


_MADE_UP = re.compile(r"none|[0-9a-f]{32}")
"""Names of jobs that no user has chosen."""


def run_title(argv: Sequence[str], run_id: str) -> str:
    """The title of a run: its script, and the name of the job if somebody chose one."""
    script = argv[0].rpartition("/")[2] if argv else ""
    name = "" if script and _MADE_UP.fullmatch(run_id) else run_id
    return " ".join(word for word in (script, name) if word)
