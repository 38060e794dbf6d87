"""sparkguard.retry for Lightning.

    trainer = Trainer(callbacks=[sparkguard.lightning.retry()])
    trainer.fit(module, loader)

Each batch is run in micro-batches, backward included, where Lightning calls training_step; its own backward then finds the
gradients. So training_step is called once for each micro-batch. What it logs with on_step is the last one's; of a dictionary that
it returns, entries beside "loss" are the last one's, too.
"""

from __future__ import annotations

import sys
from typing import Any, Mapping, Optional

from . import _guard
from ._retry import Retry, Weigh


def retry(micro_batch: Optional[int] = None, weigh: Weigh = None, margin: float = 0.05) -> Any:
    """Returns a callback of Lightning that lets a module repeat a step that was refused; its `.retry` is the Retry.

    micro_batch, weigh and margin are those of sparkguard.retry(). fit() raises TypeError for modules with manual optimization
    and for sharded models.
    """
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
    hooks = {"on_train_start": _on_train_start, "on_train_end": _on_train_end, "on_exception": _on_exception}
    callback = type("SparkguardRetry", (Callback,), hooks)()
    callback.retry = Retry(None, micro_batch, weigh, margin)
    return callback


def _on_train_start(callback: Any, trainer: Any, module: Any) -> None:
    if not module.automatic_optimization:
        if not _guard.active():
            return
        raise TypeError("sparkguard.lightning.retry needs automatic optimization; use sparkguard.retry in training_step")
    callback.retry.use(trainer.strategy.model, callback.retry.weigh)
    if not callback.retry.is_guarded:
        return
    callback._steps = _Steps(callback.retry, weigh=callback.retry.weigh, trainer=trainer, module=module)


def _on_train_end(callback: Any, trainer: Any, module: Any) -> None:
    if hasattr(callback, "_steps"):
        callback._steps.detach()


def _on_exception(callback: Any, trainer: Any, module: Any, error: BaseException) -> None:
    if hasattr(callback, "_steps"):
        callback._steps.detach()


class _Steps:
    """Stands before training_step and backward of Lightning's strategy, whatever the strategy does behind them."""

    def __init__(self, found: Retry, weigh: Weigh, trainer: Any, module: Any) -> None:
        self._retry, self._weigh, self._trainer, self._module = found, weigh, trainer, module
        self._strategy = trainer.strategy
        self._train = self._strategy.training_step
        self._gradients: list[Any] = []
        self._strategy.training_step, self._strategy.backward = self._training_step, self._backward

    def detach(self) -> None:
        """Gives the strategy its own functions back."""
        for name in ("training_step", "backward"):
            self._strategy.__dict__.pop(name, None)

    def _training_step(self, batch: Any, *more: Any) -> Any:
        """Runs a batch with its backward. Returns its loss, without a graph. `more` begins with the batch's index if the module's
        training_step takes it."""
        batch_index = more[0] if more and isinstance(more[0], int) else self._trainer.fit_loop.epoch_loop.batch_idx
        accumulation, parameters = self._trainer.accumulate_grad_batches, list(self._module.parameters())
        if batch_index % accumulation == 0:  # Lightning drops the last step's gradients between training_step and backward
            for each in parameters:
                each.grad = None
        entries: dict[str, Any] = {}

        def run(part: Any, weight: float) -> Any:
            found = self._train(part, *more)
            if found is None:
                raise TypeError("training_step returned None; sparkguard.lightning.retry cannot skip a batch")
            entries.update(found if isinstance(found, Mapping) else {"loss": found})
            loss = entries.pop("loss") * weight
            scaled = self._strategy.precision_plugin.pre_backward(loss / accumulation, self._module)
            self._module.backward(scaled)
            return loss.detach()

        is_last = (batch_index + 1) % accumulation == 0 or self._trainer.is_last_batch
        self._retry.use(self._strategy.model, self._weigh)
        loss = self._retry.run_batch(run, batch, is_last=is_last).requires_grad_()
        self._gradients = [(each, each.grad) for each in parameters]
        for each in parameters:
            each.grad = None
        return {"loss": loss, **entries} if entries else loss

    def _backward(self, loss: Any, optimizer: Any, *more: Any, **named: Any) -> Any:
        """Puts the gradients in place that _training_step has found."""
        for each, gradient in self._gradients:
            each.grad = gradient
        self._gradients = []
        return self._strategy.precision_plugin.post_backward(loss, self._module)
