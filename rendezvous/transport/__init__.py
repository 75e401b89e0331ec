"""Sockets, links and keys."""
