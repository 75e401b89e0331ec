"""Every option of the torchrun that is installed, and every variable of it, is one of ours.

Derived from torch's own parser, so that a new torch with a new option fails here.
"""

import argparse
from collections.abc import Iterator

import pytest
from torch.distributed.argparse_util import check_env, env
from torch.distributed.run import get_args_parser

from recoverrun.config.option_table import TABLE, kind
from recoverrun.config.options import read

APART = ("help", "print_completion")
"""Options that print something and end: none of a run."""


def _theirs() -> Iterator[argparse.Action]:
    for action in get_args_parser()._actions:
        if action.option_strings and action.dest not in APART:
            yield action


OURS = {option.field: option for option in TABLE}
SAMPLES = {"nnodes": "1:2", "redirects": "3", "tee": "1", "start_method": "fork",
           "numa_binding": "node", "local_ranks_filter": "0"}  # fmt: skip


def _sample(action: argparse.Action) -> str:
    number = action.type is int or action.type is float
    return SAMPLES.get(action.dest, "7" if number else "word")


@pytest.mark.parametrize("action", list(_theirs()), ids=lambda action: action.dest)
def test_an_option_of_torchrun_is_ours_in_every_spelling(action: argparse.Action) -> None:
    """Check 2 of the user experience, with the next two tests."""
    flag = isinstance(action, check_env) or action.nargs == 0
    values = []
    for name in action.option_strings:
        options = read([name, *([] if flag else [_sample(action)]), "x.py"], {})
        assert options is not None
        values.append(getattr(options, action.dest))

    assert len(set(values)) == 1
    assert values[0] is True if flag else str(values[0]).startswith(_sample(action))
    assert (kind(OURS[action.dest]) is bool) == flag


@pytest.mark.parametrize("action", list(_theirs()), ids=lambda action: action.dest)
def test_a_variable_of_torchrun_is_ours(action: argparse.Action) -> None:
    variable = f"PET_{action.dest.upper()}"
    if not isinstance(action, env | check_env):
        assert variable not in OURS[action.dest].variables
        return
    options = read(["x.py"], {variable: "1" if isinstance(action, check_env) else _sample(action)})
    given = read([action.option_strings[0], *([] if isinstance(action, check_env) else
                                              [_sample(action)]), "x.py"], {})  # fmt: skip

    assert options == given


def test_defaults_are_torchruns() -> None:
    options = read(["x.py"], {})
    # Without a word of the user it is 29500: in torch 2.11 by the parser, later by who reads it.
    same = {"nnodes": "1", "node_rank": None, "master_addr": "", "local_addr": "",
            "numa_binding": "", "logs_specs": "", "duplicate_stdout_filters": "",
            "duplicate_stderr_filters": "", "master_port": None}  # fmt: skip

    for action in _theirs():
        default = same.get(action.dest, action.default)
        assert getattr(options, action.dest) == default, action.dest
