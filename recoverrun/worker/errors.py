"""Exceptions that cross package borders inside a worker."""


class NotReplayable(Exception):
    """A microbatch, or data in it, cannot be computed as another rank; the text is for the user."""


class NotReachable(BaseException):
    """This process cannot come to where the others are; the text is for the user.

    No script catches it: code of the script may be under way that goes on after errors.
    """


class NotKnownYet(NotReachable):
    """No process is known to come to where this one is, as that is still being tried."""


class Unwind(BaseException):
    """Leaves a region that is being executed again; no script catches it."""
