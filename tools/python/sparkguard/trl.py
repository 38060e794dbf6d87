"""sparkguard.retry for TRL's SFTTrainer.

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

_METRICS = ("_metrics", "_total_train_tokens")


def retry(trainer: Any, micro_batch: Optional[int] = None, margin: float = 0.05) -> Retry:
    """Lets a trainer of TRL repeat a step that was refused, as sparkguard.transformers.retry() does.

    What the refused attempt has added to the trainer's metrics is taken out again. Raises TypeError for other trainers than
    SFTTrainer. A batch of DPO and reward trainers has its chosen rows before its rejected ones, KTO's loss gathers from all
    ranks, and GRPO and RLOO generate what they train on: no part of such a batch stands alone.
    """
    if _guard.active() and not any(kind.__name__ == "SFTTrainer" for kind in type(trainer).__mro__):
        raise TypeError(f"sparkguard.trl.retry takes an SFTTrainer; it cannot split the batches of {type(trainer).__name__}")

    def remember() -> Callable[[], None]:
        before = {name: copy.deepcopy(getattr(trainer, name)) for name in _METRICS if hasattr(trainer, name)}

        def undo() -> None:
            for name, value in before.items():
                setattr(trainer, name, copy.deepcopy(value))

        return undo

    return transformers.retry(trainer, micro_batch, margin, remember, has_local_metrics=True)
