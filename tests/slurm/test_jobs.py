"""The template for Slurm under a real one: jobs that lose a node, with `--no-kill` and without."""

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recoverrun.deployments.rendered_template import Values, rendered
from recoverrun.reports.postmortem import postmortem
from rendezvous.journal.reader import RunTail, read_run
from rendezvous.protocol.exit_codes import ExitCode
from tests.slurm.cluster import MISSING, Batch, Cluster, free_ports, running

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.rest,
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "Slurm is here"),
    pytest.mark.timeout(400),
]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("scripts") / "train.py"
RESUMING = SCRIPT.with_name("resuming.py")
ENDLESS = 10_000_000
FIRST_STEPS_S = 120.0
LOST_S = 180.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path) as cluster:
        yield cluster


def script(steps: int) -> str:
    return rendered("slurm", Values(nodes=3, least=2, nproc=1, script=f"{SCRIPT} {steps}"))


def submit(cluster: Cluster, text: str, *options: str, **variables: str) -> Batch:
    """Submit; the names of the three nodes lead nowhere, so the endpoint is told."""
    program = cluster.folder / "bin" / "recoverrun"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m recoverrun "$@"\n')
    program.chmod(0o755)
    told = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOME": str(cluster.folder),
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "RECOVERRUN_NNODES": "3",
        "RECOVERRUN_RDZV_ENDPOINT": f"127.0.0.1:{free_ports(1)[0]}",
    }
    return cluster.submit(text, *options, **{**told, **variables})


def await_steps(batch: Batch, wanted: int, begun: int = 0) -> Path:
    """Wait until the run has made so many steps and is protected; its directory. `begun`: so often
    Slurm has started the job again.
    """
    run_dir = batch.folder / "runs" / "train" / f"{batch.number}-{begun}"
    tail = RunTail(run_dir)
    until = time.monotonic() + FIRST_STEPS_S
    steps, promised = -1, False
    while steps < wanted or not promised:
        assert time.monotonic() < until, batch.output
        for entry in tail.poll():
            promised |= entry.event == "promise.state"
            steps = max(steps, entry.integer("step") if entry.event == "step.commit" else -1)
        time.sleep(0.05)  # The journal is a file, which tells nobody that it grows.
    return run_dir


def await_event(run_dir: Path, event: str, batch: Batch) -> None:
    """Wait until the journal has such a record."""
    tail = RunTail(run_dir)
    until = time.monotonic() + LOST_S
    while not any(entry.event == event for entry in tail.poll()):
        assert time.monotonic() < until, batch.output
        time.sleep(0.05)  # The journal is a file, which tells nobody that it grows.


def test_training_outlives_a_node_and_the_postmortem_names_it(cluster: Cluster) -> None:
    batch = submit(cluster, script(steps=80))
    run_dir = await_steps(batch, 20)

    cluster.lose("n3")

    assert batch.finish(LOST_S) == 0, batch.output
    facts = postmortem(read_run(run_dir))
    assert facts.exit_code == 0
    assert [(loss.slot, loss.cause.root.cause) for loss in facts.losses] == [(2, "node-lost")]
    assert batch.state() == "COMPLETED"
    print(re.sub(r"(?m)^step .*\n", "", batch.output))


def test_without_no_kill_the_job_ends_with_the_node(cluster: Cluster) -> None:
    """This proves that the option is what lets the others live."""
    text = script(steps=10_000_000).replace("#SBATCH --no-kill\n", "")
    batch = submit(
        cluster, text.replace("srun --no-kill", "srun").replace("--requeue", "--no-requeue")
    )
    await_steps(batch, 20)

    cluster.lose("n3")

    assert batch.finish(LOST_S) != 0
    assert "DUE TO NODE FAILURE" in batch.output


def resuming(cluster: Cluster, steps: int) -> str:
    script = f"{RESUMING} {steps} {cluster.folder}/newest.pt"
    return rendered("slurm", Values(nodes=3, least=2, nproc=1, script=script))


def begun_at(batch: Batch) -> list[int]:
    """The steps at which the script has begun, each time that it did."""
    return [int(step) for step in re.findall(r"from step (\d+) on", batch.output)]


def test_a_job_that_is_requeued_goes_on_from_its_checkpoint(cluster: Cluster) -> None:
    batch = submit(cluster, resuming(cluster, steps=300))
    await_steps(batch, 45)

    print(cluster.ask("scontrol", "requeue", batch.number))

    assert batch.finish(LOST_S) == 0, batch.output
    first, second = begun_at(batch)
    assert first == 0 and 40 <= second < 300
    again = postmortem(read_run(batch.folder / "runs" / "train" / f"{batch.number}-1"))
    assert (again.exit_code, again.proof.verdict) == (0, "proved")
    print(batch.output)


def test_a_job_that_is_preempted_by_a_signal_goes_on_later(cluster: Cluster) -> None:
    """Slurm sends SIGTERM, waits, and requeues; the launchers end their workers in time."""
    batch = submit(cluster, resuming(cluster, steps=400))
    run_dir = await_steps(batch, 45)

    urgent = cluster.submit("#!/bin/sh\necho urgent\n", "--partition=urgent", "--nodes=3",
                            "--exclusive", "--output=urgent-%j.log", name="urgent")  # fmt: skip
    assert urgent.finish(LOST_S) == 0, urgent.output

    assert batch.finish(LOST_S) == 0, batch.output
    first, second = begun_at(batch)
    assert first == 0 and 40 <= second < 400
    before = postmortem(read_run(run_dir))
    assert before.exit_code == ExitCode.TERMINATED, (
        "each launcher had the time to write down its end"
    )
    assert before.proof.verdict == "proved"
    print(batch.output)


def test_a_node_that_returns_takes_its_place_in_the_running_job_again(cluster: Cluster) -> None:
    """Slurm gives a lost node back to no allocation, so a job of its own brings the launcher."""
    place = f"127.0.0.1:{free_ports(1)[0]}"
    told = {"RECOVERRUN_RDZV_ENDPOINT": place, "RECOVERRUN_RETURNS": "1"}
    batch = submit(cluster, script(steps=ENDLESS), **told)
    run_dir = await_steps(batch, 20)
    cluster.lose("n3")
    await_event(run_dir, "recovery.done", batch)
    cluster.until(lambda: cluster.states()["n3"].startswith("down"), "n3 is down")
    cluster.restore("n3")

    launcher = f"srun recoverrun --run-dir {run_dir} --nproc-per-node 1 {SCRIPT} {ENDLESS}"
    late = submit(cluster, f"#!/bin/sh\n{launcher}\n", "--nodes=1", "--nodelist=n3", "--exclusive",
                  "--output=late-%j.log", **told)  # fmt: skip
    await_event(run_dir, "replica.prove", batch)

    found = postmortem(read_run(run_dir))
    assert [way.slot for way in found.ways if way.back] == [2]
    assert found.proof.verdict != "violated"
    print(batch.output, late.output)


def test_the_doctor_names_what_would_end_the_job_with_its_first_node(cluster: Cluster) -> None:
    """A line of its own before the run's; it reads the batch script as Slurm has it."""
    doctor = f"srun recoverrun doctor --nproc-per-node 1 {SCRIPT}; exit\n"
    text = script(steps=1).replace("srun --no-kill", f"{doctor}srun --no-kill")
    without = text.replace("#SBATCH --no-kill\n", "").replace("srun --no-kill", "srun")

    healthy, ill = (submit(cluster, one) for one in (text, without))

    assert healthy.finish(LOST_S) == 0, healthy.output
    assert ill.finish(LOST_S) != 0, ill.output
    assert "scheduler" not in healthy.output
    assert "this Slurm job has no --no-kill" in ill.output
    assert "mend: #SBATCH --no-kill" in ill.output
    assert "srun has no --no-kill" in ill.output
    assert "mend: srun --no-kill" in ill.output
