"""Launchers that are killed, stopped and cut off, many times over: what the tests do once."""
