"""The layer table: the packages of ours that each package may import. `test_structure` enforces it,
and `docs/architecture.md` shows it.

A package may import itself and what its row names; annotations and imports within functions count.
Rows stand in order: no row names a package of a later one.
"""

from collections.abc import Callable, Iterator

WORKER = "recoverrun.worker"

PROTOCOL = ("rendezvous.protocol",)
RENDEZVOUS = (
    "rendezvous.protocol",
    "rendezvous.journal",
    "rendezvous.transport",
    "rendezvous.store",
    "rendezvous.consensus",
    "rendezvous.membership",
    "rendezvous.snapshots",
    "rendezvous.bays",
    "rendezvous.coordinator",
)
COLLECTIVES = (
    "ft_collectives.communicators",
    "ft_collectives.process_group",
    "ft_collectives.step",
)

# Of the worker, lowest first: what each may import of the worker. All may import `GROUND`, and
# from `step` on also collectives.
GROUND = ("errors", "error_file", "own_files", "instrumentation")
OF_WORKER: dict[str, tuple[str, ...]] = {
    "analysis": (),
    "rewriting": ("analysis",),
    "rng": (),
    "data": ("rng",),
    "context": ("rng", "data"),
    "tracking": ("rng", "data", "context"),
    "groups": (),
    "step": ("context", "tracking", "groups"),
    "replay": ("analysis", "rng", "data", "context", "tracking", "step"),
    "make_up": ("rng", "data", "context", "tracking", "step", "replay"),
    "verification": ("rng", "data", "context", "tracking", "groups", "step", "replay"),
    "strategies": ("context", "groups", "step"),
    "rank0": ("rng", "data", "tracking", "step", "replay", "make_up"),
    "arrival": (
        "rng",
        "data",
        "context",
        "tracking",
        "groups",
        "step",
        "replay",
        "make_up",
        "verification",
        "strategies",
        "rank0",
    ),
    "snapshots": (
        "rng",
        "data",
        "context",
        "tracking",
        "groups",
        "step",
        "replay",
        "verification",
        "arrival",
    ),
    "tools": ("step",),
}
ALL_OF_WORKER = (*GROUND, *OF_WORKER)

# Of the launcher and the command line: each may import those before it.
OF_LAUNCHER = (
    "version",
    "errors",
    "text",
    "config",
    "reports",
    "launcher.output",
    "launcher.node",
    "launcher.network",
    "launcher.leadership",
    "launcher.job_client",
    "launcher.agent",
    "fault_injection",
    "deployments",
    "doctor",
    "metrics",
    "companion",
    "cli",
    "__main__",
)


def _rows() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "rendezvous.protocol", ()
    for package in RENDEZVOUS[1:-1]:
        kept = ("rendezvous.snapshots",) if package == "rendezvous.bays" else ()
        yield package, (*PROTOCOL, *kept)
    yield RENDEZVOUS[-1], RENDEZVOUS[:-1]
    yield COLLECTIVES[0], RENDEZVOUS
    for package in COLLECTIVES[1:]:
        yield package, (*RENDEZVOUS, COLLECTIVES[0])
    for name in GROUND:
        yield f"{WORKER}.{name}", ()
    below = (*RENDEZVOUS, *COLLECTIVES)
    for name, imported in OF_WORKER.items():
        own = tuple(f"{WORKER}.{one}" for one in (*GROUND, *imported))
        yield f"{WORKER}.{name}", (*below, *own)
    whole = tuple(f"{WORKER}.{one}" for one in ALL_OF_WORKER)
    yield f"{WORKER}.patches", (*below, *whole)
    yield f"{WORKER}.boot", (*below, *whole, f"{WORKER}.patches")
    yield f"{WORKER}.__main__", (f"{WORKER}.boot",)
    known = RENDEZVOUS
    for name in OF_LAUNCHER:
        yield f"recoverrun.{name}", known
        known = (*known, f"recoverrun.{name}")
    kept = (*PROTOCOL, "rendezvous.snapshots", "rendezvous.bays")
    yield "recoverrun.keeper", kept
    yield "recoverrun.exchange", (*kept, "rendezvous.transport")
    yield "recoverrun", ("recoverrun.version", "recoverrun.cli")


LAYERS: dict[str, tuple[str, ...]] = dict(_rows())


def layer_of(module: str) -> str:
    """The row that `module` belongs to; "" if it is none of ours."""
    found = (name for name in LAYERS if module == name or module.startswith(f"{name}."))
    best = max(found, key=len, default="")
    return best if best != "recoverrun" or module == "recoverrun" else ""


def may_import(module: str, other: str) -> bool:
    """True if `module` may import `other`, both by their dotted names."""
    above, below = layer_of(module), layer_of(other)
    return below == above or below in LAYERS.get(above, ())


def drawn(said: Callable[[str], str]) -> str:
    """The table of `docs/architecture.md`; `said` gives what the docstring of a module says."""
    lines = ["| package | holds | may import |", "|---|---|---|"]
    for name, below in LAYERS.items():
        if "." not in name or name.endswith("__main__"):
            continue
        lines.append(f"| `{name}` | {said(name)} | {_shortly(name, below)} |")
    return "\n".join(lines)


def _shortly(name: str, below: tuple[str, ...]) -> str:
    """Whole packages by their names, those of the worker by their last ones."""
    if name in (f"{WORKER}.patches", f"{WORKER}.boot"):
        return "above"
    if name.startswith(f"{WORKER}."):
        own = [one for one in below if one.startswith(WORKER)]
        return ", ".join(one.rpartition(".")[2] for one in own[len(GROUND) :]) or "-"
    if name.startswith("recoverrun.") and below[: len(RENDEZVOUS)] == RENDEZVOUS:
        return "above"
    if name.startswith("ft_collectives."):
        return "`rendezvous`" + ", communicators" * (name != COLLECTIVES[0])
    return ", ".join(one.rpartition(".")[2] for one in below) or "-"
