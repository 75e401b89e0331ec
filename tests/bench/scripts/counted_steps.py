"""Trains in one process, and writes the processor time of each of its steps as JSON."""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--into", type=Path, required=True)
args = parser.parse_args()
WIDTH, BATCH = 1024, 32

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(args.layers)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
spent = []
for _ in range(args.steps):
    began = time.process_time()
    loss = model(torch.randn(BATCH, WIDTH)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    spent.append(1000 * (time.process_time() - began))
args.into.write_text(json.dumps(spent))
