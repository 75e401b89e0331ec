"""The journal of a run: its events, written and read."""
