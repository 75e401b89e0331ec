"""The outputs of a launcher: log files, the console, the journal, the run directory."""
