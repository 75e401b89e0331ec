"""The group that an unmodified script holds: two-phase operations, substitutes."""
