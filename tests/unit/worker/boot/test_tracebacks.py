"""Our frames are shown where an error is about us, and else not."""

import traceback

import pytest

from ft_collectives.communicators.errors import InvariantBroken, RanksDiffer
from recoverrun.worker import own_files
from recoverrun.worker.boot.tracebacks import hide_our_frames


def raised(error: Exception, folder: str) -> Exception:
    """`error`, raised by code of ours that a script has called."""
    names: dict[str, object] = {"error": error}
    exec(compile("def ours(): raise error", f"{folder}/ours.py", "exec"), names)
    exec(compile("def script(): ours()", "/home/user/train.py", "exec"), names)
    try:
        names["script"]()  # type: ignore[operator]
    except type(error) as found:
        return found
    raise AssertionError("it was not raised")


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (ValueError("of the script"), False),
        (RanksDiffer("what the script's ranks do"), False),
        (InvariantBroken("INV-1", "what we did"), True),
    ],
    ids=lambda value: str(value),
)
def test_frames_of_ours_are_shown_where_the_error_is_about_us(error: Exception, ours: bool) -> None:
    found = raised(error, own_files.__file__.rpartition("/")[0])

    hide_our_frames(found)

    files = {
        frame.filename.rpartition("/")[2] for frame in traceback.extract_tb(found.__traceback__)
    }
    assert "train.py" in files
    assert ("ours.py" in files) is ours
