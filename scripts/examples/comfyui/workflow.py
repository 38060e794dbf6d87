#!/usr/bin/env python3
"""An image workflow as ComfyUI runs them: denoise a latent, decode it to pixels, and decode in tiles if that is refused.

    LD_PRELOAD=libsparkguard.so SPARKGUARD_LIMIT=1G python3 workflow.py

The networks have random weights: only their memory is that of an image model. Decoding takes far more than denoising, for each
activation has the size of the picture.
"""

import sys

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHANNELS, SCALE, TILE = 48, 8, 32


def is_out_of_memory(error):
    """On a GPU PyTorch has an error of its own; its CPU allocator raises a plain RuntimeError, Python a MemoryError."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def make_decoder():
    layers = [nn.Conv2d(4, CHANNELS, 3, padding=1)]
    for _ in range(3):
        layers += [nn.Upsample(scale_factor=2), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.SiLU()]
    return nn.Sequential(*layers, nn.Conv2d(CHANNELS, 3, 3, padding=1)).to(DEVICE)


def decode_in_tiles(decoder, latent):
    rows = []
    for top in range(0, latent.shape[2], TILE):
        parts = [decoder(latent[:, :, top : top + TILE, left : left + TILE]) for left in range(0, latent.shape[3], TILE)]
        rows.append(torch.cat(parts, dim=3))
    return torch.cat(rows, dim=2)


def decode(decoder, latent):
    try:
        return decoder(latent), "whole"
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Behind the except block: the exception holds the frames, and they hold the tensors.
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    return decode_in_tiles(decoder, latent), "in tiles"


@torch.no_grad()
def main():
    side = int(sys.argv[1]) if len(sys.argv) > 1 else 160
    torch.manual_seed(0)
    model, decoder = nn.Conv2d(4, 4, 3, padding=1).to(DEVICE), make_decoder()
    latent = torch.randn(1, 4, side, side, device=DEVICE)
    for _ in range(4):
        latent = latent - 0.1 * model(latent)
    image, how = decode(decoder, latent)
    print(f"{image.shape[3]}x{image.shape[2]} pixels, decoded {how}")


if __name__ == "__main__":
    main()
