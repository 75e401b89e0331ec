"""Stories of hard cases, told again: what happened then must happen now, to the last line.

`RECOVERRUN_REWRITE=1 python -m pytest tests/scenarios` writes the traces anew; read the diff.
"""

import os
from pathlib import Path

import pytest

from tests.sim.story import RULE, commands, tell

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_ends_as_it_did(path: Path) -> None:
    lines = commands(path)
    outcome, trace = tell(lines)
    text = "\n".join([*lines, RULE, *trace, ""])
    if "RECOVERRUN_REWRITE" in os.environ:
        path.write_text(text)

    assert outcome.violation is None
    assert text == path.read_text()
