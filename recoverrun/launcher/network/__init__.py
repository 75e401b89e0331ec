"""Addresses, connections and keys; what is asked of etcd and of witnesses."""
