"""Who takes part: formation, the failure detector, flapping nodes."""
