"""A worker has imported nothing that the script may want to import in its own way."""

import json
import os
import subprocess
import sys

from recoverrun.worker.boot.worker import shut_out

LATER = "torch", "numpy", "zmq"

ASKED = f"""
import json, sys
import recoverrun.worker.boot.worker
print(json.dumps([name for name in {LATER} if name in sys.modules]))
"""


def test_variables_of_the_environment_may_be_set_before_torch_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout) == []


def test_a_script_that_may_not_meet_its_launcher_is_told() -> None:
    asked: list[object] = []

    def refuses(*where: object, **how: object) -> bool:
        asked.extend((*where, how))
        return False

    assert "rank 3 is not protected" in shut_out(3, "/dev/shm/ours/c3.0", refuses)
    assert asked == ["/dev/shm/ours", os.W_OK | os.X_OK, {"effective_ids": True}]
    assert shut_out(3, "", refuses) == ""
    assert shut_out(3, f"{os.getcwd()}/c3.0") == ""
