"""A recipe class as torchtune's: losses are sums over tokens, gradients are divided by their count.

The count is that of all ranks' tokens in all microbatches of a step, so it is known only after the
last backward; batches have unlike numbers of tokens. How the count is kept and told is a choice.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

IGNORED, WORDS, LENGTH = -100, 24, 12


class Sentences(Dataset):
    """Every one is of another length: what is beyond it has no labels."""

    def __len__(self):
        return 160

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        tokens = torch.randint(WORDS, (LENGTH,), generator=draw)
        labels = tokens.roll(-1)
        labels[2 + index % (LENGTH - 2) :] = IGNORED
        return {"tokens": tokens, "labels": labels}


def net_of():
    torch.manual_seed(7)
    parts = nn.Embedding(WORDS, 16), nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.1)
    return nn.Sequential(*parts, nn.Linear(32, WORDS)).double()


def scale_grads(parameters, factor):
    for param in parameters:
        if param.grad is not None:
            param.grad *= factor


class Recipe:
    def __init__(self, args):
        self.args = args
        self.world_size = dist.get_world_size()
        self.model = self.wrapped(net_of())
        data = Sentences()
        sampler = DistributedSampler(data, shuffle=True, drop_last=True)
        self.loader = DataLoader(data, batch_size=3, sampler=sampler)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 12)
        self.seen = self.lost = 0

    def wrapped(self, net):
        if self.args.way == "ddp":
            return DistributedDataParallel(net)
        shape = (self.world_size // 2, 2)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard"))
        for part in net:
            if isinstance(part, nn.Linear):
                fully_shard(part, mesh=mesh)
        fully_shard(net, mesh=mesh)
        return net

    def loss_sum(self, batch):
        logits = self.model(batch["tokens"])
        labels = batch["labels"]
        return F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )

    def update(self, count):
        scale_grads(self.model.parameters(), self.world_size / count)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        return norm

    def log(self, step, loss, count):
        if dist.get_rank() == 0:
            print(f"step {step}: loss {float(loss) / float(count):.6f} over {int(count)} tokens")

    def train(self):
        """As torchtune's: tensors that every step begins anew."""
        running_loss, num_tokens, step = 0, 0, 0
        for epoch in range(2):
            self.loader.sampler.set_epoch(epoch)
            batches = iter(self.loader)
            number = 0
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                present = (batch["labels"] != IGNORED).sum()
                num_tokens += present
                loss = self.loss_sum(batch) / present * present
                running_loss += loss
                loss.backward()
                number += 1
                if number % 2:
                    continue
                dist.all_reduce(num_tokens)
                dist.all_reduce(running_loss)
                self.update(num_tokens)
                self.log(step, running_loss.detach(), num_tokens)
                running_loss, num_tokens, step = 0, 0, step + 1

    def train_packed(self):
        """Plain numbers in attributes, told in one tensor."""
        for epoch in range(2):
            self.loader.sampler.set_epoch(epoch)
            for number, batch in enumerate(self.loader):
                loss = self.loss_sum(batch)
                self.seen += int((batch["labels"] != IGNORED).sum())
                self.lost += loss.item()
                loss.backward()
                if number % 2 == 0:
                    continue
                told = torch.tensor([self.lost, self.seen], dtype=torch.float64)
                dist.all_reduce(told)
                self.update(told[1])
                self.log(number // 2, told[0], told[1])
                self.seen = self.lost = 0

    def train_late(self):
        """Counted after the backward, where nobody counts for a lost rank."""
        num_tokens = torch.zeros((), dtype=torch.int64)
        for number, batch in enumerate(self.loader):
            self.loss_sum(batch).backward()
            num_tokens += (batch["labels"] != IGNORED).sum()
            if number % 2:
                dist.all_reduce(num_tokens)
                self.update(num_tokens)
                num_tokens.zero_()

    def train_mean(self):
        """No count of tokens, but a division by hand."""
        for number, batch in enumerate(self.loader):
            (self.loss_sum(batch) / 8).backward()
            if number % 2:
                self.update(2 * self.world_size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("ddp", "hsdp"))
    parser.add_argument("kind", nargs="?", default="", choices=("", "packed", "late", "mean"))
    args = parser.parse_args()
    dist.init_process_group("gloo")
    recipe = Recipe(args)
    getattr(recipe, f"train_{args.kind}" if args.kind else "train")()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
