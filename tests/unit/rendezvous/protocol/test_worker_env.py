"""The environment table: complete, exact, and clear about what is wrong."""

from dataclasses import replace

import pytest

from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.worker_env import EnvError, WorkerEnv

ENV = WorkerEnv(
    endpoint="ipc:///dev/shm/x/s",
    incarnation=0,
    run_dir="/runs/x",
    context="/dev/shm/x/c1.0",
    protect=True,
    inject="r1@step:3:reduce",
    finals="",
    exact=False,
    check_finite=False,
    digest_every=0,
    returns=False,
    keeper="",
    snapshot_every="0",
    restore="",
    rank=1,
    local_rank=1,
    world_size=4,
    local_world_size=2,
    error_file="/runs/x/error.json",
)


def test_what_a_launcher_writes_a_worker_reads() -> None:
    assert WorkerEnv.from_environ(ENV.to_environ()) == ENV


@pytest.mark.parametrize(("attempt", "birth"), [(0, 0), (3, 0), (3, 2)])
def test_a_process_knows_whether_its_rank_was_lost_before(attempt: int, birth: int) -> None:
    env = replace(ENV, incarnation=incarnation(attempt, birth))

    assert env.birth == birth


def test_outside_of_our_runs_there_is_no_environment() -> None:
    assert WorkerEnv.from_environ({"RANK": "0", "WORLD_SIZE": "2"}) is None
    assert WorkerEnv.from_environ({**ENV.to_environ(), "RECOVERRUN_ENDPOINT": ""}) is None


@pytest.mark.parametrize("name", sorted(set(ENV.to_environ()) - {"RECOVERRUN_ENDPOINT"}))
def test_a_missing_variable_is_named(name: str) -> None:
    environ = ENV.to_environ()
    del environ[name]

    with pytest.raises(EnvError, match=f"^{name} is not set"):
        WorkerEnv.from_environ(environ)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RANK", ""),
        ("RANK", "one"),
        ("RANK", "-1"),
        ("RANK", " 1"),
        ("RANK", "1_0"),
        ("RANK", "٣"),
        ("RANK", "9" * 30),
        ("RANK", "4"),
        ("LOCAL_RANK", "2"),
        ("WORLD_SIZE", "0"),
        ("RECOVERRUN_PROTECT", "yes"),
        ("RECOVERRUN_INCARNATION", "1.5"),
    ],
)
def test_a_value_that_cannot_be_is_refused_under_its_name(name: str, text: str) -> None:
    with pytest.raises(EnvError, match=f"^{name} "):
        WorkerEnv.from_environ({**ENV.to_environ(), name: text})
