"""Too large a tensor, then small ones until there is no more: both are OutOfMemoryErrors, and after each it goes on.

torch_refused.py LARGE STEP
"""

import sys

import torch
from torch_common import is_right, say, tensor


def main():
    large, step = map(int, sys.argv[1:])
    kept, _small = tensor(step), tensor(1)  # PyTorch keeps small tensors together: this one keeps room for is_right()
    try:
        tensor(large)
    except torch.OutOfMemoryError as error:
        say(large=type(error).__name__)
    torch.cuda.empty_cache()
    say(smaller=is_right(tensor(step)), kept=is_right(kept))

    blocks = []
    try:
        while len(blocks) * step < large:
            blocks.append(tensor(step))
    except torch.OutOfMemoryError as error:
        say(many=type(error).__name__)
    say(blocks=len(blocks), all_right=all(map(is_right, blocks)))
    del blocks
    torch.cuda.empty_cache()
    say(again=is_right(tensor(step)))


if __name__ == "__main__":
    main()
