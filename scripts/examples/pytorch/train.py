#!/usr/bin/env python3
"""A training that finds the largest batch that fits, under torchrun or alone.

    LD_PRELOAD=libsparkguard.so SPARKGUARD_JOB=demo SPARKGUARD_LIMIT=1500M \\
        torchrun --standalone --nproc-per-node=2 train.py

All ranks are one job and share the limit. Each tries a step; the batch is halved until it fits in all of them, so that none
waits in a collective for one that was refused.
"""

import argparse
import os

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 4096


def is_out_of_memory(error):
    """On a GPU PyTorch has an error of its own; its CPU allocator raises a plain RuntimeError, Python a MemoryError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def agree(fit):
    """Whether it fits in all ranks."""
    answer = torch.tensor(int(fit))
    if distributed.is_initialized():
        distributed.all_reduce(answer, distributed.ReduceOp.MIN)
    return bool(answer)


def fits(model, batch, device):
    """Whether all ranks can have a step with so large a batch at the same time; nothing of it is kept."""
    held = []
    try:
        held.append(torch.ones(batch, WIDTH, device=device))
        held.append(model(held[0]).sum())
        held[1].backward(retain_graph=True)
        fit = True
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        fit = False
    fit = agree(fit)  # while everybody still holds his
    held.clear()
    model.zero_grad(set_to_none=True)
    if device != "cpu":
        torch.cuda.empty_cache()
    return fit


def train(model, batch, device):
    """One epoch over what the loader's workers bring in shared memory."""
    data = TensorDataset(torch.randn(4 * batch, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    steps = 0
    for (values,) in DataLoader(data, batch_size=batch, num_workers=2):
        model(values.to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32768)
    batch = parser.parse_args().batch

    torch.set_num_threads(1)
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")  # on the CPU; a model on GPUs takes "cpu:gloo,cuda:nccl"
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    while not fits(model, batch, device):
        batch //= 2
    whole = nn.parallel.DistributedDataParallel(model) if distributed.is_initialized() else model
    steps = train(whole, batch // 16, device)  # a loader holds several at once
    print(f"rank {os.environ.get('RANK', 0)}: largest batch {batch}, {steps} steps", flush=True)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
