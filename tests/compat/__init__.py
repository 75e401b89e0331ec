"""Scripts in the ways in which people train, each with and without kills."""
