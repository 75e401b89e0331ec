"""The socket at which the workers of this node call their launcher, in its private directory.

Shared memory is cleared under programs that run: systemd does it as a user's last session ends
(`RemoveIPC=yes`), and so do job epilogues. Connections outlive that, but no thread or process could
call anew: survivors of a loss would wait for the store without end. So the directory is looked for
now and then, and made again with a socket at the same place; whoever calls meanwhile tries again.
"""

import os
from collections.abc import Callable

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.output.run_dir import PrivateDir
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.records import Record, notice
from rendezvous.transport.links import Router
from rendezvous.transport.station import Station

LOOK_S = 1.0


class PrivateSocket:
    """That of one launcher; complaints go to `record`. The socket is the station's, which closes
    it.
    """

    def __init__(
        self, private: PrivateDir, station: Station, record: Callable[[Record], None]
    ) -> None:
        """Listen. Raises RecoverrunError."""
        self._private = private
        self._record = record
        self._look_at = float("-inf")
        self._complained = False
        try:
            self.router: Router = station.listen_ipc(private.socket)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            sentence = f"cannot listen in {private.path}: {why}"
            raise RecoverrunError(sentence, ExitCode.USAGE) from error

    def tick(self, now: float) -> None:
        """Listen again if somebody has removed the socket. Seldom looks, however often called."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if os.path.exists(self._private.socket):
            return
        where = self._private.path
        try:
            self._private.restore()
            self.router.listen_also(self._private.socket)
        except OSError as error:
            if not self._complained:
                why = error.strerror or str(error)
                words = f"{where} was removed and cannot be made again ({why})"
                self._record(notice(f"{words}: no rank can be redone or come back"))
            self._complained = True
            return
        self._complained = False
        words = f"{where} was removed by another program, and is made again"
        self._record(notice(f"{words} (a job's epilogue, or systemd's RemoveIPC at a logout?)"))
