"""Numbers of a run for monitoring systems: a pure function of its journal."""
