"""The rules that every way to agree has to keep, whoever decides."""
