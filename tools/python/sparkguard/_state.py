"""What a repeated step must find as the refused one did: random numbers, gradients, and what normalisation layers have counted."""

from __future__ import annotations

import random
import sys
from typing import Any, Callable, Optional

Remember = Callable[[], Callable[[], None]]  # notes a state of the caller's, and returns what puts it back


class StepState:
    """The state of a process as it was when a step began. Takes the gradients out of a model for that time.

    Gradients that the model has already, from earlier steps, are set aside and not copied: finish() adds the new ones to them.
    """

    def __init__(self, model: Any, remember: Optional[Remember] = None) -> None:
        import torch

        self._torch = torch
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        kind = torch.nn.modules.batchnorm._NormBase
        norms = [each for each in model.modules() if isinstance(each, kind) and each.track_running_stats]
        self._buffers = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers(recurse=False)]
        self._undo = remember() if remember else None
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None
        self._cpu = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._earlier = [each.grad for each in self._parameters]
        self._set_gradients([None] * len(self._parameters))

    def _set_gradients(self, gradients: list[Any]) -> None:
        for each, gradient in zip(self._parameters, gradients):
            each.grad = gradient

    def restore(self) -> None:
        """Puts everything back to the step's begin, and drops the gradients that it has made since."""
        self._set_gradients([None] * len(self._parameters))
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)  # type: ignore[attr-defined,unused-ignore]
        self._torch.set_rng_state(self._cpu)
        if self._devices:
            self._torch.cuda.set_rng_state_all(self._devices)
        if self._undo:
            self._undo()
        with self._torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)

    def finish(self) -> None:
        """Adds the step's gradients to those from before it."""
        for each, earlier in zip(self._parameters, self._earlier):
            if earlier is not None:
                each.grad = earlier if each.grad is None else earlier.add_(each.grad)
        self._earlier = [None] * len(self._parameters)

    def abandon(self) -> None:
        """Drops the step's gradients: the model has those from before it."""
        self._set_gradients(self._earlier)


def free_memory() -> None:
    """Gives back what the allocators keep of a refused attempt, whose objects are gone."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
