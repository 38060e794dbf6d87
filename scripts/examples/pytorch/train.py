#!/usr/bin/env python3
"""A training that goes on with a smaller batch where a step is refused, under torchrun or alone.

    pip install sparkguard-*.whl     # the package of `make wheel`, for this Python
    LD_PRELOAD=libsparkguard.so SPARKGUARD_JOB=demo SPARKGUARD_LIMIT=1500M \\
        torchrun --standalone --nproc-per-node=2 train.py

All ranks are one job and share the limit. A step that is refused in one of them is run again by all, in micro-batches that fit.
The samples of a step stay what they were, and so does what is learned from them.
"""

import argparse
import os

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import sparkguard

INPUTS, WIDTH = 64, 4096


def train(model, batch, device):
    """One epoch over what the loader's workers bring in shared memory. Returns its steps and the sparkguard.Retry."""
    data = TensorDataset(torch.randn(4 * batch, INPUTS))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    training = sparkguard.retry(model)
    steps = 0
    for (values,) in DataLoader(data, batch_size=batch, num_workers=2):
        optimizer.zero_grad()
        training.step(lambda part: model(part).square().mean(), values.to(device))
        optimizer.step()
        steps += 1
    return steps, training


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16384)
    batch = parser.parse_args().batch

    torch.set_num_threads(1)
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")  # on the CPU; a model on GPUs takes "cpu:gloo,cuda:nccl"
    model = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)).to(device)
    whole = nn.parallel.DistributedDataParallel(model) if distributed.is_initialized() else model
    steps, training = train(whole, batch, device)
    parts = f"{training.micro_batch or batch} at a time, {training.retries} steps repeated"
    print(f"rank {os.environ.get('RANK', 0)}: {steps} steps of {batch}, {parts}", flush=True)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
