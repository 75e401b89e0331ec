"""`python -m recoverrun` is the same as `recoverrun`."""

from recoverrun.cli.main import main

main()
