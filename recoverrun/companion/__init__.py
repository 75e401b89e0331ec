"""A process beside the launcher that tells others of the run, so that telling delays nobody."""
