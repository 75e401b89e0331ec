"""The command line: entry point, help, one file for each command."""
