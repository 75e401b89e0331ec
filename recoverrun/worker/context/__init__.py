"""The context of a slot: what its microbatch depends on, captured, compared and put back."""
