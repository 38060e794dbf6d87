"""Two workers of a DataLoader bring batches through shared and pinned memory to the GPU."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch_common import say


def main():
    rows = torch.arange(8192 * 1024, dtype=torch.float32).reshape(8192, 1024)
    loader = DataLoader(TensorDataset(rows), batch_size=512, num_workers=2, pin_memory=True, multiprocessing_context="fork")
    batches, is_pinned = [], True
    for (batch,) in loader:
        is_pinned = is_pinned and batch.is_pinned()
        batches.append(batch.cuda(non_blocking=True))
    say(batches=len(batches), pinned=is_pinned, right=torch.equal(torch.cat(batches).cpu(), rows))


if __name__ == "__main__":
    main()
