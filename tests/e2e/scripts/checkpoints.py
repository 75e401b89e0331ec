"""Saves sharded checkpoints while it trains, and reads the last one at its end.

CHECKPOINT_DIES=write2 ends rank 2 while it writes its part of the second one, finish0 rank 0 while
it writes what ties the parts together.
"""

import os
import signal
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Writer(FileSystemWriter):
    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        self._die("write")
        return super().write_data(*args, **kwargs)

    def finish(self, *args: Any, **kwargs: Any) -> None:
        self._die("finish")
        super().finish(*args, **kwargs)

    def _die(self, where: str) -> None:
        second = str(self.checkpoint_id).endswith("1")
        if second and os.environ.get("CHECKPOINT_DIES") == f"{where}{dist.get_rank()}":
            os.kill(os.getpid(), signal.SIGKILL)


class Training:
    """The content of a checkpoint."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def tensors(self) -> list[torch.Tensor]:
        moments = [one for state in self.optimizer.state.values() for one in state.values()]
        found = [*self.model.parameters(), *moments]
        return [one.to_local() if hasattr(one, "to_local") else one for one in found]


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "shard"))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).double()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    training = Training(model, optimizer)
    torch.manual_seed(2 + dist.get_rank())
    for step in range(12):
        x = torch.randn(4, 8, dtype=torch.float64)
        (model(x) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 6 == 5:
            dcp.save({"training": training}, storage_writer=Writer(f"saved/{step // 6}"))
    before = [one.clone() for one in training.tensors()]
    with torch.no_grad():
        for one in training.tensors():
            one.zero_()
    dcp.load({"training": training}, checkpoint_id="saved/1")
    same = all(map(torch.equal, before, training.tensors()))
    words = f"rank {dist.get_rank()} books {'same' if same else 'other'}\n"
    print(words, end="", flush=True)  # at once: others print, too
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
