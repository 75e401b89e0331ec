"""The import hook, which rewrites loops and code for rank 0 only as modules are imported."""
