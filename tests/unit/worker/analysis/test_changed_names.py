"""The names under which a text changes variables of modules."""

import pytest

from recoverrun.worker.analysis.changed_names import changed_names


@pytest.mark.parametrize(
    ("source", "part", "names"),
    [
        (b"def f():\n    global at, rows\n    at += 1", "rebound", {"at", "rows"}),
        (b"def f():\n    nonlocal at\n    at = 1", "rebound", {"at"}),
        (b"config.step += 1", "attributes", {"step"}),
        (b"pkg.config.step = 1", "owners", {"config"}),
        (b"setattr(config, 'step', 1)", "attributes", {"step"}),
        (b"self.step = 1\nself.step += 2", "attributes", set()),
        (b"if config.step == 1 and config.last <= 2: pass", "attributes", set()),
        (b"STATS['a']['b'] += 1", "contents", {"STATS"}),
        (b"utils.STATS[names[0]] = 1", "contents", {"STATS"}),
        (b"seen[key].append(1)\nhard.popleft()", "contents", {"seen", "hard"}),
        (b"buffer.add_(1)", "contents", {"buffer"}),
        (b"del STATS['a']\nnext(data.items)", "contents", {"STATS", "items"}),
        (b"my_next(data)\nmodel x[0]; reglobal y\nxsetattr(a, 'b', 1)", "contents", set()),
        (b"next (a); c.step /= 2; d.rate  **=3", "attributes", {"step", "rate"}),
        (b"x = NAMES[0]; y = TABLE.get(x); z = a[0] == 1", "contents", set()),
    ],
)
def test_a_change_is_found_in_the_text(source: bytes, part: str, names: set[str]) -> None:
    assert getattr(changed_names(source), part) == names
