"""A worker has imported nothing that the script may want to import in its own way."""

import json
import subprocess
import sys

LATER = "torch", "numpy", "zmq"

ASKED = f"""
import json, sys
import recoverrun.worker.boot.worker
print(json.dumps([name for name in {LATER} if name in sys.modules]))
"""


def test_variables_of_the_environment_may_be_set_before_torch_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout) == []
