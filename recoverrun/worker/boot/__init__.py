"""Runs the script, and makes what protects it."""
