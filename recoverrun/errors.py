"""Operating errors: one sentence for the user, and the exit code to leave with."""


class RecoverrunError(Exception):
    """An operating error: one clear sentence for the user and the code to leave with."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
