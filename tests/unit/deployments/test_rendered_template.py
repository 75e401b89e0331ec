"""Each job file is what its scheduler takes, and calls recoverrun as it can be called."""

import copy
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from recoverrun.config.options import read
from recoverrun.deployments.deployment_table import DEPLOYMENTS, NAMES, deployment
from recoverrun.deployments.rendered_template import Values, rendered
from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode
from tests.unit.deployments.job_schemas import SCHEMAS, of_definitions

COPIES = Path(__file__).resolve().parents[3] / "templates"
LARGE = Values(
    nodes=8, least=6, gpus=4, image="ghcr.io/me/train:2", name="gpt", script="a.py --text 'b: c'"
)
VALUES = [Values(), LARGE]


@pytest.mark.parametrize("name", NAMES)
def test_templates_holds_a_copy_of_each(name: str) -> None:
    copied = COPIES / deployment(name).file

    if os.environ.get("RECOVERRUN_REWRITE") == "1":
        copied.write_text(rendered(name, Values()))
    assert copied.read_text() == rendered(name, Values())


def documents(name: str, values: Values) -> list[Any]:
    return list(yaml.safe_load_all(rendered(name, values)))


def mistakes(name: str, found: list[Any]) -> list[str]:
    """The objections of the schemas to the documents of a job file."""
    checked = zip(SCHEMAS[name], found, strict=True)
    return [
        error.message
        for schema, document in checked
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]


@pytest.mark.parametrize("values", VALUES, ids=["small", "large"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_file_is_of_its_kind(name: str, values: Values) -> None:
    assert mistakes(name, documents(name, values)) == []


CRDS = os.environ.get("RECOVERRUN_CRDS", "")
"""A folder with the CustomResourceDefinitions of JobSet, Trainer, LeaderWorkerSet and Volcano."""


@pytest.fixture(scope="module")
def definitions() -> dict[tuple[str, str], Any]:
    files = sorted(Path(CRDS).glob("*.yaml"))
    return of_definitions([one for path in files for one in yaml.safe_load_all(path.read_text())])


@pytest.mark.skipif(not CRDS, reason="RECOVERRUN_CRDS names no folder of definitions")
@pytest.mark.parametrize("values", VALUES, ids=["small", "large"])
@pytest.mark.parametrize("name", ["jobset", "trainjob", "lws", "volcano"])
def test_the_definitions_of_a_cluster_take_a_file(
    name: str, values: Values, definitions: dict[tuple[str, str], Any]
) -> None:
    """Check 12 of the user experience, where the definitions are."""
    for document in documents(name, values):
        schema = definitions[document["apiVersion"], document["kind"]]
        judge = jsonschema.Draft202012Validator(schema)
        assert [error.message for error in judge.iter_errors(document)] == []
        assert not judge.is_valid({**document, "spec": {**document["spec"], "nodez": 1}})


def fields(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of all fields in a document."""
    inside = node.items() if isinstance(node, dict) else enumerate(node)
    found = []
    for key, value in inside:
        found += [(*at, key)] if isinstance(node, dict) else []
        if isinstance(value, dict | list):
            found += fields(value, (*at, key))
    return found


# Whose fields a user names, not the kind.
FREE = {"labels", "limits", "file_mounts", "services", "secrets"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_field_that_is_misspelt_is_refused(name: str) -> None:
    """Check 12 of the user experience, with `bash -n` below."""
    whole = documents(name, LARGE)
    tried = 0
    for place in fields(whole):
        if place[-2] in FREE or "x-node" in place:
            continue
        wrong = copy.deepcopy(whole)
        parent = wrong
        for key in place[:-1]:
            parent = parent[key]
        parent[f"{place[-1]}x"] = parent.pop(place[-1])
        tried += 1
        assert mistakes(name, wrong), place

    assert tried > 5


def command_lines(name: str, values: Values) -> list[list[str]]:
    """The words of each call of recoverrun that runs a job in a file, all variables being 3."""
    text = rendered(name, values)
    if name in ("jobset", "volcano"):
        args = re.search(r"args:\n((?: +- .*\n)+)", text)
        assert args is not None
        return [yaml.safe_load(args[1])]
    if name == "trainjob":
        return [documents(name, values)[1]["spec"]["trainer"]["args"]]
    if name == "compose":
        services = documents(name, values)[0]["services"].values()
        assert all(one["command"][0] == "recoverrun" for one in services)
        return [one["command"][1:] for one in services]
    flat = re.sub(r"\\\n\s*", " ", text)
    calls = re.findall(
        r"^\s*(?:srun .*|ExecStart=.*)?recoverrun (--.*?)(?: &)?$", flat, re.MULTILINE
    )
    plain = [re.sub(r'"\$\(.*\):29400"', "h:29400", call).replace('"$@"', "") for call in calls]
    return [shlex.split(re.sub(r"\$(\{\w+\}|\w+)", "3", call)) for call in plain]


@pytest.mark.parametrize("values", VALUES, ids=["small", "large"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "ray"])
def test_a_file_calls_recoverrun_as_it_can_be_called(name: str, values: Values) -> None:
    calls = command_lines(name, values)

    assert calls
    for words in calls:
        options = read(words, {})
        assert options is not None
        assert list(options.command) == shlex.split(values.script)
        assert options.min_replicas == values.least


@pytest.mark.parametrize("name", ["jobset", "trainjob", "lws", "volcano"])
def test_pods_have_shared_memory_a_key_and_time_to_end(name: str) -> None:
    text = rendered(name, Values())

    assert "emptyDir: {medium: Memory}" in text
    assert "mountPath: /run/secrets/recoverrun-key" in text
    assert "terminationGracePeriodSeconds: 60" in text


def test_systemd_understands_every_line_of_its_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")

    def verify(text: str) -> str:
        unit = tmp_path / "gpt.service"
        unit.write_text(text)
        ran = subprocess.run(
            [analyze, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
        )
        # It exits with 0 also where it has ignored a line; it says so.
        return "\n".join(line for line in ran.stderr.splitlines() if "gpt.service" in line)

    unit = rendered("systemd", LARGE)

    assert verify(unit) == ""
    assert "contineu" in verify(unit.replace("OOMPolicy=continue", "OOMPolicy=contineu"))


# ------------------------------------------------------------------------------- Ray

RAY = """
class Task:
    def __init__(self, function):
        self.remote = function
    def options(self, scheduling_strategy):
        return self

class exceptions:
    class RayError(Exception):
        pass

class Group:
    def ready(self):
        return None

def placement_group(bundles, strategy):
    print("bundles", len(bundles), strategy)
    return Group()

def PlacementGroupSchedulingStrategy(group, placement_group_bundle_index):
    return placement_group_bundle_index

def remote(**options):
    print("options", options)
    return Task

def init():
    import ray.util

def wait(waiting):
    return waiting[:1], waiting[1:]

def get(value):
    if value == 137:
        raise exceptions.RayError("the node died")
    return value
"""


def test_the_script_for_ray_outlives_a_node_and_ends_as_the_others_do(tmp_path: Path) -> None:
    """Ray is a fake that runs tasks where they are called; recoverrun tells its words."""
    (tmp_path / "ray" / "util").mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text(RAY)
    (tmp_path / "ray" / "util" / "__init__.py").write_text(
        "def get_node_ip_address():\n    return '10.0.0.1'\n"
    )
    for module in ("placement_group", "scheduling_strategies"):
        (tmp_path / "ray" / "util" / f"{module}.py").write_text("from ray import *\n")
    (tmp_path / "recoverrun").write_text(
        '#!/bin/bash\necho "$@" >> "$SAID"; [[ "$*" == *--node-rank=2* ]] && exit 137; exit 0\n'
    )
    (tmp_path / "recoverrun").chmod(0o755)
    (tmp_path / "job.py").write_text(rendered("ray", LARGE))
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}

    ran = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**environ, "SAID": str(tmp_path / "said")}, timeout=60,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    assert "bundles 8 STRICT_SPREAD" in ran.stdout
    assert "'max_retries': 0" in ran.stdout
    assert "a node is lost: the node died" in ran.stderr
    calls = [shlex.split(line) for line in (tmp_path / "said").read_text().splitlines()]
    found = [read(words, {}) for words in calls]
    assert [options.node_rank for options in found if options is not None] == list(range(8))
    assert {options.rdzv_endpoint for options in found if options} == {"10.0.0.1:29400"}
    assert {options.command for options in found if options} == {("a.py", "--text", "b:", "c")}


# ------------------------------------------------------------------------------- Slurm


@pytest.mark.parametrize("values", VALUES, ids=["small", "large"])
def test_bash_takes_the_script_for_slurm(values: Values) -> None:
    text = rendered("slurm", values)

    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=30)
    options = [line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH")]
    first_command = text.index("set -u")
    assert all(text.index(f"#SBATCH {option}") < first_command for option in options)
    assert {"--no-kill", "--requeue"} <= set(options)


FAKE = """#!/bin/bash
echo "$(basename "$0") $*" >> "$SAID"
case $(basename "$0"):$* in
    srun:--help) echo "$OFFERED" ;;
    srun:*) exit "$SRUN" ;;
    recoverrun:status*) [ -z "$CODE" ] || echo "{\\"exit_code\\": $CODE}" ;;
esac
"""


def submitted(
    tmp_path: Path, code: str, *, restarts: str = "", offered: str = "", srun: int = 0
) -> tuple[int, str]:
    """Run the script where Slurm's programs and recoverrun are fakes; its code, what it called."""
    for name in ("srun", "scontrol", "recoverrun"):
        (tmp_path / name).write_text(FAKE)
        (tmp_path / name).chmod(0o755)
    said = tmp_path / "said"
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SAID": str(said), "CODE": code,
        "OFFERED": offered, "SRUN": str(srun), "SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "4",
        **({"SLURM_RESTART_COUNT": restarts} if restarts else {}),
    }  # fmt: skip
    script = rendered("slurm", LARGE)
    ran = subprocess.run(
        ["bash", "-s", "--", "--lr", "0.1"], input=script, text=True, env=environ, cwd=tmp_path,
        stderr=subprocess.PIPE, check=False, timeout=30,
    )  # fmt: skip
    assert ran.stderr == ""
    return ran.returncode, said.read_text()


@pytest.mark.parametrize(
    ("code", "ended", "again"),
    [
        ("0", 0, False),
        ("1", 1, False),
        ("93", 93, False),
        ("81", 81, True),
        ("null", 1, False),
        ("", 1, False),
        ("84", 84, True),
        ("143", 143, True),
    ],
)
def test_the_job_ends_as_its_journal_says_and_begins_again_where_that_helps(
    tmp_path: Path, code: str, ended: int, again: bool
) -> None:
    found, said = submitted(tmp_path, code, srun=137)

    assert found == ended
    assert ("scontrol requeue 7" in said) == again
    assert f"--run-dir {tmp_path}/runs/gpt/7-0 " in said
    assert "a.py --text b: c --lr 0.1" in said


def test_a_job_is_requeued_three_times_at_most(tmp_path: Path) -> None:
    found, said = submitted(tmp_path, "81", restarts="3")

    assert found == ExitCode.BELOW_MINIMUM
    assert "scontrol" not in said
    assert "runs/gpt/7-3" in said


def test_a_job_that_slurm_preempts_is_requeued_each_time(tmp_path: Path) -> None:
    _, said = submitted(tmp_path, "143", restarts="30")

    assert "scontrol requeue 7" in said


@pytest.mark.parametrize("offered", ["", "      --oom-kill-step[=0|1]"])
def test_an_option_of_newer_versions_is_used_where_it_is_offered(
    tmp_path: Path, offered: str
) -> None:
    _, said = submitted(tmp_path, "0", offered=offered)

    assert ("--oom-kill-step=0" in said) == bool(offered)


# ------------------------------------------------------------------------------- values


@pytest.mark.parametrize("name", ["../../etc/passwd", "slurm.sbatch", "", "/etc/passwd", "Slurm"])
def test_row_54_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(RecoverrunError, match="there is no template") as caught:
        rendered(name, Values())

    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "values",
    [
        Values(nodes=1),
        Values(nodes=10**9),
        Values(least=0),
        Values(gpus=-1),
        Values(name="A b"),
        Values(name="a\nb"),
        Values(image="a b"),
        Values(image="a\n  hostNetwork: true"),
        Values(script=""),
        Values(script="'a"),
        Values(script="'a\nb'"),
        Values(script="a.py $(rm -rf .)"),
        Values(script="a.py %n"),
    ],
)
def test_a_value_that_would_break_a_file_is_refused(values: Values) -> None:
    with pytest.raises(RecoverrunError) as caught:
        rendered("slurm", values)

    assert caught.value.exit_code == 2


def test_files_have_names_of_their_own() -> None:
    assert len({one.file for one in DEPLOYMENTS}) == len(DEPLOYMENTS)
