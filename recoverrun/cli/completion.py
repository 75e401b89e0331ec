"""Shell completion: scripts for a shell that is named, as torchrun prints them since torch 2.14,
and the values of arguments. Where no value fits, shells complete the names of files.
"""

from pathlib import Path

from typer.completion import get_completion_script  # type: ignore[attr-defined]

from recoverrun.errors import RecoverrunError
from recoverrun.reports.find_run import RUNS, has_journal
from rendezvous.protocol.exit_codes import ExitCode

SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str, variable: str) -> str:
    """The lines that teach `shell` to complete `recoverrun`, which it asks by setting `variable`.

    Raises RecoverrunError.
    """
    if shell not in SHELLS:
        sentence = f"--print-completion is for {', '.join(SHELLS)}, not for {shell!r}"
        raise RecoverrunError(sentence, ExitCode.USAGE)
    return str(get_completion_script(prog_name="recoverrun", complete_var=variable, shell=shell))


def run_names(incomplete: str) -> list[str]:
    """The runs below ./runs whose names begin so, as commands take them, and `latest`."""
    top = Path(RUNS)
    try:
        places = [*top.glob("*"), *top.glob("*/*")]
    except OSError:
        places = []
    found = sorted(str(one.relative_to(top)) for one in places if has_journal(one))
    return [name for name in ("latest", *found) if name.startswith(incomplete)]
