"""A lost replica comes back: a fresh process takes a lost rank's place at the top of a step."""
