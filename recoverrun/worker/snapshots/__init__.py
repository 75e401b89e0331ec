"""Snapshots in memory, the worker's side: taken at the top of a step, put in place after a loss."""
