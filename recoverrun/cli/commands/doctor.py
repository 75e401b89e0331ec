"""`recoverrun doctor [options of the run]`: what would hinder it, on this node or on all."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.doctor.doctor_table import document, exit_code, lines
from recoverrun.doctor.findings import Finding, error
from recoverrun.doctor.fleet_gathering import Verdict
from recoverrun.doctor.node_examination import examined
from recoverrun.doctor.node_facts import NodeFacts
from recoverrun.doctor.node_probe import node_facts
from recoverrun.launcher.network.key_lookup import find_key

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

MEETING = ("address", "endpoint", "key")
"""Checks without which nodes do not meet."""

ANY_SCRIPT = "train.py"
"""What the options are read with where the user names no script."""


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    usage = "[--json] [--alone] [OPTIONS OF THE RUN] [SCRIPT]"
    app.command("doctor", context_settings=PASS_ON, options_metavar=usage)(doctor)


def doctor(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="Of a job of several nodes look at this one only.")
    ] = False,
) -> None:
    """Say what would hinder a run with these options, and how to mend it; 83 if anything would."""
    config, script = configuration(context.args)
    facts = node_facts(config, os.environ, script=script)
    findings = examined(facts)
    if config.endpoints and not alone and can_meet(findings):
        verdict = all_nodes(config, facts)
        if verdict is not None:
            typer.echo(verdict.json if json else verdict.text)
            raise typer.Exit(verdict.exit_code)
        findings.append(nobody(facts))
    typer.echo(document([facts], findings) if json else "\n".join(lines([facts], findings)))
    raise typer.Exit(exit_code(findings))


def can_meet(findings: Sequence[Finding]) -> bool:
    """True if nothing is wrong with the way to the other nodes; of all else they are told."""
    return not any(one.level == "error" and one.check in MEETING for one in findings)


def all_nodes(config: RunConfig, facts: NodeFacts) -> Verdict | None:
    """The table of the fleet, which the first node gathers. Raises RecoverrunError."""
    # Not at the top: a doctor of one node needs no sockets.
    from recoverrun.doctor.fleet_meeting import meet

    typer.echo(f"recoverrun: {config.nnodes} nodes meet at {config.endpoint}", err=True)
    return meet(config, find_key(config, os.environ), facts)


def nobody(facts: NodeFacts) -> Finding:
    """The first node did not answer."""
    found = f"no doctor answers at {facts.endpoint}"
    breaks = "what this node has to do with the others could not be looked at"
    return error("nodes", found, breaks, "run it on every node, the first one included, or --alone")


def configuration(arguments: list[str]) -> tuple[RunConfig, bool]:
    """The run's configuration, and whether a script was named. Raises RecoverrunError as it."""
    options = read(arguments, os.environ)
    assert options is not None, "help is taken before"
    named = bool(options.command)
    if not named:
        options = replace(options, command=(ANY_SCRIPT,))
    return parse_options(options, os.environ), named
