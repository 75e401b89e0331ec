"""The launchers that take part, and the one that leads: the register, leases, witnesses, etcd."""
