"""One launcher of recoverrun on each of 3 nodes of a Ray cluster: python ray_job.py

Ray places the launchers, and nothing more: a task that fails is not tried again, because its node
is recovered from within the step, and one lost task ends no other.
"""

import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES = 3
COMMAND = ["train.py"]


@ray.remote(max_retries=0, num_cpus=1, num_gpus=0)
def launch(rank: int, endpoint: str) -> int:
    """Run the launcher of one node; its exit code."""
    options = [f"--nnodes={NODES}", f"--node-rank={rank}", f"--rdzv-endpoint={endpoint}:29400"]
    options += ["--nproc-per-node=1", "--min-replicas=2"]
    return subprocess.run(["recoverrun", *options, *COMMAND], check=False).returncode


@ray.remote(num_cpus=0)
def address() -> str:
    """The address of the first node."""
    return ray.util.get_node_ip_address()


def main() -> int:
    ray.init()
    bundle = {"CPU": 1}
    group = placement_group([bundle] * NODES, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    places = [
        PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        for rank in range(NODES)
    ]
    first = ray.get(address.options(scheduling_strategy=places[0]).remote())
    waiting = [
        launch.options(scheduling_strategy=place).remote(rank, first)
        for rank, place in enumerate(places)
    ]
    codes = []
    while waiting:
        (ended,), waiting = ray.wait(waiting)
        try:
            codes.append(ray.get(ended))
        except ray.exceptions.RayError as error:
            print(f"a node is lost: {error}", file=sys.stderr)
    # All launchers of a job end with the same code; those that are lost have none.
    return min(codes, default=1)


if __name__ == "__main__":
    sys.exit(main())
