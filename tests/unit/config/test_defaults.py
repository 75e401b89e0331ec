"""Defaults from a file and from schedulers, and where each is from."""

from pathlib import Path

import pytest

from recoverrun.cli.commands.config import shown
from recoverrun.config.defaults import first_host, from_file, from_scheduler
from recoverrun.config.options import gather
from recoverrun.errors import RecoverrunError

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu-[03-04]",
    "SLURM_NODEID": "1",
}


def _texts(environ: dict[str, str], *given: str) -> dict[str, str]:
    return {field: found.text for field, found in from_scheduler(environ, given).items()}


def test_a_step_of_slurm_is_a_whole_topology() -> None:
    assert _texts(SLURM) == {
        "nnodes": "2",
        "node_rank": "1",
        "rdzv_endpoint": "gpu-03:24711",
        "rdzv_id": "4711",
    }


@pytest.mark.parametrize("missing", ["SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS"])
def test_a_batch_script_of_slurm_is_not_a_launcher_on_every_node(missing: str) -> None:
    assert _texts({name: text for name, text in SLURM.items() if name != missing}) == {}
    assert _texts({**SLURM, "SLURM_STEP_NUM_TASKS": "16"}) == {}


def test_what_the_user_says_of_the_nodes_silences_the_scheduler() -> None:
    assert _texts(SLURM, "rdzv_endpoint") == {"node_rank": "1"}
    assert _texts(SLURM, "standalone") == {}


def test_other_schedulers() -> None:
    lws = {"LWS_LEADER_ADDRESS": "lead", "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "3"}
    assert _texts(lws) == {"nnodes": "4", "node_rank": "3", "rdzv_endpoint": "lead:29400"}
    volcano = {"VC_TASK_INDEX": "1", "VC_WORKER_HOSTS": "w0,w1"}
    assert _texts(volcano) == {"nnodes": "2", "node_rank": "1", "rdzv_endpoint": "w0:29400"}
    mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
    assert _texts({**mpi, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) == {}
    assert _texts({**mpi, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}) == {}
    placed = {**mpi, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "m"}
    assert _texts(placed)["rdzv_endpoint"] == "m:29400"
    assert _texts({"JOB_COMPLETION_INDEX": "1"}) == {}
    assert _texts({"JOB_COMPLETION_INDEX": "1"}, "nnodes") == {"node_rank": "1"}


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("gpu-[03-05,9],login", "gpu-03"), ("a,b", "a"), ("n[7]x", "n7x"), ("", "")],
)
def test_the_first_host_of_a_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_a_file_gives_defaults_and_the_stronger_source_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.recoverrun]\nrole = 'p'\nmax-restarts = 2\n")
    settings = gather(["x"], {"PET_ROLE": "v"})
    assert settings is not None
    assert (settings.options.role, settings.options.max_restarts) == ("v", 2)
    assert settings.origins == {"role": "PET_ROLE", "max_restarts": "pyproject.toml"}

    (tmp_path / "recoverrun.toml").write_text("standalone = true\n")
    settings = gather(["--role", "c", "x"], {})
    assert settings is not None and settings.options.standalone
    assert settings.origins == {"role": "command line", "standalone": "recoverrun.toml"}


@pytest.mark.parametrize("text", ["roles = 'x'", "role = [1]", "role ="])
def test_a_file_that_is_wrong_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "recoverrun.toml").write_text(text)

    with pytest.raises(RecoverrunError, match=r"recoverrun\.toml"):
        from_file(tmp_path)


def test_config_show_tells_every_option_and_its_origin() -> None:
    lines = shown(["--nnodes", "2:3"], {"PET_ROLE": "r"}, origin=True)

    assert any(line.split() == ["nnodes", "=", "2:3", "command", "line"] for line in lines)
    assert any(line.split() == ["role", "=", "r", "PET_ROLE"] for line in lines)
    assert any(line.split() == ["tee", "=", "0", "default"] for line in lines)
