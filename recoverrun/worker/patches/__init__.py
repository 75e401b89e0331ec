"""The table of what is replaced in torch and in frameworks."""
