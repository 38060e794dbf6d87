"""sparkguard.retry for the Trainer of Transformers.

    trainer = Trainer(...)
    sparkguard.transformers.retry(trainer)
    trainer.train()

The Trainer's loader, arguments and checkpoints stay as they are: each of its batches is run in micro-batches, whose number is
what gradient accumulation grows by. The mean over tokens that the Trainer forms over a step is the same.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager, nullcontext
from typing import Any, Iterator, Optional

from . import _guard
from ._retry import Retry, Weigh
from ._state import Remember


def retry(
    trainer: Any,
    micro_batch: Optional[int] = None,
    margin: float = 0.05,
    remember: Optional[Remember] = None,
    has_local_metrics: bool = False,
) -> Retry:
    """Lets a transformers.Trainer repeat a step that was refused. Call it before train(). Returns the Retry, for its figures.

    micro_batch, margin  as for sparkguard.retry()
    remember             notes a state of the caller that a repeated step must find again, and returns the function that puts it back
    has_local_metrics    metrics that compute_loss gathers from all ranks become those of the rank

    Raises TypeError for trainers whose ranks cannot repeat a step alone (DeepSpeed, FSDP, torch.nn.DataParallel), and for models
    of which it is not known how the losses of micro-batches add up: such as take num_items_in_batch and are no causal language
    models. Heads for classification take it, too, and most of them do not use it.
    """
    is_sharded = getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False)
    if _guard.active() and (is_sharded or trainer.args.n_gpu > 1):
        raise TypeError("sparkguard.retry takes one GPU per rank, with DistributedDataParallel or alone")
    if _guard.active() and _is_unknown(trainer):
        raise TypeError(f"sparkguard.retry does not know how losses of {type(trainer.model).__name__} add up; set compute_loss_func")
    found = Retry(trainer.model, micro_batch, margin=margin, remember=remember)
    train, weighted = trainer.training_step, _Weighted(trainer)

    @functools.wraps(train)
    def training_step(model: Any, inputs: Any, num_items_in_batch: Any = None, **more: Any) -> Any:
        found.use(model, _weigh(trainer, num_items_in_batch))

        def run(part: Any, weight: float) -> Any:
            is_local = has_local_metrics and found.is_guarded
            with weighted.by(weight), _local_metrics(trainer.accelerator) if is_local else nullcontext():
                return train(model, dict(part), num_items_in_batch, **more)

        return found.run_batch(run, inputs, is_last=trainer.accelerator.sync_gradients)

    trainer.training_step = training_step
    return found


class _Weighted:
    """Multiplies what a trainer's compute_loss returns, in training only."""

    def __init__(self, trainer: Any) -> None:
        self._weight, self._was_called = 1.0, False
        compute = trainer.compute_loss

        @functools.wraps(compute)
        def compute_loss(*arguments: Any, **named: Any) -> Any:
            found = compute(*arguments, **named)
            self._was_called = True
            if self._weight == 1.0:
                return found
            return (found[0] * self._weight, *found[1:]) if isinstance(found, tuple) else found * self._weight

        trainer.compute_loss = compute_loss

    @contextmanager
    def by(self, weight: float) -> Iterator[None]:
        self._weight, self._was_called = weight, False
        try:
            yield
            if weight != 1.0 and not self._was_called:
                raise TypeError("the trainer's training_step does not call compute_loss, so its micro-batches cannot be weighed")
        finally:
            self._weight = 1.0


def _is_unknown(trainer: Any) -> bool:
    """Returns whether a loss may ignore the items of the whole step although its model takes their number."""
    has_function = getattr(trainer, "compute_loss_func", None) is not None
    names = {kind.__name__ for kind in type(trainer.model).__mro__}
    is_causal = any("CausalLM" in name or name.endswith("LMHeadModel") for name in names)
    return bool(getattr(trainer, "model_accepts_loss_kwargs", False)) and not has_function and not is_causal


def _weigh(trainer: Any, items: Any) -> Weigh:
    """Returns how losses of micro-batches add up: as they are where the loss is divided by the items of the whole step."""
    is_scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
    if is_scaled is None:
        is_scaled = trainer.model_accepts_loss_kwargs or getattr(trainer, "compute_loss_func", None) is not None
        is_scaled = is_scaled and items is not None
    return "sum" if is_scaled else functools.partial(_count_labels, is_causal="ForCausalLM" in type(trainer.model).__name__)


def _count_labels(part: Any, is_causal: bool) -> float:
    """Returns the tokens that a mean over tokens counts; 0 where the batch has no labels of tokens."""
    labels = part.get("labels") if hasattr(part, "get") else None
    if labels is None or labels.ndim < 2:
        return 0.0
    return float((labels[:, 1:] if is_causal else labels).ne(-100).sum())


@contextmanager
def _local_metrics(accelerator: Any) -> Iterator[None]:
    """Lets metrics that a trainer gathers in its compute_loss be those of this rank: a rank that is refused gathers nothing."""
    names = ("gather", "gather_for_metrics") if accelerator.num_processes > 1 else ()
    for name in names:
        setattr(accelerator, name, lambda values, **_: values[None] if getattr(values, "ndim", 1) == 0 else values)
    try:
        yield
    finally:
        for name in names:
            delattr(accelerator, name)
