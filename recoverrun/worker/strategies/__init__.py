"""One file per way of data-parallel training; docs/injection.md tells how to add one."""
