"""Trials of `demo` and `inject`, and their verdicts."""
