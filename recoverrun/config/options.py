"""The options of `run` as one table, and the way from a command line to `Options`.

A launcher stays beside the training for weeks, so it must not carry the machinery that draws help
screens: its command line is read here. Where help is wanted `read` says None, and `cli.help` has
typer draw it from the same table.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_type_hints

from recoverrun.config import defaults
from recoverrun.config.run_config import Options
from recoverrun.errors import ExitCode, RecoverrunError

TOPOLOGY = "Topology"
RECOVERY = "Recovery"
SCRIPT = "Script"
LOGS = "Logs"
COMPATIBILITY = "Compatibility (torchrun)"

HELP = ("--help", "-h", "--version")

Value = str | int | float | bool | Path


@dataclass(frozen=True, slots=True)
class Option:
    """One option; `field` is that of `Options`, which also has the default and the type."""

    field: str
    help: str = ""
    panel: str = ""  # "": not shown
    metavar: str = ""
    more: tuple[str, ...] = ()  # other names
    shown: str = ""  # the name that help shows, where the one after the field is an older one
    shown_default: str = ""
    pet: str | None = None  # torchrun's variable for the default; None: named as it names them
    own: bool = True  # whether a variable of ours gives a default too
    choices: tuple[str, ...] = ()  # on the command line; torchrun takes anything from a variable

    @property
    def names(self) -> tuple[str, ...]:
        """All that are understood; the first one is named in messages."""
        own = f"--{self.field.replace('_', '-')}"
        return (self.shown, own, *self.more) if self.shown else (own, *self.more)

    @property
    def shown_names(self) -> tuple[str, ...]:
        """Those that help shows."""
        return (self.names[0], *self.more)

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that give the default, the stronger one first."""
        own = f"RECOVERRUN_{self.field.upper()}" if self.own else ""
        pet = f"PET_{self.field.upper()}" if self.pet is None else self.pet
        return tuple(filter(None, (own, pet)))


TABLE = (
    Option("nnodes", "Nodes of the job; of a range it takes all that come.", TOPOLOGY, "N|MIN:MAX"),
    Option("nproc_per_node", "Workers of this node.", TOPOLOGY, "N|auto|cpu|gpu|xpu"),
    Option(
        "node_rank",
        "Place of this node among them; without it they are numbered as they arrive.",
        TOPOLOGY,
        "N",
    ),
    Option(
        "rdzv_endpoint",
        "Where the nodes meet: an address of the first one, or several.",
        TOPOLOGY,
        "HOST:PORT,...",
    ),
    Option("rdzv_id", "Name of the job, the same on all nodes.", TOPOLOGY, "NAME"),
    Option("standalone", "Only this node.", TOPOLOGY),
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
        "Nodes may differ in script and versions.",
        TOPOLOGY,
        pet="",
        shown="--allow-version-mismatch",
    ),
    Option("min_replicas", "With fewer replicas left: start again, or exit 81.", RECOVERY, "N"),
    Option("max_restarts", "Restarts of all ranks where recovery cannot help.", RECOVERY, "N"),
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
        "Who votes when one of two nodes is lost: recoverrun witness, or a shared directory.",
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
        "Steps from one comparison of parameters to the next.",
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
    Option("virtual_local_rank", "LOCAL_RANK is 0, and one GPU visible, everywhere.", SCRIPT),
    Option("numa_binding", "Bind workers to the CPUs next to their GPUs.", SCRIPT, "MODE", pet=""),
    Option(
        "dry_run", "Print what every worker would get, and start none.", SCRIPT, pet="", own=False
    ),
    Option(
        "run_dir",
        "Where the journal of this run goes.",
        LOGS,
        "DIR",
        shown_default="runs/SCRIPT/TIME-PID",
        pet="",
    ),
    Option(
        "log_dir",
        "Base of the workers' log files.",
        LOGS,
        "DIR",
        shown_default="in the run directory",
    ),
    Option("redirects", "Streams to files: 0-3, or RANK:N,...", LOGS, "N", ("-r", "--redirect")),
    Option("tee", "Streams to files and to the console.", LOGS, "N", ("-t",)),
    Option("local_ranks_filter", "Local ranks shown on the console.", LOGS, "N,..."),
    Option("ranks_filter", "Global ranks shown on the console.", LOGS, "N,...", pet=""),
    Option("duplicate_stdout_filters", "Words whose lines are copied to a file.", LOGS, "WORDS"),
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
        "Used are join_timeout, timeout, last_call_timeout (seconds), is_host.",
        COMPATIBILITY,
        "KEY=VALUE,...",
    ),
    Option("monitor_interval", "No effect: ends are seen at once.", COMPATIBILITY, "S"),
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
_BY_NAME = {name: option for option in TABLE for name in option.names}
_YES, _NO = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")

DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(Options)}

_HANDED_DOWN = frozenset({"run_dir", "inject", "finals", "exact", "check_finite", "digest_every"})
"""Fields whose variable a launcher sets for its workers: a launcher inside one must not obey it."""


_ONLY_OURS = frozenset({
    "min_replicas", "coord", "witness", "on_silence", "no_protect", "check_finite", "exact",
    "digest_every", "dry_run", "run_dir", "ranks_filter",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """The options, and for each of them that is not a default where its value is from."""

    options: Options
    origins: Mapping[str, str]


def normalized(name: str) -> str:
    """torchrun's users write --nproc_per_node as well as --nproc-per-node."""
    return name.replace("_", "-")


def kind(option: Option) -> type:
    """str, int, float, bool or Path."""
    hint = _HINTS[option.field]
    return next(t for t in (bool, int, float, Path, str) if t is hint or t in get_args(hint))


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> Options | None:
    """The options before the script, and the script with all that follows; None: show help.

    Raises RecoverrunError with exit code 2 for what cannot be meant.
    """
    settings = gather(arguments, environ)
    return None if settings is None else settings.options


def gather(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings | None:
    """As `read`, with origins. The order of sources: command line, RECOVERRUN_*, PET_*, file,
    scheduler.
    """
    sifted = _sift(arguments)
    if sifted is None:
        return None
    given, command = sifted
    origins = dict.fromkeys(given, "command line")
    inside = "RECOVERRUN_ENDPOINT" in environ
    for option in TABLE:
        name = _variable(option, environ, inside)
        if name and option.field not in given:
            given[option.field] = _value(option, name, environ[name])
            origins[option.field] = name
    for layer in (defaults.from_file(Path.cwd()), defaults.from_scheduler(environ, given)):
        for option in TABLE:
            found = layer.get(option.field)
            if found is not None and option.field not in given:
                given[option.field] = _value(option, found.origin, found.text)
                origins[option.field] = found.origin
    values: dict[str, Any] = given
    return Settings(Options(command=command, **values), origins)


def _variable(option: Option, environ: Mapping[str, str], inside: bool) -> str:
    """The name of the variable that gives this option its default, or ""."""
    for name in option.variables:
        if inside and option.field in _HANDED_DOWN and name.startswith("RECOVERRUN_"):
            continue
        # Empty is unset, but for the role: an empty one is what TorchX asks for.
        if environ.get(name) or (option.field == "role" and name in environ):
            return name
    return ""


def takes_value(word: str) -> bool:
    """True if the launcher's option `word` is followed by its value. Raises RecoverrunError."""
    name, equals, _ = word.partition("=")
    option = _named(name)
    return option is not None and not equals and kind(option) is not bool


def _sift(arguments: Sequence[str]) -> tuple[dict[str, Value], tuple[str, ...]] | None:
    """What the command line gives, and the command behind it. None: help is wanted."""
    given: dict[str, Value] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        argument = rest.pop(0)
        if argument == "--":
            break
        if argument in HELP:
            return None
        name, equals, text = argument.partition("=")
        option = _named(name)
        if option is None and not name.startswith("--") and argument[:2] in ("-r", "-t"):
            option, name, equals, text = _BY_NAME[argument[:2]], argument[:2], "=", argument[2:]
        if option is None:
            raise _usage(f"there is no option {name}{_meant(name)}")
        if kind(option) is bool:
            if equals:
                raise _usage(f"{name} takes no value")
            given[option.field] = True
            continue
        if not equals:
            if not rest:
                raise _usage(f"{name} needs a value")
            text = rest.pop(0)
        if option.choices and text not in option.choices:
            raise _usage(f"{name} must be one of {', '.join(option.choices)}, not {text!r}")
        given[option.field] = _value(option, name, text)
    return given, tuple(rest)


def _named(name: str) -> Option | None:
    """The option of this name, or of the only one that begins with it.

    torchrun's own are meant first: what is short for one of them there is short for it here.
    """
    if not name.startswith("--"):
        return _BY_NAME.get(name)
    whole = _BY_NAME.get(normalized(name))
    if whole is not None or len(name) < 3:
        return whole
    meant = [option for option in TABLE if _begins(option, normalized(name))]
    theirs = [option for option in meant if option.field not in _ONLY_OURS]
    found = theirs or meant
    if len(found) > 1:
        names = ", ".join(option.names[0] for option in found)
        raise _usage(f"{name} could be any of {names}")
    return found[0] if found else None


def _begins(option: Option, start: str) -> bool:
    return option.panel != "" and any(name.startswith(start) for name in option.names)


def _usage(sentence: str) -> RecoverrunError:
    return RecoverrunError(sentence, ExitCode.USAGE)


def _meant(name: str) -> str:
    shown = [option.names[0] for option in TABLE if option.panel]
    close = get_close_matches(normalized(name), [*shown, *HELP], n=1)
    return f", did you mean {close[0]}?" if close else ""


def _value(option: Option, name: str, text: str) -> Value:
    wanted = kind(option)
    if wanted is bool:
        word = text.strip().lower()
        try:
            return word in _YES or (word not in _NO and int(word) != 0)
        except ValueError:
            raise _usage(f"{name} must be 1 or 0, not {text!r}") from None
    if wanted in (int, float):
        noun = "an integer" if wanted is int else "a number"
        shown = f"{text!r:.40}"
        # Not int() alone: that takes the digits of every script, and as many as there are.
        if wanted is int and not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
            raise _usage(f"{name} must be {noun}, not {shown}")
        try:
            return int(text) if wanted is int else float(text)
        except ValueError:
            raise _usage(f"{name} must be {noun}, not {shown}") from None
    return Path(text) if wanted is Path else text
