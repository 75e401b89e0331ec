"""The judgement of one end by itself: a fault or not, a cascade or not, and in words."""

import signal as signals

from recoverrun.reports.happenings import Death
from recoverrun.text import ranks, sanitize
from rendezvous.coordinator.error_kinds import tells_of_another
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.incarnations import birth_of


def signal_name(number: int) -> str:
    """ "SIGKILL" for 9; "signal 77" for what this system does not know."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def is_cascade(death: Death) -> bool:
    """True if this end only tells of another one."""
    return is_away(death) or (death.kind == "exception" and tells_of_another(death.error))


def is_away(death: Death) -> bool:
    """True if a process that was started again has left, as it could not take its place."""
    return death.code == ExitCode.AWAY and birth_of(death.incarnation) > 0


def is_fault(death: Death) -> bool:
    """True if this end is a cause whatever came of it (rule 1)."""
    return not death.ours and (_unended(death) or death.signal != 0 or death.code != 0)


def is_early_end(death: Death) -> bool:
    """True if this end is a cause where others still trained (rule 1)."""
    return not (death.ours or _unended(death) or death.signal or death.code)


def _unended(death: Death) -> bool:
    """True if nobody knows of an end of the process: it hangs, or is out of sight."""
    return death.kind in ("node-lost", "hang")


def cause_class(death: Death) -> str:
    if death.starved:
        return "out of memory"
    return signal_name(death.signal).lower() if death.kind == "signal" else death.kind


def describe(death: Death, *, injects: bool) -> str:
    """One sentence without a full stop: who ended how; `injects`: the run sends SIGKILL itself."""
    who = f"rank {death.rank}"
    match death.kind:
        case "node-lost":
            name = "a node" if death.node == "?" else f"node {sanitize(death.node, 60)}"
            return f"{name} was lost with {ranks(death.ranks)}"
        case "hang":
            return f"{who} hangs{', ' * bool(death.error)}{sanitize(death.error)}"
        case "signal" if death.starved:
            name = signal_name(death.signal)
            return f"{who} was killed by {name}: the kernel had no memory left for it"
        case "signal":
            ours = injects and death.signal == signals.SIGKILL
            whose = "" if ours else ", which recoverrun did not send"
            return f"{who} was killed by {signal_name(death.signal)}{whose}"
        case "exception":
            return f"{who} raised {sanitize(death.error)}"
        case "exit" if is_away(death):
            return f"{who} could not take its place again, and left"
        case "exit":
            early = "" if death.code else " while others still trained"
            return f"{who} exited with code {death.code}{early}"
