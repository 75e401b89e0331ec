"""All checks of one node, in the order of its table. Pure: facts in, findings out."""

from collections.abc import Callable, Iterator, Sequence

from recoverrun.doctor import job_checks, machine_checks
from recoverrun.doctor.findings import Finding
from recoverrun.doctor.node_facts import NodeFacts

CHECKS: Sequence[Callable[[NodeFacts], Iterator[Finding]]] = (
    job_checks.address,
    job_checks.interface,
    job_checks.endpoint,
    job_checks.key,
    job_checks.script,
    machine_checks.software,
    job_checks.environment,
    job_checks.scheduler,
    machine_checks.shared_memory,
    machine_checks.limits,
    machine_checks.memory,
    machine_checks.stacks,
    machine_checks.kernel,
    machine_checks.run_directory,
    machine_checks.gpu,
)


def examined(facts: NodeFacts) -> list[Finding]:
    """The findings of all checks of a node."""
    return [finding for check in CHECKS for finding in check(facts)]
