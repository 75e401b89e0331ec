"""recoverrun, whose lost replicas are started again at once and as often as they are lost.

For trials that lose more in minutes than a job does in a month: `revivals` would give up on them.
"""

from recoverrun.cli.main import main
from rendezvous.coordinator import revivals

STARTS = 100_000

if __name__ == "__main__":
    revivals.BACKOFF_S = (0.0,) * STARTS
    main()
