"""The identity of launchers of a job among each other."""

Peer = tuple[str, str, int, int]
"""A launcher of the job: incarnation, host, port, workers. No host: where the others have called it
to join, at the endpoint of their command line."""
