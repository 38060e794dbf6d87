"""sparkguard.retry for the trainers of TRL that train on batches of a data set: SFT, DPO, reward, KTO.

    trainer = SFTTrainer(...)
    sparkguard.trl.retry(trainer)
    trainer.train()

With several ranks, the metrics that TRL gathers while it computes a loss are those of the rank.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Optional

from . import _guard, transformers
from ._retry import Retry

_ONLINE = ("_generate_and_score_completions", "_generate_completions", "_buffered_inputs")
_METRICS = ("_metrics", "_total_train_tokens")


def retry(trainer: Any, micro_batch: Optional[int] = None, margin: float = 0.05) -> Retry:
    """Lets a trainer of TRL repeat a step that was refused, as sparkguard.transformers.retry() does.

    What the refused attempt has added to the trainer's metrics is taken out again. Raises TypeError also for trainers that
    generate what they train on (GRPO, RLOO): their batches are prompts, and no part of a batch stands alone.
    """
    if _guard.active() and any(hasattr(trainer, name) for name in _ONLINE):
        raise TypeError(f"{type(trainer).__name__} generates what it trains on; sparkguard.retry cannot split its batches")

    def remember() -> Callable[[], None]:
        before = {name: copy.deepcopy(getattr(trainer, name)) for name in _METRICS if hasattr(trainer, name)}

        def undo() -> None:
            for name, value in before.items():
                setattr(trainer, name, copy.deepcopy(value))

        return undo

    return transformers.retry(trainer, micro_batch, margin, remember)
