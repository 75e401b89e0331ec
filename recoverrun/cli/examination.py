"""The findings of `recoverrun doctor` with the options of a run: of this node, or of all."""

import os
from collections.abc import Sequence
from dataclasses import replace
from json import dumps

import typer

from recoverrun.config.given_options import Options
from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.doctor.doctor_table import SCHEMA, document, exit_code, lines
from recoverrun.doctor.findings import Finding, error
from recoverrun.doctor.fleet_gathering import FleetVerdict
from recoverrun.doctor.node_examination import examined
from recoverrun.doctor.node_facts import NodeFacts
from recoverrun.doctor.node_probe import node_facts, reach
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network.key_lookup import find_key
from recoverrun.reports.secret_masks import allowed

MEETING = ("address", "endpoint", "key")
"""Checks without which nodes do not meet."""

ANY_SCRIPT = "train.py"
"""What the options are read with where the user names no script."""


def examination(arguments: list[str], *, json: bool, alone: bool) -> tuple[str, int]:
    """The text to print, and the exit code. `alone`: of a job of several nodes look at this one
    only. Raises RecoverrunError as a run with these arguments would.
    """
    options, script = run_options(arguments)
    config = parse_options(options, os.environ)
    meets = bool(config.endpoints) and not alone
    told = {"--notify-url": options.notify_url, "--otlp": options.otlp}
    facts = node_facts(config, os.environ, script=script, meets=meets, addresses=told)
    findings = examined(facts)
    if meets and can_meet(findings):
        verdict = all_nodes(config, facts)
        if isinstance(verdict, FleetVerdict):
            return verdict.json if json else verdict.text, verdict.exit_code
        facts, findings = stayed_alone(config, facts, verdict)
    text = document([facts], findings) if json else "\n".join(lines([facts], findings))
    return text, exit_code(findings)


def for_bundle() -> str:
    """The `--json` of this machine, with the options that its environment and the project's file
    give; of the environment only what a report may hold.
    """
    try:
        options, script = run_options([])
        facts = node_facts(parse_options(options, os.environ), os.environ, script=script)
    except RecoverrunError as error:
        return dumps({"schema": SCHEMA, "error": str(error)})
    findings = examined(facts)
    return document([replace(facts, environ=allowed(facts.environ))], findings)


def can_meet(findings: Sequence[Finding]) -> bool:
    """True if nothing is wrong with the way to the other nodes; of all else they are told."""
    return not any(one.level == "error" and one.check in MEETING for one in findings)


def all_nodes(config: RunConfig, facts: NodeFacts) -> FleetVerdict | str:
    """The table of the fleet, which the first node gathers, or why there is none."""
    # Not at the top: a doctor of one node needs no sockets.
    from recoverrun.doctor.fleet_meeting import meet

    typer.echo(f"recoverrun: {config.nnodes} nodes meet at {config.endpoint}", err=True)
    try:
        return meet(config, find_key(config, os.environ), facts)
    except RecoverrunError as error:
        return str(error)


def stayed_alone(config: RunConfig, facts: NodeFacts, why: str) -> tuple[NodeFacts, list[Finding]]:
    """The facts and findings of a node that met nobody: now the endpoint may be looked at."""
    assert config.endpoint is not None, "it is where nodes meet"
    facts = replace(facts, reach=reach(config.endpoint))
    found = why or f"no doctor answers at {facts.endpoint}"
    breaks = "what this node has to do with the others could not be looked at"
    mend = "run it on every node, the first one included, or --alone"
    if facts.reach == "refused" and not why:  # A firewall may refuse as a host without it does.
        mend = f"{mend}; if it runs there, open port {config.endpoint.port} to this node"
    return facts, [*examined(facts), error("nodes", found, breaks, mend)]


def run_options(arguments: list[str]) -> tuple[Options, bool]:
    """The options of the run, and whether a script was named. Raises RecoverrunError as it."""
    options = read(arguments, os.environ)
    assert options is not None, "help is taken before"
    named = bool(options.command)
    return (options if named else replace(options, command=(ANY_SCRIPT,))), named
