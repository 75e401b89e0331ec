"""One file per way of data-parallel training; CONTRIBUTING.md tells how to add one."""
