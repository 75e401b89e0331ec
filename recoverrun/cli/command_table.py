"""The commands besides `run`, with the sentence that the help screen says of each.

A command is loaded only when it is called: its module imports what it works with, a list of
commands needs none of that. So these sentences are here, and each command's docstring begins with
its own.
"""

COMMANDS = {
    "status": "Show live who is alive in a run, its step and its losses.",
    "postmortem": "Tell what happened in a run: root cause, losses, recovery times, invariants.",
    "metrics": "Give the numbers of a run to Prometheus, in a file or at a port.",
    "runs": "List the runs below ./runs with their verdicts, and remove old ones.",
    "demo": "Train a small GPT without and with a killed replica that comes back; "
    "compare the two runs.",
    "inject": "Run a job, kill ranks by a schedule, and say what it cost.",
    "doctor": "Say what would hinder a run with these options, and how to mend it; "
    "exit 83 with an error.",
    "template": "Print a job file for Slurm, Kubernetes and others that lets survivors live.",
    "config": "Show the options that a run in this directory would have.",
    "keygen": "Make a key for the launchers of a job; the file has to be on all nodes.",
    "witness": "Be the third vote of jobs of two nodes, which name it with --witness=HOST:PORT.",
}
"""Each in the module of its name in `recoverrun.cli.commands`, in the order of the help screen."""
