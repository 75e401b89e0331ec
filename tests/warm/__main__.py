"""python -u -m tests.warm FD: the template, which is asked over the socket FD.

What a fork has to do is done here, at the bottom of the stack, as in a process of its own.
"""

import sys

if __name__ == "__main__":
    del sys.path[0]  # `-m` has put the folder there; workers do not have it
    from tests.warm.template import serve

    serve(int(sys.argv[1]))()
