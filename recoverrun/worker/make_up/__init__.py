"""Microbatches of lost ranks, made up by survivors, and the reasons not to believe them."""
