"""What the user of a launcher reads while it waits for a place."""

import pytest

from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.errors import ExitCode, RecoverrunError
from recoverrun.launcher.network import job_wait
from recoverrun.launcher.network.job_wait import JobWait


class Unknown:
    """A lookup that finds no address for `names`."""

    names = ("head",)

    def __init__(self, _endpoints: object) -> None:
        pass

    def wait(self) -> list[str]:
        return list(self.names)


def _config(rank: int, endpoint: str = "head:29500") -> RunConfig:
    line = f"--nnodes 2 --node-rank {rank} --rdzv-endpoint {endpoint} train.py"
    options = read(line.split(), {})
    assert options is not None
    return parse_options(options, {})


def _waits(config: RunConfig) -> list[str]:
    said: list[str] = []
    JobWait(config, said.append, 0.0).look_up()
    return said


def test_a_name_that_nobody_knows_ends_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_wait, "NameLookup", Unknown)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(RecoverrunError, match="no address is known for head: is the") as error:
        _waits(_config(1))

    assert error.value.exit_code == ExitCode.NEVER_FORMED


def test_in_a_pod_it_is_told_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_wait, "NameLookup", Unknown)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

    assert _waits(_config(1)) == [
        "waiting for the first node: no address is known for head yet, 600 s left"
    ]


def test_one_known_name_of_several_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_wait, "NameLookup", Unknown)

    assert _waits(_config(1, "head:29500,other:29500")) == []


def test_the_node_that_must_serve_need_not_know_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_wait, "NameLookup", Unknown)

    assert _waits(_config(0)) == []
