"""How a batch is split into micro-batches, and which size fits by the measured slope of memory over size. Knows no framework.

A sample is one entry along the first dimension. The micro-batches of one batch are as equal as possible.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional


class CannotSplit(TypeError):
    """A batch has no first dimension that all its arrays share."""


def is_array(value: object) -> bool:
    """Returns whether a value is an array with a first dimension: of PyTorch, NumPy, JAX or of another library like these."""
    shape = getattr(value, "shape", None)
    return shape is not None and hasattr(value, "__getitem__") and len(shape) > 0


def _lengths(batch: object) -> set[int]:
    """Returns the first dimensions of all arrays in a batch."""
    if is_array(batch):
        return {int(batch.shape[0])}  # type: ignore[attr-defined]
    if isinstance(batch, Mapping):
        return set().union(*map(_lengths, batch.values()))
    if isinstance(batch, (list, tuple)):
        return set().union(*map(_lengths, batch))
    return set()


def batch_size(batch: object) -> int:
    """Returns the number of samples. Raises CannotSplit if the arrays of the batch do not agree about it."""
    lengths = _lengths(batch)
    if len(lengths) != 1:
        found = sorted(lengths) or "missing"
        raise CannotSplit(f"first dimensions of the arrays are {found}; give a function that splits the batch")
    return lengths.pop()


def slice_batch(batch: Any, begin: int, end: int) -> Any:
    """Returns samples begin to end - 1. A list without arrays is sliced if it has one entry per sample; other values stay."""
    return _slice(batch, begin, end, batch_size(batch))


def _slice(batch: Any, begin: int, end: int, size: int) -> Any:
    if is_array(batch):
        return batch[begin:end]
    if isinstance(batch, Mapping):
        return {key: _slice(value, begin, end, size) for key, value in batch.items()}
    if not isinstance(batch, (list, tuple)):
        return batch
    if not _lengths(batch) and len(batch) == size:
        return batch[begin:end]
    parts = [_slice(value, begin, end, size) for value in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def part_count(size: int, largest: Optional[int]) -> int:
    """Returns into how many micro-batches of at most `largest` samples a batch is split; None is no bound.

    The number divides the size, so that micro-batch times number is the batch, if that takes at most twice the fewest.
    """
    if largest is None or size <= largest:
        return 1
    fewest = -(-size // largest)
    return next((count for count in range(fewest, min(2 * fewest, size) + 1) if size % count == 0), fewest)


def bounds(size: int, largest: Optional[int]) -> list[tuple[int, int]]:
    """Returns begin and end of each micro-batch of a batch; the longer ones come first."""
    count = part_count(size, largest)
    short, longer = divmod(size, count)
    begins = [short * index + min(index, longer) for index in range(count + 1)]
    return list(zip(begins, begins[1:]))


def left_bytes(reason: str, usable_bytes: int, reserve_bytes: int) -> int:
    """Returns what could still be granted when a request was refused, by the figures of its Refusal and the machine's reserve.

    Usable memory has the reserve in it, except under a limit. What a card keeps for its own reserve is not known here: nothing
    was left.
    """
    if reason == "device":
        return 0
    return usable_bytes if reason == "limit" else max(0, usable_bytes - reserve_bytes)


def probe_sizes(refused: int) -> tuple[int, int]:
    """Returns the two sizes whose memory is measured after a size of three or more samples was refused."""
    small = max(1, refused // 8)
    return small, max(small + 1, refused // 4)


def largest_fit(small: tuple[int, int], large: tuple[int, int], headroom_bytes: float) -> Optional[int]:
    """Returns the samples that fit into headroom_bytes, by the line through two measures: (samples, bytes).

    At least 1. None if the measures show no slope.
    """
    slope = (large[1] - small[1]) / (large[0] - small[0])
    if slope <= 0:
        return None
    fixed_bytes = small[1] - slope * small[0]
    return max(1, int((headroom_bytes - fixed_bytes) // slope))
