"""What the ranks of a PyTorch training do together around a step that one of them may be refused: agree, then add gradients.

While micro-batches run, DistributedDataParallel calls no collective: gradients stay local. So a rank that is refused in the
middle of its backward lets none wait. Behind each step all ranks call the same collectives in the same order, whatever became
of it on each. Sharded models (FSDP, DeepSpeed) and SyncBatchNorm call collectives in their forward and are not taken.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from . import _guard

FINE, REFUSED, FAILED = 0, 1, 2  # what became of a step on a rank; the largest counts
UNBOUNDED = 1 << 40  # samples

_NOT_TAKEN = {"FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine", "SyncBatchNorm"}


class Ranks:
    """The ranks of torch.distributed that train a model; alone if it is not initialised when the first step begins.

    is_alone    there is one rank
    is_guarded  one of them runs under the guard
    """

    def __init__(self, model: Any) -> None:
        import torch

        distributed = torch.distributed
        self._torch, self._distributed = torch, distributed
        self.is_alone = not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)
        self._parallel: list[Any] = []
        self._group = None
        if not self.is_alone and "gloo" not in distributed.get_backend():
            # NCCL takes no tensor of the CPU, and one on the GPU would wait for all that is queued there.
            self._group = distributed.new_group(backend="gloo")
        self.is_guarded = bool(self.largest(int(_guard.active()))[0])
        if self.is_guarded:
            self._take(model)

    def _take(self, model: Any) -> None:
        """Notes what adds gradients. Raises TypeError if a rank cannot run a step alone: on all ranks, which have one model."""
        names = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
        if "DeepSpeedEngine" in names:
            raise TypeError("DeepSpeedEngine has a backward of its own; sparkguard.retry cannot repeat its steps")
        if self.is_alone:
            return
        if names & _NOT_TAKEN:
            raise TypeError(f"{', '.join(sorted(names & _NOT_TAKEN))} calls collectives while a step runs: no rank can repeat it")
        kind = self._torch.nn.parallel.DistributedDataParallel
        self._parallel = [module for module in model.modules() if isinstance(module, kind)]
        if any(getattr(module, "static_graph", False) for module in self._parallel):
            raise TypeError("DistributedDataParallel with static_graph adds gradients in its first backward; no rank can repeat it alone")
        if any(getattr(module, "_comm_hooks", None) for module in self._parallel):
            raise TypeError("gradients are added without DistributedDataParallel's communication hooks; this model has one")

    def largest(self, *values: int) -> list[int]:
        """Returns the largest of each value over all ranks."""
        if self.is_alone:
            return list(values)
        answer = self._torch.tensor(values, dtype=self._torch.int64)
        self._distributed.all_reduce(answer, self._distributed.ReduceOp.MAX, group=self._group)
        return [int(value) for value in answer.tolist()]

    @contextmanager
    def local_gradients(self) -> Iterator[None]:
        """Lets neither forward nor backward of DistributedDataParallel call a collective."""
        before = [module.require_backward_grad_sync for module in self._parallel]
        for module in self._parallel:
            module.require_backward_grad_sync = module.require_forward_param_sync = False
        try:
            yield
        finally:
            for module, value in zip(self._parallel, before):
                module.require_backward_grad_sync = value
                module.require_forward_param_sync = False

    def add_gradients(self) -> None:
        """Replaces each gradient by its mean over the ranks, and gives all ranks the buffers of rank 0. All ranks call it."""
        for module in self._parallel:
            parameters = [each for each in module.module.parameters() if each.requires_grad]
            self._complete(parameters)
            group, count = module.process_group, self._distributed.get_world_size(module.process_group)
            waits = [
                self._distributed.all_reduce(each.grad.div_(count), group=group, async_op=True)
                for each in parameters
                if each.grad is not None
            ]
            if module.broadcast_buffers:
                first = self._distributed.get_global_rank(group, 0)
                waits += [self._distributed.broadcast(each, first, group=group, async_op=True) for each in module.buffers()]
            for wait in waits:
                wait.wait()

    def _complete(self, parameters: list[Any]) -> None:
        """Gives a parameter that has a gradient on another rank one of zeros. Raises on all ranks if one has no memory for it."""
        missing = any(each.grad is None for each in parameters)
        if not self.largest(int(missing))[0]:
            return
        present = self.largest(*(int(each.grad is not None) for each in parameters))
        error = None
        try:
            for each, is_present in zip(parameters, present):
                if is_present and each.grad is None:
                    each.grad = self._torch.zeros_like(each)
        except Exception as caught:
            error = caught
        if self.largest(int(error is not None))[0]:
            raise error or RuntimeError("another rank had no memory for its gradients")
