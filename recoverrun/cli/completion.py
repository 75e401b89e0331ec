"""Completion scripts for a shell that is named, as torchrun prints them since torch 2.14."""

from typer.completion import get_completion_script  # type: ignore[attr-defined]

from recoverrun.errors import ExitCode, RecoverrunError

SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str, variable: str) -> str:
    """The lines that teach `shell` to complete `recoverrun`, which it asks by setting `variable`.

    Raises RecoverrunError.
    """
    if shell not in SHELLS:
        sentence = f"--print-completion is for {', '.join(SHELLS)}, not for {shell!r}"
        raise RecoverrunError(sentence, ExitCode.USAGE)
    return str(get_completion_script(prog_name="recoverrun", complete_var=variable, shell=shell))
