"""The exception of checkers."""


class Violation(Exception):
    """A rule is broken; `checker` is its name."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker


def demand(condition: bool, checker: str, text: str) -> None:
    if not condition:
        raise Violation(checker, text)
