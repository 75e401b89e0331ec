"""The table has a line for what is well, three for what is not, and a code for schedulers."""

import json

from recoverrun.doctor.doctor_table import document, exit_code, lines
from recoverrun.doctor.findings import error, ok, warning
from rendezvous.protocol.exit_codes import ExitCode
from tests.unit.doctor.nodes import node

WELL = ok("torch", "torch 2.13.0")
ODD = warning("key", "there is no key", "anybody may join", "recoverrun keygen")
BAD = error("shm", "64 MiB\x1b[31m free", "workers fail", "--shm-size=8g")


def test_only_an_error_gives_83() -> None:
    assert [exit_code(found) for found in ([WELL], [WELL, ODD], [ODD, BAD])] == [0, 0, 83]


def test_what_is_not_well_says_what_it_breaks_and_what_mends_it() -> None:
    shown = lines([node()], [WELL, BAD])

    assert shown[1] == " ✓ torch        torch 2.13.0"
    assert [line.strip() for line in shown[2:5]] == [
        "✖ shm          64 MiB free",
        "workers fail",
        "mend: --shm-size=8g",
    ]
    assert shown[-1] == " 1 error · 0 warnings · exit 83"


def test_programs_get_the_same() -> None:
    told = json.loads(document([node()], [WELL, BAD]))

    assert (told["schema"], told["exit_code"]) == (1, ExitCode.DOCTOR)
    assert [one["level"] for one in told["findings"]] == ["ok", "error"]
    assert told["nodes"][0]["node"] == "gpu-01"
