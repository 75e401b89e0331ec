"""The keeper of a node: a process whose memory holds snapshots, and outlives who uses them."""
