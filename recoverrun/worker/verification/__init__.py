"""Proof that microbatches can be made up, the check of drift, the check for NaN."""
