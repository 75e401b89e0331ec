"""The version of recoverrun."""

__version__ = "0.1.0"
