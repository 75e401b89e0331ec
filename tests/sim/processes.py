"""True if a simulated history depends on the process in which it is made."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIGESTED = (3, 53, 60, 121)


def digests(module: str, hash_seed: str) -> str:
    """The results of `simulate` of `module` for a few seeds, in a process with this hash seed."""
    script = (
        f"from {module} import simulate\nprint([simulate(seed).digest for seed in {DIGESTED}])\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout
