"""The options of `run` as one table, and the way from a command line to `Options`.

A launcher stays beside the training for weeks, so it must not carry the machinery that draws help
screens: its command line is read here. Where help is wanted `read` says None, and `program` has
typer draw it from the same table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_type_hints

from recoverrun.config import Options
from recoverrun.errors import ExitCode, RecoverrunError

TOPOLOGY = "Topology"
RECOVERY = "Recovery"
SCRIPT = "Script"
COMPATIBILITY = "Compatibility (torchrun)"

HELP = ("--help", "-h", "--version")

Value = str | int | bool | Path


@dataclass(frozen=True, slots=True)
class Option:
    """One option; `field` is that of `Options`, which also has the default and the type."""

    field: str
    help: str = ""
    panel: str = ""  # "": not shown
    env: str = ""  # the variable that gives the default
    metavar: str = ""
    more: tuple[str, ...] = ()  # other names
    shown_default: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (f"--{self.field.replace('_', '-')}", *self.more)


TABLE = (
    Option("nnodes", "Nodes of the job.", TOPOLOGY, "PET_NNODES", "N"),
    Option(
        "nproc_per_node", "Workers of this node.", TOPOLOGY, "PET_NPROC_PER_NODE", "N|auto|cpu|gpu"
    ),
    Option(
        "node_rank",
        "Place of this node among them; without it they are numbered as they arrive.",
        TOPOLOGY,
        "PET_NODE_RANK",
        "N",
    ),
    Option(
        "rdzv_endpoint",
        "Where the nodes meet: an address of the first one.",
        TOPOLOGY,
        "PET_RDZV_ENDPOINT",
        "HOST:PORT",
    ),
    Option("rdzv_id", "Name of the job, the same on all nodes.", TOPOLOGY, "PET_RDZV_ID", "NAME"),
    Option("standalone", "Only this node.", TOPOLOGY, "PET_STANDALONE"),
    Option(
        "min_replicas",
        "Stop with exit code 81 when fewer replicas are left.",
        RECOVERY,
        metavar="N",
    ),
    Option("no_protect", "Switch recovery off.", RECOVERY),
    Option(
        "run_dir",
        "Where the journal of this run goes.",
        RECOVERY,
        "PET_LOG_DIR",
        "DIR",
        ("--log-dir",),
        "runs/SCRIPT/TIME-PID",
    ),
    Option("module", "SCRIPT is the name of a module.", SCRIPT, "PET_MODULE", more=("-m",)),
    Option(
        "no_python",
        "SCRIPT is a program of any kind; it runs without recovery.",
        SCRIPT,
        "PET_NO_PYTHON",
    ),
    Option("master_addr", "Host of the endpoint.", COMPATIBILITY, "PET_MASTER_ADDR", "HOST"),
    Option("master_port", "Port of the endpoint.", COMPATIBILITY, "PET_MASTER_PORT", "PORT"),
    Option(
        "rdzv_backend",
        "static or c10d: recoverrun has a rendezvous of its own for both.",
        COMPATIBILITY,
        "PET_RDZV_BACKEND",
        "NAME",
    ),
    Option(
        "rdzv_conf",
        "Only join_timeout is used (seconds).",
        COMPATIBILITY,
        "PET_RDZV_CONF",
        "KEY=VALUE,...",
    ),
    Option(
        "max_restarts", "Accepted; nothing is restarted.", COMPATIBILITY, "PET_MAX_RESTARTS", "N"
    ),
    Option("inject", env="RECOVERRUN_INJECT"),
    Option("witness", env="RECOVERRUN_WITNESS"),
    Option("digest_every", env="RECOVERRUN_DIGEST_EVERY"),
)

_HINTS = get_type_hints(Options)
_BY_NAME = {name: option for option in TABLE for name in option.names}
_YES, _NO = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")

DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(Options)}


def normalized(name: str) -> str:
    """torchrun's users write --nproc_per_node as well as --nproc-per-node."""
    return name.replace("_", "-")


def kind(option: Option) -> type:
    """str, int, bool or Path."""
    hint = _HINTS[option.field]
    return next(t for t in (bool, int, Path, str) if t is hint or t in get_args(hint))


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> Options | None:
    """The options before the script, and the script with all that follows; None: show help.

    Raises RecoverrunError with exit code 2 for what cannot be meant.
    """
    given: dict[str, Value] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        argument = rest.pop(0)
        if argument == "--":
            break
        if argument in HELP:
            return None
        name, equals, text = argument.partition("=")
        option = _BY_NAME.get(normalized(name) if name.startswith("--") else name)
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
        given[option.field] = _value(option, name, text)
    defaults = {
        option.field: _value(option, option.env, environ[option.env])
        for option in TABLE
        if environ.get(option.env) and option.field not in given
    }
    fields: dict[str, Any] = {**defaults, **given}
    return Options(command=tuple(rest), **fields)


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
        if word not in (*_YES, *_NO):
            raise _usage(f"{name} must be 1 or 0, not {text!r}")
        return word in _YES
    if wanted is int:
        try:
            return int(text)
        except ValueError:
            raise _usage(f"{name} must be an integer, not {text!r}") from None
    return Path(text) if wanted is Path else text
