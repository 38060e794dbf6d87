"""What PyTorch is told about the GPU's memory: torch_room.py."""

import torch
from torch_common import say


def main():
    torch.zeros(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    say(free=free, total=total, properties_total=torch.cuda.get_device_properties(0).total_memory)


if __name__ == "__main__":
    main()
