"""Messages of somebody outside of the job who follows it: journals, read over the network.

The reader asks and a launcher answers, from the files of its run directory and nothing else. Each
answer is a piece of one file, so that no journal has to fit into a frame.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalCall:
    """Reader -> L: I have so many bytes of each of these journals. What comes after them?"""

    serial: int
    have: tuple[tuple[str, int], ...]  # (name of a file, bytes of it); of others none
    stacks: bool  # those of ranks that stood still as well


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPiece:
    """L -> reader: what one journal holds from byte `start` on; `name` is "" if nothing is new.

    `launchers`: where the others of the job that it knows can be asked as well.
    """

    serial: int  # of the call that is answered; 0: unasked, as the launcher ends
    folder: str  # the name of the run within the job
    name: str
    start: int
    data: bytes
    launchers: tuple[tuple[str, int], ...]  # (host, port)
