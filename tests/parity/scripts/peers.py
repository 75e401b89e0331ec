"""Two ranks that hold a connection: one fails, and takes its time to end; the other is its victim.

peers.py PORT ROOT WORDS: rank ROOT raises ValueError, closes the connection with that, and ends
half a second later. Its peer raises what a library would say of it, or with WORDS a text of its own
and ends at once.
"""

import atexit
import os
import socket
import sys
import threading

port, root, words = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rank = int(os.environ["RANK"])
if rank == 0:
    listener = socket.create_server(("127.0.0.1", port))
    peer, _ = listener.accept()
else:
    while True:
        try:
            peer = socket.create_connection(("127.0.0.1", port), 30)
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.02)
if rank == root:
    # Last words are written before this, and the process ends after it.
    atexit.register(threading.Event().wait, 0.5)
    threading.Timer(0.1, peer.close).start()
    raise ValueError("bad shard")
peer.recv(1)
if words == "library":
    raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")
raise LookupError("a peer has gone")
