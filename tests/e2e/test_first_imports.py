"""Scripts whose first import is of a module that imports torch in its midst."""

from pathlib import Path

import pytest

from tests.e2e.script_runs import SCRIPTS, run, under_torchrun

pytestmark = [pytest.mark.e2e, pytest.mark.rest]


def test_a_lazy_module_of_transformers_may_be_what_imports_torch(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="`make compat` installs it")
    script = SCRIPTS / "arguments_first.py"

    plain = under_torchrun(script, tmp_path)
    whole = run(script, tmp_path)
    killed = run(script, tmp_path, inject="r1@step:3:forward")

    assert (plain.code, whole.code, killed.code) == (0, 0, 0), whole.text + killed.text
    assert whole.promises == ("exact-samples",), whole.text
    [expected] = set(plain.weights().values())
    for outcome in (whole, killed):
        for total in outcome.weights().values():
            assert total == pytest.approx(expected, abs=2e-8)
    assert killed.weights().keys() == {0, 2}
