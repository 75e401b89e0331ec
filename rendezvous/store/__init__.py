"""The c10d store that no worker hosts, and its replication."""
