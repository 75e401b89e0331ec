"""The import hook; loops and code for rank 0 alone are rewritten as they are imported."""
