"""sparkguard.retry for training loops with Accelerate.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    training = sparkguard.accelerate.retry(accelerator, model)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = training.step(lambda part: loss_of(model, part), batch)     # in place of accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from . import _guard
from ._retry import Retry, Weigh

_NOT_TAKEN = {"DEEPSPEED", "FSDP", "MEGATRON_LM", "TP"}


class AcceleratorRetry(Retry):
    """A Retry whose steps end where Accelerate's do, and whose backward is Accelerate's."""

    def __init__(self, accelerator: Any, model: Any, micro_batch: Optional[int], weigh: Weigh, margin: float) -> None:
        kind = accelerator.distributed_type
        if _guard.active() and getattr(kind, "name", kind) in _NOT_TAKEN:
            raise TypeError(f"sparkguard.retry takes no sharded model ({kind})")
        super().__init__(model, micro_batch, weigh, margin)
        self._accelerator = accelerator

    def step(self, compute: Callable[[Any], Any], batch: Any, backward: Optional[Callable[[Any], None]] = None) -> Any:
        """Runs one batch of the loader. Returns its loss. backward is accelerator.backward if it is None.

        The batches up to the one at which Accelerate's gradients are complete are one step, and are repeated together.
        Raises as Retry.step().
        """

        def run(part: Any, weight: float) -> Any:
            loss = compute(part) * weight
            (backward or self._accelerator.backward)(loss)
            return loss.detach()

        return self.run_batch(run, batch, is_last=self._accelerator.sync_gradients)


def retry(
    accelerator: Any, model: Any, micro_batch: Optional[int] = None, weigh: Weigh = None, margin: float = 0.05
) -> AcceleratorRetry:
    """Returns a Retry for a loop with accelerate.Accelerator; `model` is what accelerator.prepare() returned.

    micro_batch, weigh and margin are those of sparkguard.retry(). Raises TypeError for DeepSpeed, FSDP and other sharded models.
    """
    return AcceleratorRetry(accelerator, model, micro_batch, weigh, margin)
