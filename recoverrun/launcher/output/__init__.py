"""What a launcher writes: log files, the console, the journal, the run directory."""
