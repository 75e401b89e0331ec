"""The launcher of one node with real processes and signals. The workers are fakes without torch."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recoverrun.launcher.node.process import spawn
from rendezvous.protocol.exit_codes import ExitCode
from tests.e2e.launching import (
    ROOT,
    Launcher,
    await_death,
)

pytestmark = pytest.mark.e2e


# ------------------------------------------------------------------------------- one node


def test_a_job_that_ends_well_exits_0_and_leaves_its_journal(launcher: Launcher) -> None:
    job = launcher.fake("*:hello say=done farewell=3", nproc=2)

    assert job.finish() == 0

    assert {"rank 0: done", "rank 1: done"} <= set(job.output.splitlines())
    assert [r["ours"] for r in job.records("worker.exit")] == [False, False]
    assert job.records("run.end")[0]["exit_code"] == 0
    assert (job.run_dir.stat().st_mode & 0o777) == 0o700


def test_a_run_directory_has_one_job_at_a_time(launcher: Launcher) -> None:
    waits = "import signal; print('up', flush=True); signal.pause()"
    first = launcher("--no-python", sys.executable, "-c", waits)
    first.expect("up")
    again = (f"--run-dir={first.run_dir}", "--no-python", "true")

    second = launcher(*again)
    assert second.finish() == ExitCode.USAGE
    assert f"another running job writes to {first.run_dir}: give this" in second.output

    first.send(signal.SIGTERM)
    assert first.finish() == 128 + signal.SIGTERM
    assert len(first.records("run.start")) == len(first.records("run.end")) == 1
    assert launcher(*again).finish() == 0


def test_the_start_is_one_line_and_a_good_end_is_none(launcher: Launcher) -> None:
    job = launcher.fake("*:exit=0")

    job.finish()

    assert len(job.output.splitlines()) == 1
    assert re.match(r"recoverrun 0\.\d+\.\d+ .* 1 rank .* pid \d+ .*run0", job.output)
    assert f"pid {job.worker_pids()[0]} " in job.output


def test_script_arguments_arrive_as_they_were_written(launcher: Launcher) -> None:
    echo = "import sys; print(sys.argv[1:])"
    arguments = ["--r=16", "-h", "--nproc-per-node", "3", "", "ü", "--", "${local_rank}", "$$x"]

    job = launcher("--no-python", "--nproc_per_node=1", sys.executable, "-c", echo, *arguments)

    assert job.finish() == 0
    assert str(["--r=16", "-h", "--nproc-per-node", "3", "", "ü", "--", "0", "$x"]) in job.output


def test_a_worker_finds_torchruns_environment(launcher: Launcher) -> None:
    show = "import os; os.write(1, ascii(dict(os.environ)).encode() + b'\\n')"

    job = launcher("--no-python", "--nproc-per-node=2", sys.executable, "-c", show)

    assert job.finish() == 0
    for variable in ("'RANK': '1'", "'LOCAL_RANK': '1'", "'WORLD_SIZE': '2'", "'GROUP_RANK': '0'",
                     "'ROLE_NAME': 'default'", "'OMP_NUM_THREADS': '",
                     "'TORCHELASTIC_USE_AGENT_STORE': 'False'", "'MASTER_ADDR': '127.0.0.1'",
                     "'TORCHELASTIC_RESTART_COUNT': '0'"):  # fmt: skip
        assert variable in job.output


def test_a_worker_runs_on_the_cpus_that_it_is_bound_to(tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    show = "import os; print(sorted(os.sched_getaffinity(0)))"

    child = spawn([sys.executable, "-c", show], os.environ, stdout=tmp_path / "out", cpus=(cpu,))
    os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT)

    assert child.reap() == 0
    child.close()
    assert (tmp_path / "out").read_text() == f"[{cpu}]\n"


def test_children_of_a_program_that_calls_us_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("print('worked')\n")
    (tmp_path / "wrapper.py").write_text(
        "import subprocess, recoverrun\n"
        "lives = subprocess.Popen(['sleep', '60'])\n"
        "ended = subprocess.Popen(['sh', '-c', 'exit 7'])\n"
        "recoverrun.main(['--nproc-per-node=2', 'worker.py'])\n"
        "print('codes', lives.poll(), ended.wait())\n"
        "lives.kill()\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    done = subprocess.run(
        [sys.executable, "wrapper.py"], cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert done.stdout.count("worked") == 2
    assert done.stdout.splitlines()[-1] == "codes None 7"


def test_the_exit_code_is_the_root_ranks_and_the_others_are_stopped(launcher: Launcher) -> None:
    job = launcher.fake("0:hello hang", "1:hello exit=7", nproc=2)

    assert job.finish() == 7

    ends = {r["rank"]: r for r in job.records("worker.exit")}
    assert (ends[1]["code"], ends[1]["ours"]) == (7, False)
    assert (ends[0]["signal"], ends[0]["ours"]) == (signal.SIGTERM, True)
    kills = job.records("worker.kill")
    assert kills[0]["ranks"] == [0] and kills[0]["seq"] < ends[0]["seq"]


def test_a_signal_becomes_128_and_its_number(launcher: Launcher) -> None:
    assert launcher.fake("*:sigkill").finish() == 137


def test_a_code_of_ours_is_not_the_scripts_to_use(launcher: Launcher) -> None:
    assert launcher.fake("*:exit=85").finish() == 1


def test_the_report_names_the_cause_first_and_is_short(launcher: Launcher) -> None:
    job = launcher.fake("*:hello hang", "2:hello raise=boom", nproc=4)

    assert job.finish() == 1

    report = job.output[job.output.index("FAILED") :].splitlines()
    assert "rank 2" in report[0] and "boom" in report[0]
    assert len(report) <= 12
    assert "Traceback" not in job.output


def test_the_words_with_which_a_script_ends_itself_are_the_reason(
    launcher: Launcher, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import sys\nsys.exit('no data here')")
    missing = "No module named json.nowhere"
    for script, words in ((("train.py",), "no data here"), (("-m", "json.nowhere"), missing)):
        job = launcher(*script)

        assert job.finish() == 1
        assert re.search(f"FAILED: rank 0 exited with code 1: SystemExit: .*{words}", job.output)


def test_whoever_ignores_sigterm_is_killed_after_the_grace(launcher: Launcher) -> None:
    job = launcher.fake(
        "0:ignore-term hello set=ready hang",
        "1:get=key exit=3",
        nproc=2,
        options=("--shutdown-timeout=1",),
    )

    assert job.finish() == 3
    kills = [r["signal"] for r in job.records("worker.kill")]
    assert kills == ["SIGTERM", "SIGKILL"]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, ExitCode.TERMINATED), (signal.SIGINT, ExitCode.INTERRUPTED)],
)
def test_a_signal_to_the_launcher_stops_everybody(
    launcher: Launcher, number: signal.Signals, code: int
) -> None:
    job = launcher.fake("*:hello hang", nproc=2)
    job.expect("rank 0: hangs")
    job.expect("rank 1: hangs")
    pids = job.worker_pids()

    job.send(number)

    assert job.finish() == code
    for pid in pids.values():
        assert await_death(pid, 0) == 0.0


def test_steps_that_workers_commit_after_a_stop_are_in_the_journal(launcher: Launcher) -> None:
    job = launcher.fake(
        "0:hello topology meet=ready commit=0 asked commit=1 commit=2 farewell=2",
        "1:hello topology meet=ready commit=0 asked commit=1 sigkill",
        nproc=2,
    )
    for rank in (0, 1):
        job.expect(f"rank {rank}: waits to be asked")

    job.send(signal.SIGTERM)

    assert job.finish() == ExitCode.TERMINATED
    steps = [(r["ev"], r.get("step")) for r in job.records("step.commit", "run.end")]
    assert steps == [("step.commit", 0), ("step.commit", 1), ("step.commit", 2), ("run.end", None)]


def test_the_second_ctrl_c_kills_at_once(launcher: Launcher) -> None:
    job = launcher.fake("*:ignore-term hello hang", nproc=2)
    job.expect("rank 0: hangs")
    job.expect("rank 1: hangs")
    pids = job.worker_pids()

    job.send(signal.SIGINT)
    for rank in (0, 1):
        job.expect(f"rank {rank}: ignores SIGINT")
    job.send(signal.SIGINT)

    assert max(await_death(pid, 3) for pid in pids.values()) < 2
    assert job.finish() == ExitCode.INTERRUPTED


def test_workers_do_not_outlive_a_killed_launcher(launcher: Launcher) -> None:
    job = launcher.fake("*:hello hang", nproc=2)
    job.expect("rank 0: hangs")
    job.expect("rank 1: hangs")
    pids = job.worker_pids()

    job.send(signal.SIGKILL)

    assert max(await_death(pid, 1) for pid in pids.values()) < 1


@pytest.mark.parametrize("session", ["", "own"])
def test_children_of_a_failed_worker_go_with_it(launcher: Launcher, session: str) -> None:
    job = launcher.fake(f"*:hello child={session} sigkill")
    child = int(job.expect(r"child (\d+)")[1])

    assert job.finish() == 137

    assert await_death(child, 0) == 0.0


# ------------------------------------------------------------------------------- losses


def test_a_protected_job_survives_a_loss_and_says_so_to_all(launcher: Launcher) -> None:
    job = launcher.fake(
        "*:hello topology meet=ready view=2 farewell=0",
        "2:hello topology meet=ready leave-context=last-words sigkill",
        nproc=3,
    )

    assert job.finish() == 0

    assert "rank 0: view 2 lost [2]" in job.output
    assert "rank 1: view 2 lost [2]" in job.output
    lost = job.records("replica.lost")
    assert [r["root_rank"] for r in lost] == [2]
    assert job.records("worker.exit")[0]["detect_ms"] < 500


def test_a_loss_below_the_minimum_of_replicas_exits_81(launcher: Launcher) -> None:
    job = launcher.fake(
        "*:hello topology meet=ready hang",
        "1:hello topology meet=ready sigkill",
        nproc=2,
        options=("--min-replicas=2",),
    )

    assert job.finish() == ExitCode.BELOW_MINIMUM


def test_messages_of_the_dead_and_of_liars_change_nothing(launcher: Launcher) -> None:
    job = launcher.fake("0:hello garbage garbage lie farewell=0", "1:hello add=x exit=0", nproc=2)

    assert job.finish() == 0

    complaints = job.records("notice.give")
    assert [r["rank"] for r in complaints if "dropped" in r["reason"]] == [0]


def test_the_store_serves_all_workers_of_the_job(launcher: Launcher) -> None:
    job = launcher.fake("0:get=key get-briefly=nothing add=n add=n", "1:set=value", nproc=2)

    assert job.finish() == 0

    assert "rank 0: get ok value 0" in job.output
    assert "rank 0: get timeout nobody set 'nothing' within 0.2 s 0" in job.output
    assert "rank 0: add ok  2" in job.output


# ------------------------------------------------------------------------------- disks


def test_the_loop_of_a_launcher_has_no_business_with_files(launcher: Launcher) -> None:
    job = launcher.fake(
        "*:hello topology meet=ready view=2 farewell=0",
        "2:hello topology meet=ready raise=boom",
        nproc=3,
        options=("--redirects=3", "--tee=3"),
        within=(sys.executable, str(Path(__file__).with_name("audited.py"))),
    )

    assert job.finish() == 1, "rank 2 fails, and no step follows"

    assert int(job.expect(r"by other threads: (\d+)")[1]) > 2
    assert "by the main thread: []" in job.output


# ------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["no_such.py"], 2, "there is no script 'no_such.py'"),
        ([""], 2, "no training script was given"),
        ([], 2, "no training script was given"),
        (["--nproc-pre-node=2", "x.py"], 2, "did you mean --nproc-per-node?"),
        (["--nproc-per-node=0", "x.py"], 2, "must be between 1 and"),
        (["--nproc-per-node=two", "x.py"], 2, "must be a number, auto, cpu, gpu or xpu"),
        (["--nnodes=0", "x.py"], 2, "--nnodes must be at least 1"),
        (["--nnodes=2:1", "x.py"], 2, "MIN at most MAX"),
        (["--node-rank=2", "--nnodes=2", "x.py"], 2, "--node-rank 2 does not exist"),
        (["--min-replicas=0", "x.py"], 2, "--min-replicas"),
        (["--no-python", "no-such-program"], 2, "no program 'no-such-program'"),
        (["-m", "no_such_module"], 2, "no module 'no_such_module'"),
        (["-m", "--no-python", "x"], 2, "cannot go with --no-python"),
        (["--inject=r1", "x.py"], 2, "--inject: 'r1' is not of the form"),
        (["--rdzv-endpoint=a:b", "--nnodes=2", "x.py"], 2, "must be host:port"),
        (["statu"], 2, "did you mean the command 'status'?"),
    ],
)
def test_a_mistake_is_one_sentence_and_a_code(
    launcher: Launcher, arguments: list[str], code: int, words: str
) -> None:
    job = launcher(*arguments)

    assert job.finish() == code

    assert words in job.output
    assert len(job.output.splitlines()) == 1


def test_a_working_directory_that_was_removed_is_one_sentence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone} && exec {sys.executable} -m recoverrun --no-python true"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    ended = subprocess.run(
        ["sh", "-c", command], cwd=gone, env=env, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 2
    assert ended.stderr.startswith("recoverrun: the working directory was removed")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", [["--dry-run", "--no-python", "true"], ["--version", "--json"], ["--help"]]
)
def test_a_reader_that_leaves_early_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    command = [sys.executable, "-m", "recoverrun", *arguments]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)

    assert (ended.returncode, ended.stderr) == (1, b"")


def test_a_worker_that_cannot_be_started_ends_the_job(launcher: Launcher, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)

    job = launcher("--no-python", "--nproc-per-node=2", str(program))

    assert job.finish() == 2
    assert "cannot start" in job.output


@pytest.mark.cold
def test_the_launcher_stays_small(launcher: Launcher) -> None:
    job = launcher.fake("*:hello hang", nproc=4)
    for rank in range(4):
        job.expect(f"rank {rank}: hangs")

    status = Path(f"/proc/{job.pid}/status").read_text()
    resident_kib = int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])
    job.send(signal.SIGTERM)

    assert job.finish() == ExitCode.TERMINATED
    assert resident_kib < 35 * 1024
