"""Snapshots of a job in memory, without any memory: what is kept where, what is whole and safe."""
