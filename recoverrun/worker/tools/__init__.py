"""Final weights, their comparison, and the bound of rounding."""
