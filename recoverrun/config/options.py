"""The way from a command line to `Options`.

A launcher stays beside the training for weeks, so it must not carry the machinery that draws help
screens: its command line is read here. Where help is wanted `read` says None, and `cli.help` has
typer draw it from the same table.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recoverrun.config import defaults, option_suggestions
from recoverrun.config.given_options import Options
from recoverrun.config.option_table import TABLE, Option, kind
from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode

HELP = ("--help", "-h", "--version")

Value = str | int | float | bool | Path

_BY_NAME = {name: option for option in TABLE for name in option.names}
_YES, _NO = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")

_HANDED_DOWN = frozenset({
    "run_dir", "inject", "finals", "exact", "check_finite", "digest_every", "snapshot_every",
    "snapshot_parity", "returns",
})  # fmt: skip
"""Fields whose variable a launcher sets for its workers: a launcher inside one must not obey it."""


_ONLY_OURS = frozenset({
    "min_replicas", "coord", "witness", "on_silence", "no_protect", "check_finite", "exact",
    "digest_every", "dry_run", "run_dir", "ranks_filter", "on_hang", "hang_limit", "returns",
    "spares", "snapshot_every", "snapshot_parity", "snapshot_dir", "snapshot_resume",
    "snapshot_memory", "metrics_port", "on_event", "notify_url",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """The options, and for each of them that is not a default where its value is from."""

    options: Options
    origins: Mapping[str, str]


def normalized(name: str) -> str:
    """torchrun's users write --nproc_per_node as well as --nproc-per-node."""
    return name.replace("_", "-")


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> Options | None:
    """The options before the script, and the script with all that follows; None: show help.

    Raises RecoverrunError with exit code 2 for what cannot be meant.
    """
    settings = gather(arguments, environ)
    return None if settings is None else settings.options


def gather(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings | None:
    """The values of `read`, with origins. The order of sources: command line, RECOVERRUN_*, PET_*,
    file, scheduler.
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
    for layer in (defaults.from_file(_here()), defaults.from_scheduler(environ, given)):
        for option in TABLE:
            found = layer.get(option.field)
            if found is not None and option.field not in given:
                given[option.field] = _value(option, found.origin, found.text)
                origins[option.field] = found.origin
    values: dict[str, Any] = given
    return Settings(Options(command=command, **values), origins)


def _here() -> Path:
    """The working directory. Raises RecoverrunError if it was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        words = "the working directory was removed, or cannot be read: change to another one"
        raise RecoverrunError(words, ExitCode.USAGE) from error


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
    """The values of the command line, and the command behind it. None: help is wanted."""
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
            given[option.field] = not option.denies(normalized(name))
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
    # A slip of the finger must never be answered with the advice to give protection up.
    shown = [o.names[0] for o in TABLE if o.panel and o.field not in ("no_protect", "no_python")]
    close = option_suggestions.meant(normalized(name), shown, HELP)
    return f", did you mean {close}?" if close else ""


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
