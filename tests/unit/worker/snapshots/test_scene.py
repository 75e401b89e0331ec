"""What is told of a rank, and what of it cannot be."""

from torch.utils.data import DataLoader

from recoverrun.worker.snapshots.scene import fetched_ahead


def test_loaders_that_fetch_ahead_are_known_by_their_framework() -> None:
    plain = DataLoader(list(range(4)))
    shard = type("DataLoaderShard", (DataLoader,), {"__module__": "accelerate.data_loader"})

    assert fetched_ahead([plain]) == ""
    assert fetched_ahead([plain, shard(list(range(4)))]) == "accelerate"
