"""Pure functions of the journal: what happened, and how it is shown."""
