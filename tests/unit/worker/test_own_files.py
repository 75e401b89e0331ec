"""Which files are ours."""

from pathlib import Path

import ft_collectives
import recoverrun
import rendezvous
from recoverrun.worker import own_files


def test_ours_is_what_our_packages_hold_but_for_the_templates() -> None:
    for package in (recoverrun, rendezvous, ft_collectives):
        folder = Path(package.__file__).parent

        assert own_files.has(str(folder / "any.py"))
        assert not own_files.has(str(folder.with_name(f"{folder.name}_of_the_user") / "any.py"))

    assert not own_files.has(str(Path(recoverrun.__file__).parent / "templates" / "gpt_ddp.py"))
