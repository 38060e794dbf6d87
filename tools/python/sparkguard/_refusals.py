"""Refusals of this process: as objects, and whether an exception is one.

Whether an exception is a refusal is counted, not parsed: frameworks give a refused request many types and texts. The guard
counts the refusals of each thread, and most exceptions rise in the thread whose request was refused. PyTorch's backward runs
in threads of its own, which Python does not know. Their refusals count as well while a program has one Python thread, and for a
torch.OutOfMemoryError, which is out of memory in any case. What the refused request was is read by sparkguard-report, from the
record that the guard keeps of this process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
import traceback
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Optional, Union

from . import _guard
from ._tools import find

_ANSWER = "__sparkguard_refusal__"  # attribute of an exception that was judged


@dataclass(frozen=True)
class Refusal:
    """A request that the guard refused. Sizes are bytes."""

    time: datetime  # with its time zone
    call: str  # the function that the program called: "malloc", "cudaMalloc"
    domain: str  # "heap", "mapped", "pinned", "managed" or "device"
    size_bytes: int
    reason: str  # "reserve", "limit", "floor" or "device"
    usable_bytes: Optional[int]  # at that time, by the rule that refused: the room in a limit, else with the reserve in it
    missing_bytes: Optional[int] = None  # how much more would have been enough for it: of the limit, the machine or the device
    limit_bytes: Optional[int] = None  # of the job
    limit_by: str = "option"  # what set it: "option", variable and file included, "set" (sparkguard --set), "bound" (the administrator)

    def __str__(self) -> str:
        word = "of room" if self.reason == "limit" else "usable"
        left = "" if self.usable_bytes is None else f", {size_text(self.usable_bytes)} {word}"
        return f"{self.call} of {size_text(self.size_bytes)} refused{left} ({self.reason})"


class _Seen(threading.local):
    """How many refusals of the thread belong to exceptions that were judged, or to what came before."""

    count = 0


_seen = _Seen()
_seen_of_process = 0  # the same for all threads together


def size_text(size: int) -> str:
    """Returns a number of bytes as people read it: "9.1 GiB"."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _size_up(size: int) -> str:
    """Returns a number of bytes as people read it, never less of them: "9.2 GiB"."""
    unit = min(max(size.bit_length() - 1, 0) // 10, 5)
    tenths = -(-size * 10 // (1 << 10 * unit))
    if tenths >= 10240 and unit < 5:
        unit, tenths = unit + 1, 10
    return f"{size} B" if unit == 0 else f"{tenths // 10}.{tenths % 10} {'BKMGTP'[unit]}iB"


def _limit_up(size: int, limit: int) -> str:
    """The same for a limit that must suffice where another did not: in a smaller unit where both would read alike."""
    text = _size_up(size)
    if text != size_text(limit) or size < 1024:
        return text
    unit = "BKMGTP".index(text.split()[1][0]) - 1
    return f"{-(-size // (1 << 10 * unit))} {'BKMGTP'[unit]}{'iB' if unit else ''}"


def _limit_setting(refusal: Refusal) -> tuple[str, str]:
    """Returns what stands before and after a limit where it was set.

    By an option, which the launcher hands on, by the user's file of defaults, by the variable, or while the job ran.
    """
    if refusal.limit_by == "set":
        return f"sparkguard --set {os.environ.get('SPARKGUARD_JOB', 'JOB')} limit=", ""
    first, own = os.environ.get("SPARKGUARD_JOB_FIRST", ""), os.environ.get("SPARKGUARD_LIMIT")
    if own and first.endswith(f" --limit={own}"):
        return "--limit ", ""
    folder = "$XDG_CONFIG_HOME" if os.environ.get("XDG_CONFIG_HOME", "").startswith("/") else "~/.config"
    file = f"{folder}/sparkguard.conf"
    is_in_file = first.endswith(f" sparkguard.conf:limit={own}") if own else os.path.exists(os.path.expandvars(os.path.expanduser(file)))
    return ("limit=", f" in {file}") if is_in_file else ("SPARKGUARD_LIMIT=", "")


def _next_step(refusal: Refusal) -> str:
    """Returns what to try next, with what would have been enough, as the library's own second line has it."""
    missing, limit = refusal.missing_bytes, refusal.limit_bytes
    if refusal.reason == "limit":
        before, after = _limit_setting(refusal)
        bound = "a smaller request, or ask who keeps /etc/sparkguard.conf" if refusal.limit_by == "bound" else None
        if missing is None or limit is None:
            return bound or f"a larger {before[:-1]}{after}"
        enough = _limit_up(limit + missing, limit)
        number, unit = enough.split()
        return f"{bound or before + number + unit[0] + after}; a limit of {enough} would have been enough for this request"
    is_device = refusal.reason == "device"
    step = "a smaller batch" if is_device else "a smaller batch, or end another program"
    if not missing:
        return step
    return f"{step}; {_size_up(missing)} more of the {'device' if is_device else 'machine'}'s memory would have been enough for this request"


def forget() -> None:
    """Lets no refusal of this thread up to now explain a later exception. The begin of a phase does that."""
    _was_refused(False)


def _was_refused(counts_all_threads: bool) -> bool:
    """Returns whether this thread, or any thread, was refused a request since the last call of this thread."""
    global _seen_of_process
    thread, process = _guard.refused_counts()
    own, any_thread = thread > _seen.count, process > _seen_of_process
    _seen.count, _seen_of_process = thread, process
    return own or (any_thread and counts_all_threads)


def _is_torchs(error: BaseException) -> bool:
    kind = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
    return isinstance(kind, type) and isinstance(error, kind)


def is_refusal(error: BaseException) -> bool:
    """Returns whether the guard refused a request while this exception came to be, whatever its type or text.

    True if a request of the calling thread was refused since the last exception that was judged here, or since the begin of
    the thread's last phase. So call it in the thread that caught the exception, for each exception that may be a refusal. A
    refusal in a thread that is not Python's, as PyTorch's backward has them on a GPU, counts for torch.OutOfMemoryError, and for
    any exception while the program has one Python thread. The answer for an exception stays. Without the guard it is False.
    """
    known = getattr(error, _ANSWER, None)
    if known is None:
        known = _was_refused(threading.active_count() == 1 or _is_torchs(error))
        try:
            setattr(error, _ANSWER, known)
        except (AttributeError, TypeError):  # of a type without attributes
            pass
    return bool(known)


def place_of(error: BaseException) -> Optional[str]:
    """Returns "train.py:31", the innermost line of the program itself that an exception went through; None without one.

    Lines of installed packages and of Python's own library count only where there is no other.
    """
    own = os.path.dirname(__file__)
    others = tuple(os.path.join(folder, "") for folder in {own, *map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))})
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    installed = re.compile(r"/(site|dist)-packages/")  # Debian has more of these folders than sysconfig knows
    of_program = [each for each in lines if not each[0].startswith((*others, "<frozen ")) and not installed.search(each[0])] or lines
    return f"{os.path.basename(of_program[-1][0])}:{of_program[-1][1]}" if of_program else None


def refusals(since: Union[datetime, float, None] = None) -> list[Refusal]:
    """Returns the last refusals of this process, at most 64, the oldest first; those at or after a time if it is given.

    `since` is a datetime, or seconds as time.time() has them. Runs sparkguard-report, which takes some milliseconds. Returns
    nothing without the guard, without the tool, or if the statistics cannot be read.
    """
    if since is not None:
        since = (since if isinstance(since, datetime) else datetime.fromtimestamp(since)).astimezone()
        since = since.replace(microsecond=since.microsecond // 1000 * 1000)  # the record has milliseconds
    found = _recorded()
    return [each for each in found if since is None or each.time >= since]


def explain(error: BaseException) -> Optional[str]:
    """Returns two lines: what was refused, by which rule and in which line of the program; "try:" and the next step.

    None if the exception is no refusal.
    """
    if not is_refusal(error):
        return None
    place = place_of(error)
    where, found = f" at {place}" if place else "", refusals()
    if not found:
        return f"the guard refused a request{where}\ntry: sparkguard-report {os.getpid()}"
    return f"{found[-1]}{where}; see sparkguard-report {os.getpid()}\ntry: {_next_step(found[-1])}"


def _limit_by(job: dict[str, Any]) -> str:
    """Returns what set the limit of a job."""
    if job.get("limit_bounded_by"):
        return "bound"
    return "set" if job["set_limit_bytes"] and job["set_limit_bytes"] == job["limit_bytes"] else "option"


def _refusal(entry: dict[str, Any], limit: Optional[int], limit_by: str) -> Refusal:
    time = datetime.fromisoformat(entry["time"].replace("Z", "+00:00"))
    fields = {name: entry[name] for name in ("call", "domain", "size_bytes", "reason", "usable_bytes")}
    return Refusal(time, **fields, missing_bytes=entry.get("missing_bytes"), limit_bytes=limit, limit_by=limit_by)


def _recorded() -> list[Refusal]:
    tool = find("sparkguard-report") if _guard.active() else None
    if tool is None:
        return []
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        done = subprocess.run(
            [tool, "--json", str(os.getpid())], env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=30
        )
        jobs = json.loads(done.stdout or b'{"jobs": []}')["jobs"]
    except (OSError, subprocess.SubprocessError, ValueError, MemoryError):
        return []
    # Of the processes that had this number, the one that runs is this.
    own = [(job, each) for job in jobs for each in job["processes"] if each["state"] == "running"]
    if not own or own[-1][1]["mode"] == "observe":
        return []
    job, process = own[-1]
    return [_refusal(entry, job["limit_bytes"], _limit_by(job)) for entry in process["refusals"]]
