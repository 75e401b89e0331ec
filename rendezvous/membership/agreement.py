"""Two nodes of a job that could never work together, though both belong to it."""

from rendezvous.protocol.formation_messages import Join


def disagreement(join: Join, other: Join) -> str:
    """The reason why they cannot, as it is said to the one that joins; "" if they can."""
    if join.agreement != other.agreement:
        return "its launcher has another --etcd, or another etcd behind it"
    if join.role != other.role or join.options == other.options:
        return ""
    here = [option for option in join.options if option not in other.options]
    there = [option for option in other.options if option not in join.options]
    only = [
        f"{' '.join(options)} is given {place} only"
        for options, place in ((here, "here"), (there, "there"))
        if options
    ]
    return f"{', '.join(only)}; all nodes need the same options"
