"""One file for each command, named after it."""
