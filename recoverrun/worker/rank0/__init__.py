"""What a survivor does in the place of rank 0."""
