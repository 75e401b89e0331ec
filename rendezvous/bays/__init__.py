"""Memory that outlives the process that fills it, and the socket over which it is handed on."""
