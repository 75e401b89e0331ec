"""The environment of workers where NCCL fails: torch's watchdog ends no survivor of a protected
run.
"""

import pytest

from recoverrun.config.options import read
from recoverrun.config.run_config import parse_options
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.environment import (
    CONNECT_WITHIN,
    WATCHDOG,
    WorkerSettings,
    worker_environ,
)
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.worker_env import CUDA


def environ(asked: str, *options: str, **inherited: str) -> dict[str, str]:
    start = Start(
        generation=1, node_rank=0, nnodes=1, first_rank=0, nproc=1, world_size=1,
        master_addr="h:1", nodes=("a",),
    )  # fmt: skip
    place = WorkerSettings(
        local_rank=0, incarnation=0, endpoint="ipc:///s", run_dir="/r", context="/c",
        error_file="/e",
    )  # fmt: skip
    read_options = read([*options, "x.py"], {})
    assert read_options is not None
    config = parse_options(read_options, {})
    return worker_environ(config, start, place, {CUDA: asked, **inherited})


@pytest.mark.parametrize("asked", ["host", "nccl"])
def test_torch_s_watchdog_is_kept_from_ending_survivors(asked: str) -> None:
    theirs = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", CONNECT_WITHIN[0]: "900"}

    worker = environ(asked, **theirs)

    assert WATCHDOG.items() <= worker.items()
    assert worker[CONNECT_WITHIN[0]] == "900"
    assert environ(asked)[CONNECT_WITHIN[0]] == "60"


def test_without_protection_on_cuda_torch_is_as_under_torchrun() -> None:
    for worker in (environ(""), environ("nccl", "--no-protect")):
        assert worker["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
        assert not (WATCHDOG.keys() - {"TORCH_NCCL_ASYNC_ERROR_HANDLING"}) & worker.keys()


def test_an_unknown_way_is_refused_before_anything_starts() -> None:
    with pytest.raises(RecoverrunError, match="must be host or nccl, not '1'"):
        environ("1")
