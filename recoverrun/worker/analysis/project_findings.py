"""The answer of all files of a project together: the names and loops that lead to a backward.

It is a few thousand names, whatever the project's size, and plain values say all of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recoverrun.worker.analysis.call_facts import ProjectNames
from recoverrun.worker.analysis.call_graph import BackwardNames
from recoverrun.worker.analysis.rank_conditions import BoundNames, Exports


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The names and loops of a project's files."""

    names: BackwardNames
    relevant_names: frozenset[str] = frozenset()  # another module has one of them, or adds nothing
    leading: Mapping[str, bool]  # by file: True if its loops may lead to a backward
    exports: Exports = field(default_factory=dict)

    def packed(self) -> dict[str, Any]:
        """Return plain values. Sets are sorted: the text of equal findings is equal."""
        project = self.names.project
        return {
            "names": sorted(self.names.names),
            "functions": sorted(self.names.functions),
            "project": project and [sorted(project.modules), sorted(project.functions)],
            "relevant": sorted(self.relevant_names),
            "leading": dict(sorted(self.leading.items())),
            "exports": {
                module: [sorted(bound.ranks), sorted(bound.flags)]
                for module, bound in sorted(self.exports.items())
            },
        }

    @classmethod
    def unpacked(cls, plain: Any) -> "Findings":
        """Raises LookupError, TypeError or ValueError for what are no findings."""
        project = plain["project"]
        return cls(
            names=BackwardNames(
                frozenset(plain["names"]),
                frozenset(plain["functions"]),
                project=None if project is None else ProjectNames(*map(frozenset, project)),
            ),
            relevant_names=frozenset(plain["relevant"]),
            leading=dict(plain["leading"]),
            exports={
                module: BoundNames(*map(frozenset, bound))
                for module, bound in dict(plain["exports"]).items()
            },
        )
