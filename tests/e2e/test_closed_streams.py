"""A launcher that is started without standard streams, as a daemon may be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.launching import ROOT

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("options", ["", "--tee=3"])
def test_streams_that_were_closed_lead_nowhere(options: str, tmp_path: Path) -> None:
    names = ", ".join(f"os.readlink('/proc/self/fd/{fd}')" for fd in range(3))
    program = f"import os; os.write(1, b'to nobody'); print({names}, file=open('seen', 'w'))"
    script = tmp_path / "streams.py"
    script.write_text(program)
    command = f"exec {sys.executable} -m recoverrun --no-protect {options} {script} <&- >&- 2>&-"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    ended = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=env, check=False)

    assert ended.returncode == 0
    streams = (tmp_path / "seen").read_text().split()
    assert streams[0] == os.devnull
    assert options or streams == [os.devnull] * 3
