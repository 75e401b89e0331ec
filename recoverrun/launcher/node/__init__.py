"""The workers of this node: processes, signals, their environment."""
