"""A training loop on the CPU, and one whose arrays a DataLoader's workers bring. What tests/frameworks/run times.

    train.py loop|loader

The time is that of the steps alone, wall and CPU seconds of this process and its workers, printed on one line. The first
steps, in which the allocators settle, do not count.
"""

import multiprocessing
import resource
import sys
import time

import torch

WARM, STEPS, BATCH = 20, 200, 256


class Images(torch.utils.data.Dataset):
    """Arrays of 147 KiB, as a decoder and a random crop would make them: each a new block, then a copy in float."""

    def __len__(self):
        return 64 * (WARM + STEPS)

    def __getitem__(self, index):
        image = torch.full((224, 224, 3), index % 251, dtype=torch.uint8)
        return image.float().div_(255).permute(2, 0, 1), index % 10


def cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def loop():
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(WARM + STEPS):
        yield
        loss = torch.nn.functional.cross_entropy(model(torch.randn(BATCH, 1024)), torch.randint(10, (BATCH,)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def loader():
    batches = torch.utils.data.DataLoader(Images(), batch_size=32, num_workers=2)
    for number, (images, _labels) in enumerate(batches):
        yield
        images.mean().item()
        if number == WARM + STEPS:
            break


def main():
    torch.manual_seed(1)
    torch.set_num_threads(max(1, multiprocessing.cpu_count() // 2))
    begin = cpu = 0
    for step, _ in enumerate({"loop": loop, "loader": loader}[sys.argv[1]]()):
        if step == WARM:
            begin, cpu = time.monotonic(), cpu_seconds()
    wall = time.monotonic() - begin
    print(wall, cpu_seconds() - cpu)


if __name__ == "__main__":
    main()
