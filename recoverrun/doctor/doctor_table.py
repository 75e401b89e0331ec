"""The doctor's table as text and as JSON, and the exit code that goes with it."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from recoverrun.doctor.findings import Finding, Level
from recoverrun.doctor.node_facts import NodeFacts
from recoverrun.text import plural, sanitize
from rendezvous.protocol.exit_codes import ExitCode

SCHEMA = 1
SIGNS: dict[Level, str] = {"ok": "✓", "warning": "!", "error": "✖"}


def exit_code(findings: Sequence[Finding]) -> ExitCode:
    """83 if anything would keep a job from running, or from surviving."""
    return ExitCode.DOCTOR if any(one.level == "error" for one in findings) else ExitCode.DONE


def lines(facts: Sequence[NodeFacts], findings: Sequence[Finding]) -> list[str]:
    """One line for what is well, three for what is not."""
    first = facts[0]
    shown = [f"recoverrun {first.version} · {plural(len(facts), 'node')} · {sanitize(first.node)}"]
    for one in findings:
        where = f"  [{', '.join(map(sanitize, one.nodes))}]" if one.nodes else ""
        shown.append(f" {SIGNS[one.level]} {one.check:<12} {sanitize(one.found)}{where}")
        if one.level != "ok":
            shown += [
                f"   {'':<12} {sanitize(one.breaks)}",
                f"   {'':<12} mend: {sanitize(one.mend)}",
            ]
    counts = {level: sum(one.level == level for one in findings) for level in SIGNS}
    code = exit_code(findings)
    ends = [plural(counts["error"], "error"), plural(counts["warning"], "warning"), f"exit {code}"]
    return [*shown, f" {' · '.join(ends)}"]


def document(facts: Sequence[NodeFacts], findings: Sequence[Finding]) -> str:
    """One JSON object for programs."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "exit_code": exit_code(findings),
            "findings": [asdict(one) for one in findings],
            "nodes": [asdict(one) for one in facts],
        }
    )
