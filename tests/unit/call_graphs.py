"""The call graph of a module alone."""

import ast

from recoverrun.worker.analysis.call_graph import CallGraph


def graph_of(tree: ast.Module) -> CallGraph:
    graph = CallGraph()
    graph.add(tree)
    return graph
