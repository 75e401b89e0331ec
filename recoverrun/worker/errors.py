"""Exceptions that cross package borders inside a worker."""


class NotReplayable(Exception):
    """A microbatch, or data in it, cannot be computed as another rank; the text is for the user."""
