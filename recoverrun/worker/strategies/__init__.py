"""One file per way of data-parallel training; docs/scripts.md tells how to add one."""
