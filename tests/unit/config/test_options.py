"""The command line means what torchrun's would, and a mistake is one sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recoverrun.config.given_options import Options
from recoverrun.config.option_values import Endpoint
from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.environment import WorkerSettings, worker_command, worker_environ
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.worker_env import WorkerEnv

STATIC = "--nnodes 2 --node_rank 1 --master_addr head --master_port 7"
C10D = "--nnodes=2 --rdzv_backend=c10d --rdzv_id=x"


def _read(line: str, **environ: str) -> Options:
    options = read(line.split(), environ)
    assert options is not None, line
    return options


def _config(line: str, **environ: str) -> RunConfig:
    return parse_options(_read(line, **environ), environ)


def _refusal(line: str, **environ: str) -> str:
    with pytest.raises(RecoverrunError) as refusal:
        _config(line, **environ)
    assert refusal.value.exit_code == 2
    return str(refusal.value)


def test_both_spellings_and_both_separators_mean_the_same() -> None:
    lines = ("--nproc-per-node 2 x.py", "--nproc_per_node=2 x.py", "--nproc-per-node=2 x.py")

    assert len({_read(line) for line in lines}) == 1


def test_all_behind_the_script_is_the_scripts() -> None:
    options = _read("--nnodes 1 x.py --r=16 -h --nnodes 3 -m -- --help")

    assert options.command == ("x.py", "--r=16", "-h", "--nnodes", "3", "-m", "--", "--help")
    assert options.nnodes == "1"


def test_one_dash_dash_beside_the_script_is_ours() -> None:
    assert _config("-- x.py a").arguments == ("a",)
    assert _config("x.py -- --a").arguments == ("--a",)
    assert _config("x.py a -- b").arguments == ("a", "--", "b")


def test_m_is_a_flag() -> None:
    config = _config("-m --nproc-per-node 2 pkg.mod --module x")

    assert (config.module, config.script, config.arguments) == (True, "pkg.mod", ("--module", "x"))


@pytest.mark.parametrize("name", ["--nprocs", "--no-protekt", "--no-pyton", "--unprotect"])
def test_a_slip_is_never_answered_with_the_advice_to_do_without_recovery(name: str) -> None:
    with pytest.raises(RecoverrunError) as error:
        _config(f"{name} x")

    assert f"no option {name}" in str(error.value)
    assert "mean --no-p" not in str(error.value)


@pytest.mark.parametrize("line", ["--help", "-h", "--nnodes 2 --help", "--version"])
def test_help_is_for_somebody_else(line: str) -> None:
    assert read(line.split(), {}) is None


def test_variables_are_defaults() -> None:
    environ = {"PET_NPROC_PER_NODE": "3", "PET_MODULE": "1", "PET_NO_PYTHON": "0", "PET_NNODES": ""}

    assert _read("x", **environ).nproc_per_node == "3"
    assert _read("x", **environ).module
    assert not _read("x", **environ).no_python
    assert _read("x", **environ).nnodes == "1"
    assert _read("--nproc-per-node=5 x", **environ).nproc_per_node == "5"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--nproc-per-nodes 2 x", "no option --nproc-per-nodes, did you mean --nproc-per-node?"),
        ("--nprocs 2 x", "no option --nprocs, did you mean --nproc-per-node?"),
        ("--min-replicas 3 --nproc-per-node 2 x", "2 workers on one node cannot be more than 2 re"),
        ("--etcd redis://x x", "--etcd must be etcd://HOST:PORT"),
        ("--witness file:x x", "--witness must be HOST:PORT or file:///DIRECTORY"),
        ("--r 2 x", "--r could be any of --rdzv-endpoint, --rdzv-id, --run-path, --role"),
        ("-q x", "no option -q"),
        ("--nnodes", "--nnodes needs a value"),
        ("--standalone=1 x", "--standalone takes no value"),
        ("--node-rank=one x", "--node-rank must be an integer, not 'one'"),
        ("", "no training script"),
        ("--nnodes 2 --", "no training script"),
        ("--nnodes 3:2 x", "MIN at most MAX"),
        ("--nnodes 1:2:3 x", "a range like 2:4"),
        ("--redirects 4 x", "--redirects must be 0 to 3"),
        ("--tee 0:3,1 x", "--tee must be 0 to 3"),
        ("--local-ranks-filter a x", "must be numbers"),
        ("--signals-to-handle SIGKILL x", "cannot be handled"),
        ("--start-method thread x", "--start-method must be one of"),
        ("--numa-binding x x", "--numa-binding must be one of"),
        ("--rdzv-backend zeus x", "--rdzv-backend must be one of"),
        ("--rdzv-backend etcd-v2 x", "needs no etcd"),
        ("--monitor-interval 0 x", "must be positive"),
        ("--shutdown-timeout -1 x", "--shutdown-timeout must be at least 0, not -1"),
        ("--min-replicas 0 x", "--min-replicas must be at least 1, not 0"),
        ("--digest-every -1 x", "--check-params-every must be at least 0, not -1"),
        ("--nnodes 0 x", "at least 1"),
        ("--nproc-per-node 0 x", "between 1 and"),
        ("--nproc-per-node -1 x", "between 1 and"),
        ("--nproc-per-node one x", "a number, auto, cpu, gpu or xpu"),
        ("--max-restarts -1 x", "--max-restarts"),
        ("--rdzv-conf a x", "--rdzv-conf must be key=value"),
        ("--rdzv-conf join_timeout=soon x", "must be seconds"),
        ("--rdzv-conf join_timeout=nan x", "must be positive"),
        ("--nnodes 2 --rdzv-endpoint h:99999 x", "no port 99999"),
        ("--nnodes 2 --rdzv-endpoint h:0 x", "cannot know which"),
        ("--nnodes 2 --master-port 70000 x", "no port 70000"),
        ("--master-port -1 x", "no port -1"),
    ],
)
def test_a_mistake_is_a_sentence(line: str, words: str) -> None:
    assert words in _refusal(line)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("--stand x", "standalone", True),
        ("--max-r=3 x", "max_restarts", 3),
        ("--rdzv_en h:1 x", "rdzv_endpoint", "h:1"),
        ("--no-p x", "no_python", True),
        ("--min 2 x", "min_replicas", 2),
    ],
)
def test_a_beginning_that_means_one_option_is_enough(line: str, field: str, value: object) -> None:
    assert getattr(_read(line), field) == value
    assert _read("x --stand --r=16").command == ("x", "--stand", "--r=16")


def test_what_torchrun_takes_is_taken() -> None:
    assert _config("--nproc-per-node +2 --nnodes 01 x").nproc == 2
    assert _read("x", PET_STANDALONE="2", PET_START_METHOD="thread").standalone
    config = _config("--signals-to-handle SIGTERM,SIGFOO,sigusr1 x")
    assert [number.name for number in config.signals] == ["SIGTERM", "SIGUSR1"]
    assert config.notes == ("--signals-to-handle: unknown SIGFOO",)


def test_a_variable_that_is_wrong_is_named() -> None:
    assert _refusal("x", PET_MASTER_PORT="x") == "PET_MASTER_PORT must be an integer, not 'x'"


def test_one_node_needs_no_network() -> None:
    for line in ("x", "--standalone --nnodes 4 x", "--nnodes 1:1 --rdzv-endpoint h:1 x"):
        config = _config(line)
        assert (config.endpoint, config.nnodes) == (None, 1)
    assert len({_config("x").run_id for _ in range(2)}) == 2


@pytest.mark.parametrize(
    ("line", "endpoint", "must_host", "may_host"),
    [
        (STATIC, Endpoint(host="head", port=7), False, False),
        (STATIC.replace("rank 1", "rank 0"), Endpoint(host="head", port=7), True, True),
        ("--nnodes 2", Endpoint(host="127.0.0.1", port=29500), False, True),
        (C10D, Endpoint(host="localhost", port=29400), False, True),
        (f"{C10D} --rdzv_endpoint=h:1 --node-rank=1", Endpoint(host="h", port=1), False, True),
        (f"{C10D} --rdzv_endpoint=[::1]", Endpoint(host="::1", port=29400), False, True),
    ],
)
def test_where_the_nodes_meet(
    line: str, endpoint: Endpoint, must_host: bool, may_host: bool
) -> None:
    config = _config(f"{line} x.py")

    assert (config.endpoint, config.must_host, config.may_host) == (endpoint, must_host, may_host)


def test_join_timeout_is_found_among_other_keys() -> None:
    assert _config("--rdzv-conf 'join_timeout=5,last_call_timeout=1' x").join_timeout_s == 5.0
    assert _config("x").join_timeout_s == 600.0


@pytest.mark.parametrize(
    ("line", "name"),
    [("a/train.py", "train"), ("-m pkg.mod", "pkg.mod"), ("../..", "run"), ("w%20x!.py", "w_20x_")],
)
def test_a_run_is_named_after_its_script(line: str, name: str) -> None:
    assert _config(line).name == name


def _start() -> Start:
    return Start(
        generation=1,
        node_rank=1,
        nnodes=2,
        first_rank=4,
        nproc=2,
        world_size=6,
        master_addr="::1:29501",
        nodes=("a", "b"),
    )


def _place(**more: Any) -> WorkerSettings:
    return WorkerSettings(
        local_rank=1,
        incarnation=0,
        endpoint="ipc:///s",
        run_dir="/r",
        context="/c",
        error_file="/e",
        **more,
    )


def test_a_worker_gets_torchruns_variables_and_ours() -> None:
    config = _config("--nnodes 2 --nproc-per-node 2 --rdzv-id job --max-restarts 3 x.py")
    config = replace(config, threads=3)

    environ = worker_environ(config, _start(), _place(), {"PATH": "/bin", "RANK": "77"})

    expected = {
        "PATH": "/bin",
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "5",
        "ROLE_WORLD_SIZE": "6",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "::1",
        "MASTER_PORT": "29501",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/e",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "3",
    }
    assert expected.items() <= environ.items()
    ours = WorkerEnv.from_environ(environ)
    assert ours is not None and (ours.rank, ours.protect) == (5, True)


def test_what_the_user_set_for_torch_is_kept() -> None:
    config = _config("--nproc-per-node 2 x.py")
    theirs = {"OMP_NUM_THREADS": "8", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}

    assert theirs.items() <= worker_environ(config, _start(), _place(), theirs).items()
    assert "OMP_NUM_THREADS" not in worker_environ(_config("x.py"), _start(), _place(), {})


@pytest.mark.parametrize(
    ("line", "threads"), [("x.py", 0), ("--nproc-per-node 3 x.py", 4), ("--nproc-per-node 32 x", 1)]
)
def test_the_cores_of_a_node_are_shared_out(
    monkeypatch: pytest.MonkeyPatch, line: str, threads: int
) -> None:
    monkeypatch.setattr("recoverrun.config.run_config.cores", lambda: 12)

    assert _config(line).threads == threads
    assert _config(line, OMP_NUM_THREADS="5").threads == 0


def test_the_command_of_a_worker() -> None:
    hooks = ["py", "-u", "-m", "recoverrun.worker"]

    assert worker_command(_config("x.py a"), 0, "py") == [*hooks, "x.py", "a"]
    assert worker_command(_config("-m p.m a"), 0, "py") == [*hooks, "-m", "p.m", "a"]
    assert worker_command(_config("--no-python sh -c"), 0, "py") == ["sh", "-c"]
    line = "x.py ${local_rank} $local_rank $$x ${other}"
    assert worker_command(_config(line), 3, "py")[5:] == ["3", "3", "$x", "${other}"]


def test_without_python_there_is_no_protection() -> None:
    assert not _config("--no-python x").protect
    assert not _config("--no-protect x").protect
    assert _config("--run-dir d x").run_dir == Path("d")


def test_exact_needs_recovery() -> None:
    assert _config("--exact x").exact
    assert _config("x", RECOVERRUN_EXACT="1").exact
    assert not _config("x").exact
    for other in ("--no-protect", "--no-python"):
        assert f"cannot go with {other}" in _refusal(f"--exact {other} x")
    assert not _read("x", RECOVERRUN_EXACT="1", RECOVERRUN_ENDPOINT="ipc://launcher").exact


def test_empty_roles_short_forms_and_the_order_of_variables() -> None:
    assert _read("--role= x").role == _read("x", PET_ROLE="").role == ""
    assert (_read("-r3 -t 1 x").redirects, _read("-t=0:3 x").tee) == ("3", "0:3")
    both = {"RECOVERRUN_ROLE": "a", "PET_ROLE": "b"}
    assert (_read("x", **both).role, _read("--role c x", **both).role) == ("a", "c")
    # A launcher inside a worker keeps its hands off the run around it.
    assert _read("x", RECOVERRUN_RUN_DIR="r", RECOVERRUN_ENDPOINT="e").run_dir is None


def test_options_without_effect_are_named_in_one_line() -> None:
    line = "--monitor-interval 5 --start-method fork --event-log-handler console --logs-specs p x"

    assert _config(line).notes == (
        "without effect here: --monitor-interval, --start-method, --event-log-handler, "
        "--logs-specs",
    )
    assert _config("--rdzv-conf zeus=1,read_timeout=2 x").notes == ("--rdzv-conf: unknown zeus",)
    assert _config("x").notes == ()


def test_a_python_without_assertions_is_told() -> None:
    [note] = _config("x", PYTHONOPTIMIZE="1").notes

    assert "PYTHONOPTIMIZE" in note
    assert _config("--no-protect x", PYTHONOPTIMIZE="1").notes == ()


def test_signals_patience_and_words() -> None:
    assert _config("x", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="600").shutdown_s == 600
    config = _config("--shutdown-timeout 2 --signals-to-handle SIGTERM,SIGUSR1 x")
    assert (config.shutdown_s, [n.name for n in config.signals]) == (2, ["SIGTERM", "SIGUSR1"])
    assert _config("--duplicate-stdout-filters a,b,,c x").logs.stdout_words == ("a", "b,c")


def test_a_range_of_nodes_and_who_hosts() -> None:
    config = _config("--nnodes 1:3 --rdzv-backend c10d --rdzv-conf is_host=0,last_call_timeout=2 x")

    assert (config.nnodes_least, config.nnodes, config.may_host) == (1, 3, False)
    assert config.last_call_s == 2.0


def test_devices_are_counted_as_they_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _config("--nproc-per-node cpu x").nproc == _config("--nproc-per-node auto x").nproc
    assert "has no XPU" in _refusal("--nproc-per-node xpu x", ZE_AFFINITY_MASK="")


def test_one_gpu_each() -> None:
    config = _config("--virtual-local-rank --nproc-per-node 2 x")

    environ = worker_environ(config, _start(), _place(), {"CUDA_VISIBLE_DEVICES": "4, 5"})

    assert (environ["LOCAL_RANK"], environ["CUDA_VISIBLE_DEVICES"]) == ("0", "5")


def test_silence_is_no_death_unless_a_user_says_so() -> None:
    assert _config(C10D + " x.py").on_silence == "stop"
    assert _config(C10D + " --on-partition=continue x.py").on_silence == "continue"
    assert _config(C10D + " x.py", RECOVERRUN_ON_SILENCE="continue").on_silence == "continue"
    assert "--on-partition must be one of" in _refusal(C10D + " x.py", RECOVERRUN_ON_SILENCE="yes")


def test_older_names_of_options_keep_working() -> None:
    older = _config(C10D + " --on-silence=continue --digest-every=3 --allow-mixed x.py")
    config = _config(
        C10D + " --on-partition=continue --check-params-every=3 --allow-version-mismatch x.py"
    )

    assert older == config
    assert config.on_silence == "continue" and config.digest_every == 3 and config.allow_mixed
    assert _config(C10D + " --coord=etcd://a x.py") == _config(C10D + " --etcd=etcd://a x.py")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("login-1:7", Endpoint(host="login-1", port=7)),
        ("login-1", Endpoint(host="login-1", port=29410)),
        ("[::1]:7", Endpoint(host="::1", port=7)),
        ("file:///shared/votes", Path("/shared/votes")),
    ],
)
def test_a_witness_is_a_process_or_a_directory(text: str, place: object) -> None:
    assert _config(f"{C10D} --witness={text} x.py").witness == place
    assert _config(f"{C10D} x.py", RECOVERRUN_WITNESS=text).witness == place
    assert _config(f"--witness={text} x.py").witness is None  # One node needs none.


def test_etcd_has_several_addresses_and_a_port_of_its_own() -> None:
    config = _config(f"{C10D} --etcd=etcd://a:1,b,[::1]:3 x.py")

    assert [str(endpoint) for endpoint in config.etcd] == ["a:1", "b:2379", "[::1]:3"]
    assert _config(f"{C10D} x.py").etcd == ()
    assert _config("--etcd=etcd://a x.py").etcd == ()
    assert "--etcd replaces --on-partition" in _refusal(
        f"{C10D} --etcd=etcd://a --on-partition=continue x.py"
    )
