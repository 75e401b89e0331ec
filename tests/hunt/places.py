"""The places of a script in its data: how it comes by the numbers of its next samples.

`top` stands at module level, `setup` before the loop, `fetch` assigns `ids` in it. Where `each` is
given, the loop may also run over it. Shares of the ranks are apart, and end in the same order of
their own every time.
"""

from dataclasses import dataclass

from tests.hunt.plan import Plan


@dataclass(frozen=True, slots=True)
class Place:
    top: str = ""
    setup: str = ""
    fetch: str = ""
    each: str = ""
    imports: str = ""


SHARE = "share = list(range(rank, N, world))\n"

PLAIN: dict[str, Place] = {
    "closure": Place(
        """
def feeder(share):
    at = 0

    def take():
        nonlocal at
        ids = [share[(at + i) % len(share)] for i in range(BATCH)]
        at += BATCH
        return ids

    return take
""",
        SHARE + "take = feeder(share)\n",
        "ids = take()\n",
    ),
    "attribute": Place(
        """
def take(share):
    ids = [share[(take.at + i) % len(share)] for i in range(BATCH)]
    take.at += BATCH
    return ids


take.at = 0
""",
        SHARE,
        "ids = take(share)\n",
    ),
    "count": Place(
        "",
        "numbers = itertools.count(rank, world)\n",
        "ids = [next(numbers) % N for _ in range(BATCH)]\n",
        imports="import itertools\n",
    ),
    "slots": Place(
        """
class Cursor:
    __slots__ = ("at", "share")

    def __init__(self, share):
        self.share = share
        self.at = 0

    def take(self):
        ids = [self.share[(self.at + i) % len(self.share)] for i in range(BATCH)]
        self.at += BATCH
        return ids
""",
        SHARE + "cursor = Cursor(share)\n",
        "ids = cursor.take()\n",
    ),
    "list": Place(
        "",
        SHARE + "left = []\n",
        "if len(left) < BATCH:\n    left.extend(share)\n"
        "ids = [left.pop(0) for _ in range(BATCH)]\n",
    ),
    "deque": Place(
        "",
        "waiting = deque(range(rank, N, world))\n",
        "ids = [waiting[i] for i in range(BATCH)]\nwaiting.rotate(-BATCH)\n",
        imports="from collections import deque\n",
    ),
    "queue": Place(
        "",
        "waiting = queue.Queue()\nfor number in range(400):\n"
        "    waiting.put((rank + world * number) % N)\n",
        "ids = [waiting.get() for _ in range(BATCH)]\n",
        imports="import queue\n",
    ),
    "thread": Place(
        """
def prefetch(share, ready):
    at = 0
    while True:
        ready.put([share[(at + i) % len(share)] for i in range(BATCH)])
        at += BATCH
""",
        SHARE + "ready = queue.Queue(maxsize=4)\n"
        "threading.Thread(target=prefetch, args=(share, ready), daemon=True).start()\n",
        "ids = ready.get()\n",
        imports="import queue\nimport threading\n",
    ),
    "global": Place(
        """
at = 0


def take():
    global at
    ids = [(rank + world * (at + i)) % N for i in range(BATCH)]
    at += BATCH
    return ids
""",
        "",
        "ids = take()\n",
    ),
    "permutation": Place(
        "",
        "order, at = np.random.default_rng(5).permutation(N), rank * BATCH\n",
        "ids = [int(order[(at + i) % N]) for i in range(BATCH)]\nat += world * BATCH\n",
    ),
    "sentinel": Place(
        "",
        SHARE + "stock = list(share)\nbatches = iter(lambda: [stock.pop(0), stock.pop(0)], None)\n",
        "if len(stock) < BATCH:\n    stock.extend(share)\nids = next(batches)\n",
    ),
    "cycle": Place(
        "",
        SHARE + "samples = itertools.cycle(share)\n",
        "ids = list(itertools.islice(samples, BATCH))\n",
        imports="import itertools\n",
    ),
    "dict": Place(
        "",
        'state = {"at": rank}\n',
        'ids = [(state["at"] + world * i) % N for i in range(BATCH)]\n'
        'state["at"] += world * BATCH\n',
    ),
    "sampling": Place(
        "",
        SHARE + "picks = random.Random(40 + rank)\n",
        "ids = picks.sample(share, BATCH)\n",
    ),
    "file": Place(
        "",
        'listing = os.path.join(FOLDER, f"samples{rank}.txt")\n'
        'with open(listing, "w") as file:\n'
        "    for number in range(200):\n"
        '        file.write(f"{(rank + 2 * number * world) % N} '
        '{(rank + (2 * number + 1) * world) % N}\\n")\n'
        "lines = open(listing)\n",
        "ids = [int(word) for word in lines.readline().split()]\n",
    ),
    "pipe": Place(
        "",
        "reader, writer = os.pipe()\nfor number in range(400):\n"
        '    os.write(writer, b"%04d" % ((rank + world * number) % N))\n',
        "ids = [int(os.read(reader, 4)) for _ in range(BATCH)]\n",
    ),
    "cursor": Place(
        "",
        'table = sqlite3.connect(":memory:")\ntable.execute("create table samples (id integer)")\n'
        "for number in range(400):\n"
        '    table.execute("insert into samples values (?)", ((rank + world * number) % N,))\n'
        'rows = table.execute("select id from samples")\n',
        "ids = [row[0] for row in rows.fetchmany(BATCH)]\n",
        imports="import sqlite3\n",
    ),
    "module": Place(
        "",
        "",
        "ids = shards.take()\n",
        imports="import shards\n",
    ),
    "generator": Place(
        """
def batches(share):
    at = 0
    while True:
        yield [share[(at + i) % len(share)] for i in range(BATCH)]
        at += BATCH
""",
        SHARE + "feed = batches(share)\n",
        "ids = next(feed)\n",
        "feed",
    ),
    "iterator": Place(
        """
class Batches:
    def __init__(self, share):
        self.share = share
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        ids = [self.share[(self.at + i) % len(self.share)] for i in range(BATCH)]
        self.at += BATCH
        return ids
""",
        SHARE + "feed = Batches(share)\n",
        "ids = next(feed)\n",
        "feed",
    ),
    "loader": Place(
        "",
        "numbers = TensorDataset(torch.arange(N))\n"
        "sampler = DistributedSampler(numbers, world, rank, shuffle=True, seed=3)\n"
        "loader = DataLoader(numbers, batch_size=BATCH, sampler=sampler)\n",
        "",
        "loader",
    ),
    "loader-renewed": Place(
        "",
        "numbers = TensorDataset(torch.arange(rank, N, world))\n"
        "loader = DataLoader(numbers, batch_size=BATCH, shuffle=True,\n"
        "                    generator=torch.Generator().manual_seed(9 + rank))\n"
        "feed = iter(loader)\n",
        "try:\n    (ids,) = next(feed)\nexcept StopIteration:\n"
        "    feed = iter(loader)\n    (ids,) = next(feed)\nids = ids.tolist()\n",
    ),
}

SHARDS = """\
import os

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
at = 0


def take():
    global at
    ids = [(RANK + WORLD * (at + i)) % 48 for i in range(2)]
    at += 2
    return ids
"""


def place_of(plan: Plan) -> Place:
    return PLAIN[plan.place]
