"""import torch and one tensor on the GPU: the modules that are there then."""

import sys

import torch

assert torch.cuda.is_available() and int(torch.ones(4, device="cuda").sum()) == 4
print("\n".join(sorted(sys.modules)))
