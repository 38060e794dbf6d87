"""Training that goes on with smaller micro-batches after a refusal: sparkguard.retry, and what the integrations rest on.

A step is all that leads to one call of the optimizer. It is run in micro-batches. When a request of a rank is refused, that
rank measures how memory grows with the samples, all ranks agree on the largest micro-batch that fits on each, and all repeat
the step from its begin: with the same data, the same random numbers and no gradients of the refused attempt. The weights of
the micro-batches add up to the batch's, so loss and gradients are those of the whole batch, up to rounding.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Callable, Literal, Optional, Union

from . import _batches, _guard, _phases, _ranks, _refusals
from ._state import Remember, StepState, free_memory

_logger = logging.getLogger("sparkguard")

# Errors of a program's own. A refusal that something caught and got over (a cache that was emptied) may have come just before.
_NEVER_REFUSALS = (AssertionError, AttributeError, ImportError, LookupError, NameError, NotImplementedError, TypeError, ValueError)

Weigh = Union[None, Literal["sum"], Callable[[Any], float]]
Run = Callable[[Any, float], Any]  # (micro-batch, weight) -> its weighted loss, after its backward


@dataclass
class _Outcome:
    """What became of an attempt on this rank."""

    loss: Any = None
    error: Optional[Exception] = None
    is_refusal: bool = False
    samples: int = 0  # of the micro-batch that was refused; 0 if it was no micro-batch
    held_bytes: int = 0  # at the refusal, before anything was given back
    peak_bytes: int = 0
    start: Optional[datetime] = None


@dataclass
class _Entry:
    """A batch that was given since the step began."""

    run: Run
    batch: Any


class Retry:
    """Runs the steps of a training, each again with smaller micro-batches if the guard refused a request of it. See retry().

    micro_batch  most samples that are run at a time; None until a refusal or if none was given
    retries      steps that were run again so far
    """

    def __init__(
        self,
        model: Any,
        micro_batch: Optional[int] = None,
        weigh: Weigh = None,
        margin: float = 0.05,
        slice_batch: Callable[[Any, int, int], Any] = _batches.slice_batch,
        batch_size: Callable[[Any], int] = _batches.batch_size,
        remember: Optional[Remember] = None,
    ) -> None:
        if micro_batch is not None and micro_batch < 1:
            raise ValueError(f"a micro-batch has one sample or more, not {micro_batch}")
        self.micro_batch = micro_batch
        self.retries = 0
        self._model, self.weigh, self._margin = model, weigh, margin
        self._slice, self._size, self._remember = slice_batch, batch_size, remember
        self._entries: list[_Entry] = []
        self._state: Optional[StepState] = None
        self._known_ranks: Optional[_ranks.Ranks] = None

    # ---- for users ----

    def step(self, compute: Callable[[Any], Any], batch: Any, backward: Optional[Callable[[Any], None]] = None) -> Any:
        """Runs compute(micro_batch), which returns a loss, and backward for all micro-batches of a batch. Returns the loss.

        The gradients are then those of the whole batch, added to those that the model had; over DistributedDataParallel they
        are the mean of the ranks'. The optimizer is the caller's to call. backward(loss) is loss.backward() if it is None.

        Raises what compute or backward raise: at once if it is no refusal, and if a single sample is refused. In another rank
        a RuntimeError says that a rank has failed. The model then has the gradients from before the step.
        """

        def run(part: Any, weight: float) -> Any:
            loss = compute(part) * weight
            loss.backward() if backward is None else backward(loss)
            return loss.detach()

        return self.run_batch(run, batch)

    # ---- for integrations ----

    def use(self, model: Any, weigh: Weigh) -> None:
        """Sets the model, as it is once it is wrapped, and what its micro-batches count."""
        if model is not self._model:
            self._model, self._known_ranks = model, None
        self.weigh = weigh

    def run_batch(self, run: Run, batch: Any, is_last: bool = True) -> Any:
        """Runs one of the batches whose gradients a step adds up, up to the last, which ends the step. Returns its loss.

        The batches of a step are kept, and run again if a later one is refused. All ranks call this equally often.
        """
        if not self._ranks.is_guarded:
            return self._run_parts(_Entry(run, batch), _Outcome())
        outcome = self._begin()
        self._entries.append(_Entry(run, batch))
        if outcome.error is None:
            outcome = self._attempt(self._entries[-1:])
        while not self._agree(outcome):
            outcome = self._attempt(self._entries)
        if is_last:
            self._ranks.add_gradients()
            if self._state:
                self._state.finish()
            self._entries, self._state = [], None
        return outcome.loss

    @property
    def is_guarded(self) -> bool:
        """Whether one of the ranks runs under the guard. All ranks ask together: the first time, they tell each other."""
        return self._ranks.is_guarded

    @property
    def _ranks(self) -> _ranks.Ranks:
        if self._known_ranks is None:
            self._known_ranks = _ranks.Ranks(self._model)
        return self._known_ranks

    def _begin(self) -> _Outcome:
        """Notes the state at the begin of a step. What is refused here has no batch that could be smaller."""
        if self._state:
            return _Outcome()
        try:
            self._state = StepState(self._model, self._remember)
        except Exception as error:
            return _Outcome(error=error)
        return _Outcome()

    # ---- one attempt, on this rank ----

    def _attempt(self, entries: list[_Entry]) -> _Outcome:
        """Runs batches in micro-batches. The outcome's loss is the last batch's. Calls no collective."""
        _refusals.forget()
        _phases.note_peaks()
        outcome = _Outcome(start=datetime.now())
        try:
            with self._ranks.local_gradients():
                for entry in entries:
                    outcome.loss = self._run_parts(entry, outcome)
        except Exception as error:
            is_refusal = _refusals.is_refusal(error)
            outcome.error, outcome.is_refusal = error, is_refusal and not isinstance(error, _NEVER_REFUSALS)
            now, peak = _guard.stats(), _phases.note_peaks()
            outcome.held_bytes = now["live_bytes"] if now else 0
            outcome.peak_bytes = peak["peak_bytes"] if peak else 0
            outcome.loss = None
        if outcome.is_refusal and outcome.error:
            _forget_frames(outcome.error)
        return outcome

    def _run_parts(self, entry: _Entry, outcome: _Outcome) -> Any:
        bounds = self._bounds(entry.batch)
        outcome.samples = bounds[0][1]
        if len(bounds) == 1:
            return entry.run(entry.batch, 1.0)
        parts = [self._slice(entry.batch, begin, end) for begin, end in bounds]
        total = None
        for part, weight in zip(parts, self._weights(parts, bounds)):
            if weight == 0:  # nothing in it counts, and its mean may be 0 / 0
                continue
            loss = entry.run(part, weight)
            total = loss if total is None else total + loss
        return total

    def _bounds(self, batch: Any) -> list[tuple[int, int]]:
        """Returns begin and end of each micro-batch. A batch that cannot be split is one, of an unknown size."""
        try:
            size = self._size(batch)
        except _batches.CannotSplit:
            if self.micro_batch is None:
                return [(0, 0)]
            raise
        return _batches.bounds(size, self.micro_batch)

    def _weights(self, parts: list[Any], bounds: list[tuple[int, int]]) -> list[float]:
        """Returns what each micro-batch's loss counts in the batch's."""
        if self.weigh == "sum":
            return [1.0] * len(parts)
        counts = [float(self.weigh(part)) for part in parts] if callable(self.weigh) else []
        if not sum(counts):
            counts = [float(end - begin) for begin, end in bounds]
        return [count / sum(counts) for count in counts]

    # ---- after a refusal ----

    def _agree(self, outcome: _Outcome) -> bool:
        """Returns whether all ranks ran the step. Else all have agreed on a smaller micro-batch, or this raises on all."""
        status, proposed = _ranks.FINE, _ranks.UNBOUNDED
        if outcome.error is not None:
            proposed = self._propose(outcome) if outcome.is_refusal else 0
            status = _ranks.REFUSED if proposed else _ranks.FAILED
        status, proposed = self._ranks.largest(status, -proposed)
        if status == _ranks.FINE:
            return True
        if status == _ranks.FAILED:
            if self._state:
                self._state.abandon()
            self._entries, self._state = [], None
            raise outcome.error or RuntimeError("another rank failed in this step")
        self._shrink(-proposed, outcome)
        return False

    def _shrink(self, micro_batch: int, outcome: _Outcome) -> None:
        refused = f"micro-batch {outcome.samples} was refused" if outcome.is_refusal else "another rank was refused"
        sizes = _batches.bounds(self._size(self._entries[-1].batch), micro_batch)
        self.micro_batch = sizes[0][1] - sizes[0][0]
        self.retries += 1
        name = f"micro-batch {sizes[0][1]}, accumulation {len(sizes)}"
        _logger.warning("%s; the step is run again with %s", refused, name)
        _guard.mark(name)
        self._restore()

    def _restore(self) -> None:
        if self._state:
            self._state.restore()
        free_memory()

    def _propose(self, outcome: _Outcome) -> int:
        """Returns what _smaller() does, or half if it fails: the other ranks wait for an answer."""
        try:
            return self._smaller(outcome)
        except Exception:
            _logger.debug("the slope of memory could not be measured", exc_info=True)
            return outcome.samples // 2

    def _smaller(self, outcome: _Outcome) -> int:
        """Returns the micro-batch that this rank proposes; 0 if there is no smaller one."""
        refused = outcome.samples
        if refused < 2:
            return 0
        self._restore()
        found, now, fit = _refusals.refusals(outcome.start), _guard.stats(), None
        if found and now and found[-1].usable_bytes is not None and refused > 2:
            left = _batches.left_bytes(found[-1].reason, found[-1].usable_bytes, now["reserve_bytes"] or 0)
            fit = self._measured_fit(refused, max(outcome.peak_bytes, outcome.held_bytes + left))
        return max(1, min(refused // 2 if fit is None else fit, refused - 1))

    def _measured_fit(self, refused: int, capacity_bytes: int) -> Optional[int]:
        """Returns what fits into a capacity, from the memory that two small micro-batches take; None if they do not tell."""
        measures = []
        for samples in _batches.probe_sizes(refused):
            took = self._measure(samples)
            if took is None:
                return max(1, samples // 2)
            measures.append((samples, took))
        now = _guard.stats()
        headroom = capacity_bytes - (now["live_bytes"] if now else 0)
        return _batches.largest_fit(measures[0], measures[1], headroom * (1 - self._margin))

    def _measure(self, samples: int) -> Optional[int]:
        """Runs a micro-batch whose outcome is dropped. Returns the bytes that it took at most; None if it was refused."""
        entry = self._entries[-1]
        before = _phases.note_peaks()
        after = None
        try:
            with self._ranks.local_gradients():
                entry.run(self._slice(entry.batch, 0, samples), 1.0)
            after = _phases.note_peaks()
        except Exception as error:
            _forget_frames(error)
        self._restore()
        return after["peak_bytes"] - before["live_bytes"] if before and after else None


def _forget_frames(error: BaseException) -> None:
    """Drops the local variables of the frames that an exception went through: they hold the tensors of the attempt."""
    seen: Optional[BaseException] = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__


def retry(
    model: Any,
    micro_batch: Optional[int] = None,
    weigh: Weigh = None,
    margin: float = 0.05,
    slice_batch: Callable[[Any, int, int], Any] = _batches.slice_batch,
    batch_size: Callable[[Any], int] = _batches.batch_size,
) -> Retry:
    """Returns a Retry for a training loop of PyTorch: its step() runs a batch, and again in smaller parts after a refusal.

        training = sparkguard.retry(model)
        for batch in loader:
            optimizer.zero_grad()
            loss = training.step(lambda part: loss_of(model, part), batch)
            optimizer.step()

    model        the module that trains; with several ranks wrapped by DistributedDataParallel, unless the caller averages
    micro_batch  samples at a time to begin with; None begins with the whole batch
    weigh        what a micro-batch counts in the batch. None: its samples, for a loss that is a mean over samples. A function
                 of a micro-batch: for a mean over something else, as tokens. "sum": for a loss that is a sum
    margin       part of what a step may take, beside what the process holds before it, that stays unused by the prediction
    slice_batch  slice_batch(batch, begin, end) returns some samples; by default of each array along its first dimension
    batch_size   returns the samples of a batch

    Raises ValueError for a micro_batch below 1. The first step raises TypeError for models whose ranks cannot repeat a step
    alone: sharded ones, SyncBatchNorm, communication hooks. Without the guard nothing is ever repeated.
    """
    return Retry(model, micro_batch, weigh, margin, slice_batch, batch_size)
