"""Which launchers take part and which one leads: the register, leases, witnesses, etcd."""
