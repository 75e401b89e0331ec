"""Proof that microbatches can be made up, audits, the check for NaN, exact mode."""
