"""The work of rank 0, done by a survivor in its place."""
