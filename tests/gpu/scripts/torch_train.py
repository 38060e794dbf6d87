"""A few training steps; prints every loss to the last bit."""

import torch
from torch_common import deterministic


def main():
    deterministic()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 30 * 30, 256),
        torch.nn.LayerNorm(256),
        torch.nn.Linear(256, 10),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, labels = torch.randn(128, 3, 32, 32).cuda(), torch.randint(10, (128,)).cuda()
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())


if __name__ == "__main__":
    main()
