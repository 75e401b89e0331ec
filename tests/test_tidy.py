"""The house rules, as tests: layers, sizes, handlers, and a README that shows the real --help."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import PACKAGES, ROOT, files, module_of, name_of, outline, sources

TEXT = {".py", ".md", ".toml", ".txt", ".json", ".yaml", ".yml", ".sh", ".sbatch", ""}

FUNCTION_LINES = 60
FILE_LINES = 400
STRATEGY_LINES = 300
COLUMNS = 100
BY_POSITION = 5
NO_THING = {"What", "Where", "Whether", "Who", "Whom", "Whose", "Which", "How"}

# What a layer may import besides the standard library and itself.
MAY_IMPORT = {
    "rendezvous": {"msgpack"},
    "ft_collectives": {"rendezvous", "msgpack", "torch"},
    "recoverrun.worker": {"ft_collectives", "rendezvous", "msgpack", "torch"},
    "recoverrun": {
        "rendezvous",
        "msgpack",
        "typer",
        "click",
        "rich",
        "jinja2",
        "prometheus_client",
        "opentelemetry",
    },
    "templates": {"torch", "ray"},
}
ONLY_IN = {
    "zmq": {
        "rendezvous/transport/station.py",
        "rendezvous/transport/sockets.py",
        "rendezvous/transport/listener_connections.py",
        "rendezvous/transport/links.py",
        "rendezvous/transport/worker_link.py",
    },
    "setproctitle": {"rendezvous/protocol/process_title.py"},
    "numpy": {"rendezvous/snapshots/parity_code.py"},  # where it is installed
}

# Machines decide: they are told the time and never act, so that the simulator can run them.
MACHINES = (
    "rendezvous/coordinator/coordinator.py",
    "rendezvous/coordinator/generations.py",
    "rendezvous/coordinator/fence.py",
    "rendezvous/coordinator/arrivals.py",
    "rendezvous/coordinator/revivals.py",
    "rendezvous/coordinator/first_step.py",
    "rendezvous/coordinator/snapshots.py",
    "rendezvous/snapshots/bay_header.py",
    "rendezvous/snapshots/holdings.py",
    "rendezvous/snapshots/restore_plan.py",
    "rendezvous/snapshots/exchange.py",
    "rendezvous/snapshots/exchange_asking.py",
    "rendezvous/snapshots/exchange_units.py",
    "rendezvous/snapshots/kept_shares.py",
    "rendezvous/snapshots/parity_groups.py",
    "rendezvous/coordinator/parity_circle.py",
    "rendezvous/protocol/quota.py",
    "rendezvous/coordinator/ledger.py",
    "rendezvous/coordinator/step_decisions.py",
    "rendezvous/protocol/layout.py",
    "rendezvous/store/kv.py",
    "rendezvous/membership/formation.py",
    "rendezvous/membership/failure_detector.py",
    "rendezvous/membership/awaited_ranks.py",
    "rendezvous/membership/hang_evidence.py",
    "rendezvous/membership/hang_limits.py",
    "rendezvous/membership/joint_stalls.py",
    "rendezvous/membership/standstill.py",
    "rendezvous/coordinator/hang_watch.py",
    "rendezvous/consensus/paxos.py",
    "rendezvous/consensus/campaign.py",
    "rendezvous/consensus/proposer.py",
    "rendezvous/consensus/acceptor.py",
    "rendezvous/consensus/voter.py",
    "rendezvous/consensus/leader_contact.py",
    "rendezvous/consensus/peers.py",
    "rendezvous/consensus/witness.py",
    "rendezvous/consensus/etcd_api.py",
    "rendezvous/consensus/etcd_register.py",
    "rendezvous/consensus/timeouts.py",
    "rendezvous/consensus/configuration.py",
    "rendezvous/consensus/register_events.py",
    "rendezvous/coordinator/takeover.py",
    "rendezvous/store/replication.py",
    "rendezvous/protocol/fault_schedule.py",
    "recoverrun/launcher/node/supervisor.py",
    "ft_collectives/step/machine.py",
    "ft_collectives/step/step_events.py",
)
FORBIDDEN_TO_MACHINES = {"time", "random", "os", "socket", "threading", "logging", "zmq", "torch"}

# Paths of the machines that this was written on say nothing to a reader. In pieces, or this file
# would be the first to break its own rule.
PRIVATE = re.compile(
    "|".join(("/" + r"work\b", "/tmp/" + "notes", "shared" + "/(design|reference|hooks|proto)"))
    + "|HOUSE_"
    + "STYLE"
)

# What pages name that looks like a file or module of ours.
NO_FILES = {
    "recoverrun.toml",
    "recoverrun.main",
    "recoverrun.errors.RecoverrunError",
    "rendezvous.py",  # one beside a script
}

HELP_BEGIN, HELP_END = "<!-- help:begin -->", "<!-- help:end -->"


def _layer(module: str) -> str:
    """Return the layer that a dotted module belongs to, or its top-level name."""
    if module == "recoverrun.worker" or module.startswith("recoverrun.worker."):
        return "recoverrun.worker"
    return module.split(".")[0]


def _crosses(layer: str, module: str, path: Path) -> bool:
    target = _layer(module)
    if target in ONLY_IN:
        return name_of(path) not in ONLY_IN[target]
    return not (target == layer or target in MAY_IMPORT[layer] or target in sys.stdlib_module_names)


def test_a_package_imports_only_what_is_below_it() -> None:
    wrong = [
        f"{name_of(path)}:{line} imports {module}"
        for path in sources(*PACKAGES)
        for line, module in outline(path).imports
        if _crosses(_layer(module_of(path)), module, path)
    ]

    assert not wrong, "\n".join(wrong)


def test_the_layer_rule_sees_the_imports_that_it_forbids() -> None:
    transport, kv = ROOT / "rendezvous/transport/station.py", ROOT / "rendezvous/store/kv.py"

    assert not _crosses("rendezvous", "zmq", transport)
    assert _crosses("rendezvous", "zmq", kv)
    assert _crosses("rendezvous", "torch.distributed", kv)
    assert _crosses(
        "recoverrun", "recoverrun.worker.patches.torch_table", ROOT / "recoverrun/launcher/agent.py"
    )
    assert _crosses("recoverrun", "torch", ROOT / "recoverrun/launcher/agent.py")
    assert _crosses(
        "recoverrun.worker",
        "recoverrun.launcher.agent",
        ROOT / "recoverrun/worker/instrumentation.py",
    )
    assert _crosses("templates", "recoverrun.worker", ROOT / "templates/gpt_ddp.py")


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_knows_no_time_no_chance_and_no_world(machine: str) -> None:
    wrong = [
        f"{machine}:{line} imports {module}"
        for line, module in outline(ROOT / machine).imports
        if module.split(".")[0] in FORBIDDEN_TO_MACHINES
    ]

    assert not wrong, "\n".join(wrong)


def test_functions_files_and_lines_have_an_end() -> None:
    wrong = []
    for path in sources():
        lines = path.read_text().splitlines()
        limit = STRATEGY_LINES if path.parent.name == "strategies" else FILE_LINES
        if len(lines) > limit:
            wrong.append(f"{name_of(path)}: {len(lines)} lines (limit {limit})")
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS:
                wrong.append(f"{name_of(path)}:{number}: {len(line)} columns (limit {COLUMNS})")
        wrong += [
            f"{name_of(path)}:{first}: {name} has {length} lines"
            for name, first, length in outline(path).functions
            if length > FUNCTION_LINES
        ]

    assert not wrong, "\n".join(wrong)


def test_many_parameters_are_given_by_name() -> None:
    wrong = [
        f"{name_of(path)}:{line}: {name} takes {count} parameters by position (limit {BY_POSITION})"
        for path in sources(*PACKAGES)
        for name, line, count in outline(path).by_position
        if count > BY_POSITION
    ]

    assert not wrong, "\n".join(wrong)


def test_a_docstring_says_what_a_thing_is() -> None:
    wrong = [
        f"{name_of(path)}:{line}: its docstring begins with {word!r}"
        for path in sources()
        for line, word in outline(path).docstrings
        if word.rstrip(",:") in NO_THING
    ]

    assert not wrong, "\n".join(wrong)


def test_the_docstring_of_a_predicate_says_when_it_is_true() -> None:
    wrong = [
        f"{name_of(path)}:{line}: neither True nor False"
        for path in sources(*PACKAGES)
        for line, words in outline(path).predicates
        if not re.search(r"\b(True|False)\b", words)
    ]

    assert not wrong, "\n".join(wrong)


def test_a_broad_except_says_what_it_protects() -> None:
    wrong = []
    for path in sources():
        lines = path.read_text().splitlines()
        for line, body in outline(path).broad:
            near = lines[line - 2 : body]  # the line above, its own, or the first thing inside
            if not any("#" in one.replace("# noqa", "") for one in near):
                wrong.append(f"{name_of(path)}:{line}: broad except without a comment")

    assert not wrong, "\n".join(wrong)


def test_no_file_mentions_the_machine_that_it_was_written_on() -> None:
    wrong = []
    for path in files(ROOT):
        if path.suffix not in TEXT or path.name.startswith(".git"):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if found := PRIVATE.search(line):
                wrong.append(f"{name_of(path)}:{number}: {found.group()}")

    assert not wrong, "\n".join(wrong)


def _pages() -> list[Path]:
    names = ("README.md", "CONTRIBUTING.md")
    return [*(ROOT / name for name in names), *sorted((ROOT / "docs").glob("**/*.md"))]


def test_pages_that_are_referred_to_exist() -> None:
    pattern = re.compile(r"docs/[A-Za-z0-9_/-]+\.md")
    wrong = [
        f"{name_of(path)}: {page}"
        for path in [*sources(), *_pages()]
        for page in sorted(set(pattern.findall(path.read_text())))
        if not (ROOT / page).exists()
    ]
    links = re.compile(r"\]\(([A-Za-z./-]+\.md)")
    wrong += [
        f"{name_of(path)}: {page}"
        for path in _pages()
        for page in links.findall(path.read_text())
        if not (path.parent / page).exists()
    ]

    assert not wrong, "\n".join(wrong)


def _anchors(page: Path) -> set[str]:
    """The names by which a link may point to a heading of `page`."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


def test_headings_that_are_linked_to_exist() -> None:
    links = re.compile(r"\]\(([A-Za-z./-]*(?:\.md)?)#([^)]+)\)")
    wrong = [
        f"{name_of(path)}: {page}#{heading}"
        for path in _pages()
        for page, heading in links.findall(path.read_text())
        if heading not in _anchors(path.parent / page if page else path)
    ]

    assert not wrong, "\n".join(wrong)


def _exists(name: str) -> bool:
    """True of a path from the root, and of the dotted name of a package or module of ours."""
    path = ROOT / (name if "/" in name else name.replace(".", "/"))
    return path.exists() or ("/" not in name and path.with_suffix(".py").exists())


def test_files_and_modules_that_pages_name_exist() -> None:
    named = re.compile(
        r"`([\w.-]+(?:/[\w.-]+)+/?|(?:recoverrun|rendezvous|ft_collectives)(?:\.\w+)+)`"
    )
    wrong = [
        f"{name_of(path)}:{number}: {name}"
        for path in _pages()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for name in named.findall(line)
        if not _exists(name) and name not in NO_FILES
    ]

    assert not wrong, "\n".join(wrong)


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_the_launcher_never_imports_torch() -> None:
    heavy = ("torch", "ft_collectives", "recoverrun.worker")
    code = f"""
import sys, pkgutil, importlib
import recoverrun.cli.main, recoverrun.launcher.agent, recoverrun.cli.commands
for module in pkgutil.iter_modules(recoverrun.cli.commands.__path__, "recoverrun.cli.commands."):
    importlib.import_module(module.name)
print([name for name in {heavy!r} if name in sys.modules])
"""
    done = _python(code)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def _real_help() -> str:
    env = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "recoverrun", "--help"]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def test_the_readme_shows_the_real_help() -> None:
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(HELP_BEGIN)
    shown, after = rest.split(HELP_END)
    block = f"\n```text\n{_real_help()}\n```\n"

    if os.environ.get("RECOVERRUN_REWRITE") == "1":
        readme.write_text(f"{before}{HELP_BEGIN}{block}{HELP_END}{after}")
    else:
        assert shown == block, "README.md is behind --help: run `make readme`"


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()

    assert "make demo" in text
    assert "make test" in text
