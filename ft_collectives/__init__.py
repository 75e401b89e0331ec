"""The data plane that survives losses: groups, gradient buckets, the order of events in a step."""
