"""Checks of how a node takes part in a job: its way to the others, environment, scheduler."""

import re
from collections.abc import Iterator
from ipaddress import ip_address

from recoverrun.config.option_table import TABLE
from recoverrun.doctor.findings import Finding, error, ok, warning
from recoverrun.doctor.node_facts import NodeFacts

_YES = frozenset({"1", "y", "yes", "t", "true", "on"})


def address(facts: NodeFacts) -> Iterator[Finding]:
    if facts.nnodes == 1 or not facts.endpoint:
        return
    if facts.unknown_hosts:
        found = f"no address is known for {', '.join(facts.unknown_hosts)}"
        yield error("address", found, "this node finds nobody", "--rdzv-endpoint with an address")
        return
    if facts.route == "*":
        found = f"there is no route to {facts.endpoint}"
        yield error(
            "address", found, "this node finds nobody", "ip route get ADDRESS; --local-addr"
        )
        return
    if _is_loopback(facts.route):
        found = f"{facts.endpoint} is a loopback address"
        breaks = "nodes on other machines cannot come there"
        yield warning("address", found, breaks, "--rdzv-endpoint with an address of the first node")
    else:
        note = ""
        if _is_loopback(facts.own_name) and "GLOO_SOCKET_IFNAME" not in facts.environ:
            note = f" (this host's name leads to {facts.own_name}: GLOO_SOCKET_IFNAME will be set)"
        yield ok("address", f"{facts.route} towards {facts.endpoint}{note}")
    if facts.local_addr_trouble:
        found = f"--local-addr {facts.local_addr} {facts.local_addr_trouble}"
        breaks = "the others connect to it, and reach this node only if the network forwards"
        yield warning("address", found, breaks, "one of `ip address`, or no --local-addr")


def interface(facts: NodeFacts) -> Iterator[Finding]:
    """Only workers use it: a node with a wrong one meets the others all the same."""
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        wanted = facts.environ.get(variable, "")
        if not wanted or wanted.startswith("^"):
            continue
        names = [name for name in wanted.removeprefix("=").split(",") if name]
        gloo = variable.startswith("GLOO")
        exact = gloo or wanted.startswith("=")
        fits = [
            name
            for name in names
            if any(known == name if exact else known.startswith(name) for known in facts.interfaces)
        ]
        if not fits or (gloo and len(fits) < len(names)):  # gloo takes all, NCCL what it finds
            found = f"{variable}={wanted}, and there are {', '.join(facts.interfaces)}"
            yield error("interface", found, "workers cannot connect", f"unset {variable}")


def endpoint(facts: NodeFacts) -> Iterator[Finding]:
    where = facts.endpoint
    match facts.reach:
        case "taken":
            found = f"another program listens at {where}"
            yield error(
                "endpoint", found, "this node cannot serve the others", "choose another port"
            )
        case "answers":
            found = f"what answers at {where} is no rendezvous of recoverrun"
            yield error("endpoint", found, "this node cannot join", "choose another port")
        case "silent" | "unreachable":
            found = f"{where} is {facts.reach}"
            breaks = "this node cannot join: the network or a firewall drops the connection"
            yield error("endpoint", found, breaks, "open the port, or --rdzv-endpoint elsewhere")
        case "refused":
            yield ok("endpoint", f"{where} can be reached, and nobody listens there yet")
        case "rendezvous":
            yield ok("endpoint", f"a launcher answers at {where}")
        case "here":
            yield ok("endpoint", f"{where} is on this node, and free")
        case _:
            pass


def key(facts: NodeFacts) -> Iterator[Finding]:
    if facts.key_trouble:
        yield error("key", facts.key_trouble, "no job starts", "see docs/security.md")
    elif facts.nnodes > 1 and not facts.key:
        found = "there is no key"
        breaks = "whoever reaches the rendezvous can read, join and end the job"
        yield warning("key", found, breaks, "recoverrun keygen, and the file on all nodes")
    elif facts.key:
        yield ok("key", facts.key)


def script(facts: NodeFacts) -> Iterator[Finding]:
    if facts.script_trouble:
        breaks = "workers have nothing to run"
        yield error("script", facts.script_trouble, breaks, "name one that is there")


def environment(facts: NodeFacts) -> Iterator[Finding]:
    environ = facts.environ
    for name in ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"):
        if environ.get(name, "").lower() in _YES:
            breaks = "a collective that a lost rank has left blocks until its time-out"
            yield warning("environment", f"{name}={environ[name]}", breaks, f"unset {name}")
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"):
        if environ.get(name) == "0":
            breaks = "a failed collective is not noticed"
            yield warning("environment", f"{name}=0", breaks, f"unset {name}")
    threads = environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) * facts.nproc > 2 * facts.cores:
        found = f"OMP_NUM_THREADS={threads} for {facts.nproc} workers on {facts.cores} cores"
        breaks = "workers wait for each other's threads"
        mend = f"OMP_NUM_THREADS={max(1, facts.cores // facts.nproc)}, or unset it"
        yield warning("environment", found, breaks, mend)
    elif not threads and not facts.threads and facts.nproc > facts.cores:
        found = f"{facts.nproc} workers on {facts.cores} cores"
        yield warning("environment", found, "workers wait for each other", "--nproc-per-node auto")
    if environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        breaks = "each kernel is waited for"
        yield warning("environment", "CUDA_LAUNCH_BLOCKING=1", breaks, "unset CUDA_LAUNCH_BLOCKING")

    yield from _torchrun_variables(facts)
    for one in facts.proxied:
        found = f"{one} leads it through a proxy"
        breaks = "posts do not arrive if the proxy does not let them through"
        yield warning("environment", found, breaks, "no_proxy=HOST")


def _torchrun_variables(facts: NodeFacts) -> Iterator[Finding]:
    """PET_*: torchrun's options as variables, which count here as they do there."""
    given = sorted(name for name in facts.environ if name.startswith("PET_"))
    known = {variable for option in TABLE for variable in option.variables}
    if used := [f"{name}={facts.environ[name]}" for name in given if name in known]:
        yield ok("environment", f"torchrun's variables are options: {', '.join(used)}")
    for name in given:
        if name not in known:
            found = f"{name} is no option of torchrun"
            yield warning("environment", found, "it does nothing", f"unset {name}")


def scheduler(facts: NodeFacts) -> Iterator[Finding]:
    if facts.scheduler == "slurm":
        yield from _slurm(facts)
    if facts.oom_policy and facts.oom_policy != "continue":
        found = f"systemd has OOMPolicy={facts.oom_policy} for this unit"
        breaks = "one process out of memory ends the launcher and all ranks of this node"
        yield warning("scheduler", found, breaks, "OOMPolicy=continue")


_NO_KILL = re.compile(r"^#SBATCH\s+(.*\s)?(--no-kill|-k)(\s|$)", re.MULTILINE)
_SRUN = re.compile(r"^[^#\n]*\bsrun\b[^\n]*", re.MULTILINE)
_DOCTOR = re.compile(r"\brecoverrun\s+doctor\b")


def _slurm(facts: NodeFacts) -> Iterator[Finding]:
    script = facts.batch_script.replace("\\\n", " ")
    if not script:
        found = "this Slurm job's script cannot be read"
        breaks = "without --no-kill the first node that is lost ends the job"
        yield warning("scheduler", found, breaks, "recoverrun template slurm")
        return
    told = facts.environ.get("SBATCH_NO_KILL", "no") != "no"
    if not _NO_KILL.search(script) and not told:
        breaks = "the first node that is lost ends the job"
        yield error("scheduler", "this Slurm job has no --no-kill", breaks, "#SBATCH --no-kill")
    kills = facts.environ.get("SLURM_KILL_BAD_EXIT", str(int(facts.kill_on_bad_exit))) != "0"
    calls = [call for call in _SRUN.findall(script) if "recoverrun" in call]
    # In a job file where nothing else runs the doctor stands in the run's place.
    for call in [call for call in calls if not _DOCTOR.search(call)] or calls:
        if "--no-kill" not in call and " -k" not in call:
            breaks = "the first node that is lost ends the step"
            yield error("scheduler", "srun has no --no-kill", breaks, "srun --no-kill")
        if kills and "--kill-on-bad-exit=0" not in call:
            breaks = "the first launcher that fails ends the others"
            mend = "srun --kill-on-bad-exit=0"
            yield error("scheduler", "this Slurm has KillOnBadExit=1", breaks, mend)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
