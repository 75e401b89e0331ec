"""Calls of libraries that lead to a backward which no source of the project shows."""

PIPELINES = b"pipelining"
"""What a file has in it whose project uses `torch.distributed.pipelining`."""

OF_PIPELINES = frozenset({"step"})
"""Of a schedule."""
