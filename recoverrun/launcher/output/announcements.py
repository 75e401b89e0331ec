"""What a survived loss puts on the console: one line for the loss, one for the recovery.

A function of the journal's records, so that the console never knows what the journal does not.
"""

from typing import cast

from recoverrun.text import named_signals, plural, sanitize
from rendezvous.protocol.effects import Json, Record

PHASES = ("agree", "rebuild", "redo", "reduce", "vote")
PLAIN = str.maketrans({"✖": "x", "⇄": "~", "·": "-", "✓": "ok"})


def bulletin(record: Record, ascii_only: bool = False) -> str:
    """The line for the console, or "" for what only the journal needs to know."""
    line = _line(record)
    return sanitize(line.translate(PLAIN) if ascii_only else line)


def _line(record: Record) -> str:
    fields = record.fields
    match record.event:
        case "promise.state":
            return _promise(str(fields["promise"]), record.reason)
        case "replica.lost":
            ranks = ", ".join(str(rank) for rank in _list(fields["ranks"]))
            why = named_signals(record.reason)
            return f"✖ replica {fields['slot']} (ranks {ranks}) is lost: {why}"
        case "recovery.done":
            redone = plural(len(_list(fields["redone"])), "microbatch")
            phases = " · ".join(f"{name} {_ms(fields[f'{name}_ms'])}" for name in PHASES)
            total = _ms(fields["total_ms"])
            return f"⇄ {record.reason} ✓ {redone} redone, {total} ms in all ({phases})"
        case "leader.succeed":
            return f"⇄ {record.reason}"
        case "notice.give":
            rank = fields["rank"]
            return f"! {record.reason}" if rank == -1 else f"! rank {rank}: {record.reason}"
        case _:
            return ""


def _promise(promise: str, reason: str) -> str:
    if promise == "exact-samples":
        return "protected: lost microbatches will be made up with their own samples (exact-samples)"
    if promise == "equal-count":
        return f"protected, but with other samples for lost microbatches (equal-count): {reason}"
    return f"! not protected, a loss ends this run: {reason}"


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _ms(value: Json) -> str:
    return f"{cast(float, value):.0f}"
