"""The times that launchers count with among each other, in seconds."""

from rendezvous.protocol.heartbeat import QUICK

BEAT_S = 0.5
"""A leader asks its few voters for a lease that often. Members ping it at their `heartbeat`."""

RESEND_S = 0.3
LEASE_S = 2.5
MARGIN = 0.03
"""Clocks may run 1 % fast or slow each; a holder of a lease counts this much less."""

DEAF_S = LEASE_S
"""A leader is deaf that has heard no quorum for so long. Voters that live answer every `BEAT_S`."""

STAND_LEAST_S, STAND_SPREAD_S = 4.0, 1.6
"""After a lease has lapsed its voters wait so long, and up to so much longer, before they stand.
With the lease that is longer than a leader is silent whose link flaps (`heartbeat`), and longer
than a leader waits for a silent member: of two with a witness that do not hear each other it is the
leader that goes on."""

STAND_NEXT_S = 0.15
"""After a leader's death is proved they stand in the order of the configuration, this far apart."""

CANDIDATE_S = 2.0
"""A candidate without a quorum gives way after that."""

CONTACT_S = QUICK.silent_s * (1 - MARGIN)
"""Whom its leader had answered that recently is in every configuration: to be left out takes the
silence of the quickest `heartbeat` at least. The newest may be smaller than ours, and quicker."""

CONTACT_LEADING_S = STAND_LEAST_S * (1 - MARGIN)
"""The same for who leads, since its predecessor had answered it or a quorum had promised to follow
it: nobody stands against a leader sooner, and who wins against one leaves it out."""

UNOPPOSED_S = (LEASE_S + STAND_LEAST_S) * (1 - MARGIN)
"""Nobody stands against a leader so soon after it had asked for the leases that all voters gave."""

LEAP = 1000
"""Added to the numbers of a sole survivor's configuration: nobody dead can have used them."""

WITNESS_SILENT_S = 5.0
"""A witness that does not answer for so long has no vote in the next configuration."""

ALONE_S = 9.0
"""Who has heard no other member for so long is alone: voters would have stood by then."""

FENCE_S = 16.0
"""Without any leader for so long we are cut off, and say so. Two elections fit in: of the first,
candidates may have been in each other's way."""
