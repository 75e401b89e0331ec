"""A file of the script that was edited while the job ran is found, and no other one."""

import pytest

from recoverrun.worker.tracking.own_sources import OwnSources


def sources(**texts: bytes) -> OwnSources:
    made = OwnSources()
    for module, text in texts.items():
        made.load(module, f"/job/{module}.py", text)
    return made


@pytest.mark.parametrize(
    ("first", "edited"),
    [
        ({"train": b"lr = 1", "data": b"seed = 3"}, ""),
        ({"train": b"lr = 2", "data": b"seed = 3"}, "/job/train.py"),
        ({"train": b"lr = 1"}, ""),  # the other one was imported later
        ({"train": b"lr = 1", "data": b"seed = 3", "evaluation": b"every = 9"}, ""),
    ],
)
def test_a_file_with_other_contents_is_named(first: dict[str, bytes], edited: str) -> None:
    later = sources(train=b"lr = 1", data=b"seed = 3")

    assert later.edited(sources(**first).pack()) == edited


def test_a_module_that_is_loaded_again_has_its_newest_contents() -> None:
    first, later = sources(train=b"lr = 1"), sources(train=b"lr = 2")
    first.load("train", "/job/train.py", b"lr = 2")

    assert later.edited(first.pack()) == ""
