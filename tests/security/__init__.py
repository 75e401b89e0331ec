"""The table of bad inputs, row by row; docs/security.md says what each row is."""
