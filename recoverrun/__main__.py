"""`python -m recoverrun` is the same as `recoverrun`."""

from recoverrun.cli import main

main()
