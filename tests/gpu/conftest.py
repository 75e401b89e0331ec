"""Every test here needs a GPU, and the settings that launchers give to protected workers.

Two ranks of one device pass for two hosts, so NCCL joins them by sockets, here over loopback.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from recoverrun.launcher.node.environment import CONNECT_WITHIN, WATCHDOG

ROOT = str(Path(__file__).resolve().parents[2])
PATH = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))


@pytest.fixture(autouse=True, scope="session")
def _gpu() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no CUDA device here")
    # Read once, by the first group: 5 s is what a member that never comes costs a test.
    os.environ.update({**WATCHDOG, CONNECT_WITHIN[0]: "5"})
    os.environ.update(NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1", PYTHONPATH=PATH)
    yield


_STATUS = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_STATUS] = int(exitstatus)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End as protected workers do: destructors of aborted groups end the process by a signal."""
    if torch.cuda.is_initialized() and not hasattr(config, "workerinput"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash.get(_STATUS, 1))
