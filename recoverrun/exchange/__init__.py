"""The exchange of a node: a process that makes parity of snapshots with others, and rebuilds."""
