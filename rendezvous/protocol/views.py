"""The members of a generation, and the names of microbatches of its step."""

from dataclasses import dataclass

Identity = tuple[int, int]
"""(slot, index): a microbatch of the current step; slot is a replica position, never reassigned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """C -> all: the members of one generation. Slots that are not in `live` are lost.

    `live_ranks` serves the time before the topology is known and the world's own collectives.
    """

    generation: int
    live: tuple[int, ...]  # slots; empty while the topology is unknown
    live_ranks: tuple[int, ...]
    losses: tuple[int, ...]  # ranks lost since the generation before
    ended: tuple[int, ...] = ()  # live ranks whose script had ended: nobody waits for them
    joined: tuple[int, ...] = ()  # ranks that take part again from here on
    from_step: int = -1  # the transaction at whose top all begin, where some have joined
