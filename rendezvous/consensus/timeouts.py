"""The times that launchers count with among each other, in seconds."""

BEAT_S = 0.5
"""A leader asks its few voters for a lease that often. Members ping it at their `heartbeat`."""

RESEND_S = 0.3
LEASE_S = 2.5
MARGIN = 0.03
"""Clocks may run 1 % fast or slow each; a holder of a lease counts this much less."""

STAND_LEAST_S, STAND_SPREAD_S = 1.2, 1.6
"""After a lease has lapsed its voters wait so long, and up to so much longer, before they stand."""

STAND_NEXT_S = 0.15
"""After a leader's death is proved they stand in the order of the configuration, this far apart."""

CANDIDATE_S = 2.0
"""A candidate without a quorum gives way after that."""

CONTACT_S = 1.2
"""Whom its leader had answered that recently is in every configuration: to be left out takes the
silence of the quickest `heartbeat` at least. The newest may be smaller than ours, and quicker."""

LEAP = 1000
"""Added to the numbers of a sole survivor's configuration: nobody dead can have used them."""

WITNESS_SILENT_S = 5.0
"""A witness that does not answer for so long has no vote in the next configuration."""

ALONE_S = 6.0
"""Who has heard no other member for so long is alone: voters would have stood by then."""

FENCE_S = 10.0
"""Without any leader for so long we are cut off, and say so."""
