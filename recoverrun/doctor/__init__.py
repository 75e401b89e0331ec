"""Hindrances of a run, before it starts: facts of each node, checks, and one table."""
