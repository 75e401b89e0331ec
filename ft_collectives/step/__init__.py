"""The in-step machine, the reducer, exact sums, the vote."""
