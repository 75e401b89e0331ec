"""The sources of random numbers, and where each has its generator."""

from dataclasses import dataclass

from tests.hunt.plan import Plan


@dataclass(frozen=True, slots=True)
class Stream:
    """`draw` changes `x`, the inputs of the samples `ids`."""

    top: str = ""
    setup: str = ""
    draw: str = ""


NUMPY = "x = x + 0.1 * torch.from_numpy({}.standard_normal(tuple(x.shape)))\n"
TORCH = "x = x + 0.1 * torch.randn(x.shape, generator={}, dtype=torch.float64)\n"
OWN = "torch.Generator().manual_seed(50 + {seed})"

STREAMS: dict[str, Stream] = {
    "none": Stream(),
    "dropout": Stream(),  # the model draws
    "python": Stream(
        draw="x = x + 0.1 * torch.tensor([[random.gauss(0, 1)] for _ in ids], "
        "dtype=torch.float64)\n"
    ),
    "numpy": Stream(draw="x = x + 0.1 * torch.from_numpy(np.random.randn(*x.shape))\n"),
    "numpy-closure": Stream(
        """
def noise_of(seed):
    rng = np.random.default_rng(seed)

    def noise(shape):
        return torch.from_numpy(rng.standard_normal(shape))

    return noise
""",
        "noise = noise_of(50 + {seed})\n",
        "x = x + 0.1 * noise(tuple(x.shape))\n",
    ),
    "numpy-dict": Stream(
        "", 'tools = {{"rng": np.random.default_rng(50 + {seed})}}\n', NUMPY.format('tools["rng"]')
    ),
    "numpy-list": Stream(
        "", "rngs = [np.random.default_rng(50 + {seed})]\n", NUMPY.format("rngs[0]")
    ),
    "torch": Stream(draw="x = x + 0.1 * torch.randn_like(x)\n"),
    "torch-closure": Stream(
        """
def noise_of(generator):
    def noise(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return noise
""",
        f"noise = noise_of({OWN})\n",
        "x = x + 0.1 * noise(tuple(x.shape))\n",
    ),
    "torch-dict": Stream("", f'tools = {{{{"rng": {OWN}}}}}\n', TORCH.format('tools["rng"]')),
    "torch-list": Stream("", f"rngs = [{OWN}]\n", TORCH.format("rngs[0]")),
    "torch-lazy": Stream(
        """
def noise_of(seed):
    made = []

    def noise(shape):
        if not made:
            made.append(torch.Generator().manual_seed(seed))
        return torch.randn(shape, generator=made[0], dtype=torch.float64)

    return noise
""",
        "noise = noise_of(50 + {seed})\n",
        "x = x + 0.1 * noise(tuple(x.shape))\n",
    ),
    "numpy-spawned": Stream(
        """
def noise_of(rng):
    def noise(shape):
        return torch.from_numpy(rng.standard_normal(shape))

    return noise
""",
        "noise = noise_of(np.random.default_rng(50 + {seed}).spawn(2)[1])\n",
        "x = x + 0.1 * noise(tuple(x.shape))\n",
    ),
    "torch-cloned": Stream(
        """
def noise_of(generator):
    def noise(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return noise
""",
        f"noise = noise_of({OWN}.clone_state())\n",
        "x = x + 0.1 * noise(tuple(x.shape))\n",
    ),
    "random-object": Stream(
        "",
        "dice = random.Random(50 + {seed})\n",
        "x = x + 0.1 * torch.tensor([[dice.gauss(0, 1)] for _ in ids], dtype=torch.float64)\n",
    ),
    "random-decides": Stream(
        draw="for _ in range(random.randint(0, 3)):\n    x = x + 0.1 * torch.randn_like(x)\n"
    ),
    "data-decides": Stream(
        draw="for number in ids:\n    if number % 3 == 0:\n"
        "        x = x + 0.1 * torch.randn_like(x)\n"
    ),
}

WHEN = {"at once": "", "from 5": "if step >= 5:\n", "every third": "if step % 3 == 0:\n"}


def stream_of(plan: Plan) -> Stream:
    """Its pieces, the numbers of the ranks filled in."""
    stream = STREAMS[plan.stream]
    seed = "rank" if plan.ranks_seed else "0"
    setup = stream.setup.format(seed=seed)
    seeds = "".join(f"{call}(70 + {seed})\n" for call in _seeding(plan))
    return Stream(stream.top, seeds + setup, _at(plan, stream.draw))


def _seeding(plan: Plan) -> list[str]:
    """All people's scripts seed all streams, with or without the rank."""
    return ["random.seed", "np.random.seed", "torch.manual_seed"]


def _at(plan: Plan, draw: str) -> str:
    head = WHEN[plan.when]
    if plan.stream == "dropout":
        chance = {"": "0.3", "if step >= 5:\n": "0.3 * (step >= 5)"}.get(
            head, "0.3 * (step % 3 == 0)"
        )
        return "" if not head else f"net.drop.p = {chance}\n"
    if not draw or not head:
        return draw
    return head + "".join(f"    {line}\n" for line in draw.splitlines())
