"""A model captured into a CUDA graph and replayed: prints what comes out, and whether it is what eager mode gives."""

import hashlib

import torch
from torch_common import deterministic, say


def main():
    deterministic()
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda().eval()
    given = torch.zeros(256, 512, device="cuda")
    batches = [torch.randn(256, 512, device="cuda") for _ in range(8)]
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model(given)
        for number, batch in enumerate(batches):
            given.copy_(batch)
            graph.replay()
            say(**{f"digest{number}": hashlib.sha256(result.cpu().numpy().tobytes()).hexdigest()})
            say(**{f"as_eager{number}": torch.allclose(result, model(batch), rtol=1e-4, atol=1e-5)})


if __name__ == "__main__":
    main()
