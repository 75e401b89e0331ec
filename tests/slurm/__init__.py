"""Jobs under a real Slurm: three nodes on this host, started by the tests."""
