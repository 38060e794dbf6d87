"""Tensors of many sizes come and go, and nobody is refused: torch_peak.py prints what PyTorch says it had reserved."""

import random

import torch
from torch_common import MIB, say, tensor


def main():
    chance, blocks = random.Random(3), []
    for _ in range(300):
        if len(blocks) > 30 or blocks and chance.random() < 0.4:
            blocks.pop(chance.randrange(len(blocks)))
        blocks.append(tensor(chance.choice([4096, 300_000, MIB, 5 * MIB, 30 * MIB, 70 * MIB])))
    torch.cuda.synchronize()
    say(max_reserved=torch.cuda.max_memory_reserved(), max_allocated=torch.cuda.max_memory_allocated())
    blocks.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    say(reserved=torch.cuda.memory_reserved())


if __name__ == "__main__":
    main()
