"""Which launcher coordinates, and the coordinator that it hosts."""
