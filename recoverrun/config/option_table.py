"""The options of `run` as one table.

Command lines and variables are read by it (`options`), and help screens are drawn from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from recoverrun.config.given_options import Options

TOPOLOGY = "Topology"
RECOVERY = "Recovery"
SCRIPT = "Script"
LOGS = "Logs"
COMPATIBILITY = "Compatibility (torchrun)"


@dataclass(frozen=True, slots=True)
class Option:
    """One option; `field` is that of `Options`, which also has the default and the type."""

    field: str
    help: str = ""
    panel: str = ""  # "": not shown
    metavar: str = ""
    more: tuple[str, ...] = ()  # other names
    negative: str = ""  # the name of its opposite, if a flag has one
    shown: str = ""  # the name that help shows, where the one after the field is an older one
    shown_default: str = ""
    pet: str | None = None  # torchrun's variable for the default; None: named as it names them
    own: bool = True  # whether a variable of ours gives a default too
    elastic: str = ""  # a variable of torchelastic's that gives a default, too: the weakest
    choices: tuple[str, ...] = ()  # on the command line; torchrun takes anything from a variable

    @property
    def names(self) -> tuple[str, ...]:
        """All that are understood; the first one is named in messages."""
        own = f"--{self.field.replace('_', '-')}"
        shown, negative = ((name,) if name else () for name in (self.shown, self.negative))
        return (*shown, own, *self.more, *negative)

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names that help shows."""
        first = self.names[0]
        return (f"{first}/{self.negative}" if self.negative else first, *self.more)

    def denies(self, name: str) -> bool:
        """True if `name`, whole or short, is that of the opposite."""
        return bool(self.negative) and self.negative.startswith(name)

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that give the default, the stronger one first."""
        own = f"RECOVERRUN_{self.field.upper()}" if self.own else ""
        pet = f"PET_{self.field.upper()}" if self.pet is None else self.pet
        return tuple(filter(None, (own, pet, self.elastic)))


TABLE = (
    Option("nnodes", "Number of nodes, or a range.", TOPOLOGY, "N|MIN:MAX"),
    Option("nproc_per_node", "Workers of this node.", TOPOLOGY, "N|auto|cpu|gpu|xpu"),
    Option(
        "node_rank",
        "Number of this node; without it nodes are numbered as they arrive.",
        TOPOLOGY,
        "N",
    ),
    Option(
        "rdzv_endpoint",
        "Where the nodes meet: one or several addresses of the first node.",
        TOPOLOGY,
        "HOST:PORT,...",
    ),
    Option("rdzv_id", "Name of the job, the same on all nodes.", TOPOLOGY, "NAME"),
    Option("standalone", "Run on this node only.", TOPOLOGY),
    Option("local_addr", "Address of this node for the others.", TOPOLOGY, "HOST"),
    Option(
        "key_file",
        "Shared key that encrypts and authenticates the launchers; the same file on all nodes.",
        TOPOLOGY,
        "FILE|none",
        pet="",
        shown_default="as found, see docs/security.md",
    ),
    Option("key_required", "Start no job on several nodes without a key.", TOPOLOGY, pet=""),
    Option(
        "allow_mixed",
        "Let nodes differ in script and versions.",
        TOPOLOGY,
        pet="",
        shown="--allow-version-mismatch",
    ),
    Option("min_replicas", "With fewer replicas left: restart all, or exit 81.", RECOVERY, "N"),
    Option("max_restarts", "Restarts of all ranks where recovery cannot help.", RECOVERY, "N"),
    Option(
        "returns",
        "Start lost ranks again while the others train, and let them take part again.",
        RECOVERY,
        pet="",
        shown="--return",
        negative="--no-return",
        shown_default="--return",
    ),
    Option(
        "spares",
        "Processes of this node that have imported torch and wait for a loss.",
        RECOVERY,
        "N",
        pet="",
    ),
    Option(
        "snapshot_every",
        "Steps between snapshots in memory; after a loss all ranks go back to one.",
        RECOVERY,
        "STEPS|auto|0",
        pet="",
        shown_default="auto where no step outlives a loss, else 0",
    ),
    Option(
        "snapshot_parity",
        "Nodes of each group of up to 8 that may be lost with their memory.",
        RECOVERY,
        "0|1|2",
        pet="",
    ),
    Option(
        "snapshot_memory",
        "Memory of this node for snapshots: a size, or a share of what is free.",
        RECOVERY,
        "SIZE|PERCENT",
        pet="",
    ),
    Option(
        "snapshot_dir",
        "Also write snapshots to this directory, for the next start of the job.",
        RECOVERY,
        "DIR",
        pet="",
    ),
    Option(
        "snapshot_resume",
        "With --snapshot-dir: go on from the snapshot that is there.",
        RECOVERY,
        "auto|never|must",
        pet="",
    ),
    Option(
        "coord",
        "An etcd (v3) that decides who takes part, in place of the launchers' votes.",
        RECOVERY,
        "etcd://HOST:PORT,...",
        pet="",
        shown="--etcd",
    ),
    Option(
        "witness",
        "A third vote for two nodes: that of recoverrun witness, or of a shared directory.",
        RECOVERY,
        "HOST:PORT|file:///DIR",
        pet="",
    ),
    Option(
        "on_silence",
        "stop, or continue without proof that the others are dead: unsafe, both sides may train.",
        RECOVERY,
        "WAY",
        pet="",
        choices=("stop", "continue"),
        shown="--on-partition",
    ),
    Option(
        "on_hang",
        "recover: go on without a rank that hangs; tell: only name it; off: do not look for hangs.",
        RECOVERY,
        "WAY",
        pet="",
        choices=("recover", "tell", "off"),
    ),
    Option(
        "hang_limit",
        "Stop with exit code 82 if no rank moves for so many seconds; 0: never.",
        RECOVERY,
        "SECONDS",
        pet="",
    ),
    Option("no_protect", "Switch recovery off.", RECOVERY),
    Option(
        "check_finite",
        "Drop a replica whose gradients are NaN/Inf if another machine computes them finite.",
        RECOVERY,
        pet="",
    ),
    Option(
        "exact",
        "Bit-identical results after any loss; exit 2 if the script does not allow it.",
        RECOVERY,
        pet="",
    ),
    Option(
        "digest_every",
        "Steps between comparisons of parameters.",
        RECOVERY,
        "STEPS",
        pet="",
        shown="--check-params-every",
        shown_default="0: never",
    ),
    Option(
        "shutdown_timeout",
        "Seconds between the first signal to a worker and SIGKILL.",
        RECOVERY,
        "S",
        shown_default="30",
    ),
    Option("signals_to_handle", "Signals that are passed on to the workers.", RECOVERY, "NAMES"),
    Option("module", "SCRIPT is the name of a module.", SCRIPT, more=("-m",)),
    Option("no_python", "SCRIPT is a program of any kind; it runs without recovery.", SCRIPT),
    Option("run_path", "SCRIPT is a path, whatever --no-python says.", SCRIPT),
    Option("role", "ROLE_NAME of the workers.", SCRIPT, "NAME"),
    Option("virtual_local_rank", "Each worker has LOCAL_RANK 0 and sees one GPU.", SCRIPT),
    Option("numa_binding", "Bind workers to the CPUs next to their GPUs.", SCRIPT, "MODE", pet=""),
    Option(
        "dry_run",
        "Print command and environment of every worker, and start none.",
        SCRIPT,
        pet="",
        own=False,
    ),
    Option(
        "run_dir",
        "Directory of this run's journal.",
        LOGS,
        "DIR",
        shown_default="runs/SCRIPT/TIME-PID",
        pet="",
    ),
    Option(
        "log_dir",
        "Directory of the workers' log files.",
        LOGS,
        "DIR",
        shown_default="in the run directory",
    ),
    Option("redirects", "Streams to files: 0-3, or RANK:N,...", LOGS, "N", ("-r", "--redirect")),
    Option("tee", "Streams to files and to the console.", LOGS, "N", ("-t",)),
    Option(
        "log_line_prefix_template",
        "Prefix of lines of --tee, from ${role_name}, ${local_rank}, ${rank}, ${hostname}.",
        LOGS,
        "TEXT",
        shown_default="NODE:RANK│",
        elastic="TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
    ),
    Option("local_ranks_filter", "Local ranks shown on the console.", LOGS, "N,..."),
    Option("ranks_filter", "Global ranks shown on the console.", LOGS, "N,...", pet=""),
    Option(
        "metrics_port",
        "Serve Prometheus metrics of the run, on the loopback address if no HOST is given.",
        LOGS,
        "[HOST:]PORT",
        pet="",
    ),
    Option(
        "on_event",
        "Run a command at a loss, hang, straggler, return, restart or end; JSON on its stdin.",
        LOGS,
        "CLASS,...=COMMAND",
        pet="",
    ),
    Option(
        "notify_url", "Post losses, hangs, restarts and the end to this URL.", LOGS, "URL", pet=""
    ),
    Option(
        "otlp",
        "Send a trace of the run to this collector; env: as OTEL_* say.",
        LOGS,
        "URL|env",
        pet="",
    ),
    Option(
        "duplicate_stdout_filters",
        "Copy lines of stdout with these words to a file.",
        LOGS,
        "WORDS",
    ),
    Option("duplicate_stderr_filters", "The same for stderr.", LOGS, "WORDS"),
    Option("master_addr", "Host of the endpoint.", COMPATIBILITY, "HOST"),
    Option("master_port", "Port of the endpoint.", COMPATIBILITY, "PORT"),
    Option(
        "rdzv_backend",
        "static or c10d: recoverrun has a rendezvous of its own for both.",
        COMPATIBILITY,
        "NAME",
    ),
    Option(
        "rdzv_conf",
        "Of these join_timeout, timeout, last_call_timeout (seconds), is_host have an effect.",
        COMPATIBILITY,
        "KEY=VALUE,...",
    ),
    Option(
        "monitor_interval", "No effect: the end of a worker is seen at once.", COMPATIBILITY, "S"
    ),
    Option(
        "start_method",
        "No effect: workers are always new processes.",
        COMPATIBILITY,
        "NAME",
        choices=("spawn", "fork", "forkserver"),
    ),
    Option("event_log_handler", "No effect: see the journal.", COMPATIBILITY, "NAME"),
    Option(
        "logs_specs", "No effect: plugins of torch are not loaded.", COMPATIBILITY, "NAME", pet=""
    ),
    Option("inject", pet=""),
    Option("finals", pet=""),
)

_HINTS = get_type_hints(Options)

DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(Options)}


def kind(option: Option) -> type:
    """str, int, float, bool or Path."""
    hint = _HINTS[option.field]
    return next(t for t in (bool, int, float, Path, str) if t is hint or t in get_args(hint))
