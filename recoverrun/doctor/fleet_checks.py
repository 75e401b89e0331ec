"""Checks of several nodes together, and one table for all of them. Pure: facts in, findings out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from recoverrun.doctor.clock_rate import Rate
from recoverrun.doctor.findings import Finding, error, ok, warning
from recoverrun.doctor.node_examination import examined
from recoverrun.doctor.node_facts import NodeFacts
from recoverrun.text import plural

OFFSET_S = 1.0
RATE_MOST = 0.01
"""By so much of it a clock may be faster or slower: time limits are told by it."""

NAMED = 8
"""Nodes that a line names; of the others it gives the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The facts of all nodes of a job; by name where it is of one node."""

    nodes: Sequence[NodeFacts]
    wanted: int
    offsets_s: Mapping[str, float]  # clock of a node less that of the first
    rates: Mapping[str, Rate]  # seconds of its clock for one of the first node's
    shares: Mapping[str, bool]  # whether it sees the run directory of the first
    calls: Mapping[str, Mapping[str, str]]  # caller: callee: why it was not reached, or ""
    hosts: Mapping[str, str]  # where each was called


def fleet_findings(fleet: Fleet) -> list[Finding]:
    """The whole table."""
    together = [*_complete(fleet), *_reached(fleet), *_alike(fleet), *_graphics(fleet)]
    together += [*_clocks(fleet), *_run_directories(fleet)]
    return [*together, *folded({one.node: examined(one) for one in fleet.nodes})]


def folded(found: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """One line for what several nodes have alike, and for each check that is well everywhere."""
    order = dict.fromkeys(one.check for findings in found.values() for one in findings)
    table: list[Finding] = []
    for check in order:
        alike: dict[Finding, list[str]] = {}
        for node, findings in found.items():
            for one in findings:
                if one.check == check and one.level != "ok":
                    alike.setdefault(one, []).append(node)
        table += [
            replace(one, nodes=named(nodes) if len(nodes) < len(found) else ())
            for one, nodes in alike.items()
        ]
        if not alike:
            table.append(next(one for some in found.values() for one in some if one.check == check))
    return table


def named(nodes: Sequence[str]) -> tuple[str, ...]:
    """The names that a line shows."""
    more = len(nodes) - NAMED
    return tuple(nodes) if more <= 0 else (*nodes[:NAMED], f"{more} more")


def _complete(fleet: Fleet) -> Iterator[Finding]:
    came, wanted = len(fleet.nodes), fleet.wanted
    if came < wanted:
        found = f"{came} of {plural(wanted, 'node')} came: {_names_of(fleet.nodes)}"
        mend = "run the doctor on every node, with the same --rdzv-endpoint and key"
        yield error("nodes", found, "the job does not form", mend)
    else:
        yield ok("nodes", f"all {came} came: {_names_of(fleet.nodes)}")


def _names_of(nodes: Sequence[NodeFacts]) -> str:
    return ", ".join(named([one.node for one in nodes]))


def _reached(fleet: Fleet) -> Iterator[Finding]:
    """Workers connect each node to each other one, at ports that nobody knows beforehand."""
    failed: dict[tuple[str, str], list[str]] = {}
    for caller, callees in fleet.calls.items():
        for callee, trouble in callees.items():
            if trouble:
                failed.setdefault((callee, trouble), []).append(caller)
    for (callee, trouble), callers in failed.items():
        where = f"{callee} ({fleet.hosts[callee]})"
        found = f"a free port of {where} is {trouble} from {', '.join(named(callers))}"
        breaks = "its workers cannot be connected to those of the others"
        mend = "open all ports above 1024 between the nodes, or --local-addr on another network"
        yield error("ports", found, breaks, mend)
    if len(fleet.calls) > 1 and not failed:
        yield ok("ports", "each node reaches a free port of each other node")


def _alike(fleet: Fleet) -> Iterator[Finding]:
    kinds: tuple[tuple[str, Callable[[NodeFacts], str]], ...] = (
        ("recoverrun", lambda one: one.version),
        ("torch", lambda one: one.torch),
        ("Python", lambda one: ".".join(one.python.split(".")[:2])),
        ("script", lambda one: one.script_digest),
    )
    mixed = all(one.allow_mixed for one in fleet.nodes)
    for name, value in kinds:
        having: dict[str, list[str]] = {}
        for one in fleet.nodes:
            having.setdefault(value(one), []).append(one.node)
        if len(having) < 2:
            continue
        shares = [f"{text or 'none'} on {', '.join(named(on))}" for text, on in having.items()]
        found = f"{name} differs: {'; '.join(shares)}"
        breaks = "ranks run other programs" if name == "script" else "the nodes refuse each other"
        if mixed or name == "Python":
            yield warning("same", found, "ranks may not compute alike", f"the same {name} on all")
        else:
            yield error("same", found, breaks, f"the same {name} on all nodes")


def _graphics(fleet: Fleet) -> Iterator[Finding]:
    """Mixed drivers and models run, and one of them is the slowest."""
    kinds: dict[str, list[str]] = {}
    for one in fleet.nodes:
        kinds.setdefault(one.gpu_words, []).append(one.node)
    if len(kinds) > 1:
        shares = [f"{what or 'none'} on {', '.join(named(on))}" for what, on in kinds.items()]
        found = f"GPUs differ: {'; '.join(shares)}"
        yield warning("gpu", found, "all wait for the slowest", "the same GPUs and driver on all")


def _clocks(fleet: Fleet) -> Iterator[Finding]:
    off = {node: by for node, by in fleet.offsets_s.items() if abs(by) > OFFSET_S}
    if off:
        shown = ", ".join(f"{node} {by:+.1f} s" for node, by in list(off.items())[:NAMED])
        breaks = "people who compare logs are misled; recoverrun compares no clocks"
        yield warning("clock", f"clocks differ from the first node's: {shown}", breaks, "run NTP")
    wrong = {
        node: rate.most if rate.most < 1 else rate.least
        for node, rate in fleet.rates.items()
        if rate.most < 1 - RATE_MOST or rate.least > 1 + RATE_MOST
    }
    if wrong:
        shown = ", ".join(f"{node} {rate:.3f} s" for node, rate in list(wrong.items())[:NAMED])
        found = f"clocks go at another rate: while the first node's goes 1 s, {shown}"
        breaks = (
            "its time limits are wrong: it gives up live nodes, or waits too long for lost ones"
        )
        mend = "look at /sys/devices/system/clocksource/clocksource0/current_clocksource"
        yield error("clock", found, breaks, mend)
    if len(fleet.rates) > 1 and not off and not wrong:
        far = max(map(abs, fleet.offsets_s.values()), default=0.0)
        yield ok("clock", f"within {1000 * far:.0f} ms of each other, and at one rate")


def _run_directories(fleet: Fleet) -> Iterator[Finding]:
    """Findings if the nodes that could tell have different run directories."""
    without = [node for node, shares in fleet.shares.items() if not shares]
    if not without:
        if len(fleet.shares) > 1:
            yield ok("one run dir", "all nodes see the same run directory")
    elif len(without) >= len(fleet.shares) - 1:
        found = "each node has a run directory of its own: postmortem takes those of all nodes"
        yield ok("one run dir", found)
    else:
        found = f"{', '.join(named(without))} do not see the run directory of the first node"
        breaks = "`latest` holds the journals of some nodes only"
        mend = "--run-dir on a file system of all nodes, and postmortem DIR DIR where there is none"
        yield warning("one run dir", found, breaks, mend)
