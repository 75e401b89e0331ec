"""Every test here needs a GPU, and the settings that launchers give to protected workers."""

import os
from collections.abc import Iterator

import pytest
import torch

from recoverrun.launcher.node.environment import CONNECT_WITHIN, WATCHDOG


@pytest.fixture(autouse=True, scope="session")
def _gpu() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no CUDA device here")
    # Read once, by the first group: 5 s is what a member that never comes costs a test.
    os.environ.update({**WATCHDOG, CONNECT_WITHIN[0]: "5"})
    yield
