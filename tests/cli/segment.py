"""Writes segment files byte by byte, good ones and bad ones, as the library would or never would.

    segment = Segment(layout, pid=4711, job="train", command="python train.py")
    segment.domain("heap", granted=5 << 30, peak=6 << 30)
    segment.write(directory)

Values go by the offsets that layout.c prints; a test may set any field to anything.
"""

import contextlib
import fcntl
import json
import struct
import subprocess
from pathlib import Path

from lib import ledger

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

MAGIC = 0x445241474B525053
UNKNOWN = (1 << 64) - 1
STATES = {"running": 1, "exited": 2, "replaced": 3, "killed": 4}
REASONS = {"reserve": 1, "limit": 2, "floor": 3, "device": 4}
GUARDING, OBSERVE, CUDA, SHARING, WATCHED = 1, 2, 4, 8, 16
DOMAINS, FILES, ORIGINS = ("heap", "mapped", "pinned", "managed", "device"), 64, 4
START_NS = 1795180000 * 10**9  # 2026-11-20T13:06:40Z


def read_layout(scratch):
    program = Path(scratch) / "layout"
    source = [str(HERE / "layout.c"), "-I", str(ROOT / "include"), "-o", str(program)]
    subprocess.run(["cc", "-std=gnu11", *source], check=True)
    return json.loads(subprocess.run([str(program)], check=True, capture_output=True).stdout)


class Segment:
    def __init__(self, layout, pid=4711, state="exited", job="train", command="python train.py", **fields):
        self.layout = layout
        self.records = 64
        self.name = f"{pid}-{pid:016x}.segment"
        self.data = bytearray(layout["sizeof.sg_segment"][1] + self.records * layout["sizeof.sg_record"][1])
        self.refusals = self.phases = self.events = 0
        defaults = {
            "slot.magic": MAGIC,
            "slot.abi_version": layout["abi_version"][0],
            "slot.pid": pid,
            "slot.start_ticks": 1000 + pid,
            "slot.state": STATES[state],
            "slot.flags": GUARDING | SHARING,
            "slot.job_hash": ledger.hash_of(job),
            "segment_bytes": len(self.data),
            "record_capacity": self.records,
            "record_used": 1,
            "started_time_ns": START_NS,
            "ended_time_ns": START_NS + 90 * 10**9 if state in ("exited", "replaced") else 0,
            "exit_code": 0 if state == "exited" else -1,
            "signal": -1,
            "job": job,
            "command": command,
        }
        for field, value in {**defaults, **fields}.items():
            self.set(field, value)
        for field in ("time_ns", "reserve_bytes", "floor_bytes", "cgroup_limit_bytes", "unified"):
            self.put("machine", 0, "sg_machine", field, -1)

    def _store(self, offset, size, value):
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            self.data[offset : offset + size] = value[:size].ljust(size, b"\0")
        else:
            self.data[offset : offset + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")

    def set(self, field, value):
        self._store(*self.layout["sg_segment." + field], value)
        return self

    def put(self, array, index, struct, member, value):
        base = self.layout["sg_segment." + array][0]
        stride = self.layout.get("sizeof." + struct, [0, 0])[1]
        offset, size = self.layout[f"{struct}.{member}"]
        self._store(base + index * stride + offset, size, value)
        return self

    def machine(self, **members):
        for member, value in members.items():
            self.put("machine", 0, "sg_machine", member, value)
        return self

    def device(self, index, name, total, live, reserve_mib=0):
        known = {"name": name, "total_bytes": total, "live_bytes": live, "is_known": 1, "reserve_mib": reserve_mib}
        for member, value in known.items():
            self.put("device", index, "sg_device", member, value)
        return self

    def domain(self, name, granted=0, peak=0, allocations=0, frees=0, refused=0, refused_bytes=0):
        index = self.layout["domain." + name][0]
        members = {
            "granted_bytes": granted,
            "peak_bytes": peak,
            "allocations": allocations,
            "frees": frees,
            "refused_count": refused,
            "refused_bytes": refused_bytes,
        }
        for member, value in members.items():
            self.put("domain", index, "sg_domain_counters", member, value)
        return self

    def peak(self, time_ns=START_NS + 60 * 10**9, index=0, **parts):
        self.set("peak_index", index)
        self.set("peak_seen_bytes", sum(parts.values()))
        self.put("peak", index, "sg_peak", "time_ns", time_ns)
        self.put("peak", index, "sg_peak", "total_bytes", sum(parts.values()))
        offset = self.layout["sg_peak.domain_bytes"][0] + index * self.layout["sizeof.sg_peak"][1]
        base = self.layout["sg_segment.peak"][0]
        for name, value in parts.items():
            self._store(base + offset + 8 * self.layout["domain." + name][0], 8, value)
        return self

    def record(self, index, credit=0, allocations=0, frees=0):
        base = self.layout["sizeof.sg_segment"][1] + index * self.layout["sizeof.sg_record"][1]
        for member, value in {"credit_bytes": credit, "allocations": allocations, "frees": frees}.items():
            offset, size = self.layout["sg_record." + member]
            self._store(base + offset, size, value)
        return self

    def _ring(self, array, struct, room, number, members):
        for member, value in {"sequence": number + 1, **members}.items():
            self.put(array, number % room, struct, member, value)

    def refusal(self, call, domain, size, reason, usable=UNKNOWN, time_ns=START_NS + 61 * 10**9):
        members = {
            "time_ns": time_ns,
            "size_bytes": size,
            "usable_bytes": usable,
            "domain": self.layout["domain." + domain][0],
            "reason": REASONS[reason],
            "call": call,
        }
        self._ring("refusal", "sg_refusal", 64, self.refusals, members)
        self.refusals += 1
        return self.set("refusal_count", self.refusals)

    def phase(self, name, live, peak, time_ns=START_NS + 10**9):
        members = {"time_ns": time_ns, "live_bytes": live, "peak_bytes": peak, "name": name}
        self._ring("phase", "sg_phase", 64, self.phases, members)
        self.phases += 1
        return self.set("phase_count", self.phases)

    def event(self, what, time_ns=START_NS + 62 * 10**9):
        self._ring("event", "sg_event", 32, self.events, {"time_ns": time_ns, "what": what})
        self.events += 1
        return self.set("event_count", self.events)

    def timeline(self, samples, interval_ns=10**7, **fields):
        """The bytes of a time line: samples are (nanoseconds since the start, usable, reserve, floor, {domain: live})."""
        data, self.data = self.data, bytearray(self.layout["sizeof.sg_timeline"][1])
        header = {"magic": 0x4C454D4954475053, "version": 1, "sample_count": len(samples), "interval_ns": interval_ns, **fields}
        for field, value in header.items():
            self._store(*self.layout["sg_timeline." + field], value)
        base, stride = self.layout["sg_timeline.sample"][0], self.layout["sizeof.sg_sample"][1]
        for i, (time_ns, usable, reserve, floor, live) in enumerate(samples[: (len(self.data) - base) // stride]):
            values = {"time_ns": START_NS + time_ns, "usable_bytes": usable, "reserve_bytes": reserve, "floor_bytes": floor}
            for member, value in values.items():
                offset, size = self.layout["sg_sample." + member]
                self._store(base + i * stride + offset, size, value)
            for domain, value in live.items():
                self._store(
                    base + i * stride + self.layout["sg_sample.live_bytes"][0] + 8 * self.layout["domain." + domain][0], 8, value
                )
        line, self.data = bytes(self.data), data
        return line

    def write_timeline(self, directory, samples, **fields):
        path = (Path(directory) / self.name).with_suffix(".timeline")
        path.write_bytes(self.timeline(samples, **fields))
        return path

    def site(self, number, live, count=1, peak=0, domain="heap", library="libx.so", offset=0x1234, named=1, at_peak=0, at_refusal=0):
        """`number`: 32 for each class, heap, mapped, CUDA; 1 of a class is everything that found no place."""
        members = {
            "key": (0x7F0000000000 + number) << 3 | self.layout["domain." + domain][0],
            "live_bytes": live,
            "live_count": count,
            "peak_bytes": peak,
            "at_peak_bytes": at_peak,
            "at_refusal_bytes": at_refusal,
            "offset": offset,
            "is_named": named,
            "library": library,
        }
        for member, value in members.items():
            self.put("site", number, "sg_callsite", member, value)
        return self

    def write(self, directory):
        path = Path(directory) / self.name
        path.write_bytes(self.data)
        return path

    def write_live(self, directory, in_registry=True, **entry):
        """Writes the file and holds its lock, as a running owner does, and has an entry in the registry with what the file says and
        the words of `entry`; close the result to let go."""
        return Live(self, directory, entry if in_registry else None)

    def word(self, array, index, struct, member):
        offset, size = self.layout[f"{struct}.{member}"]
        at = self.layout["sg_segment." + array][0] + index * self.layout["sizeof." + struct][1] + offset
        return int.from_bytes(self.data[at : at + size], "little")

    def array(self, name, struct, count):
        at = self.layout["sg_segment." + name][0]
        return bytes(self.data[at : at + count * self.layout["sizeof." + struct][1]])


class Live:
    """A running owner of a segment: its locks."""

    def __init__(self, segment, directory, entry):
        self.file = open(segment.write(directory), "r+b")
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.stack = contextlib.ExitStack()
        self.stack.callback(self.file.close)
        place = ledger.Ledger.made(directory) if entry is not None else None
        if place is not None:
            with place:
                self._enter(place, segment, entry)

    def _enter(self, place, segment, entry):
        granted = {name: segment.word("domain", segment.layout["domain." + name][0], "sg_domain_counters", "granted_bytes") for name in DOMAINS}
        granted = {name: bytes_ if bytes_ < 1 << 62 else 0 for name, bytes_ in granted.items()}
        content = bytearray(ledger.ENTRY_BYTES)
        content[8:128] = segment.data[8:128]  # the slot, without its magic
        slot = lambda field: int.from_bytes(content[ledger.ENTRY[field][0] :][: ledger.ENTRY[field][1]], "little")  # noqa: E731
        files, origins = segment.array("file", "sg_memory_file", FILES), segment.array("origin", "sg_origin", ORIGINS)
        for name, bytes_ in (("file", files), ("origin", origins)):
            at = segment.layout["sg_registry_entry." + name][0]
            content[at : at + len(bytes_)] = bytes_
        shared = [struct.unpack_from("QQQ", files, 24 * i) for i in range(FILES)]
        shared = sum((end - begin) * 4096 for begin, end, _ in shared if begin and begin < end < begin + (1 << 32))
        at = segment.layout["sg_registry_entry.file_bytes"][0]
        content[at : at + 8] = shared.to_bytes(8, "little")
        number = entry.pop("number", next(i for i in range(ledger.ROOM) if not place.is_locked(i)))
        job = bytes(segment.data[segment.layout["sg_segment.job"][0] :]).split(b"\0")[0].decode(errors="replace")
        words = {
            "state": 1,
            "job_hash": ledger.hash_of(job),
            "granted_bytes": max(sum(granted.values()), slot("promised_bytes") + granted["device"] + granted["pinned"]),
            "device_bytes": granted["device"],
            "pinned_bytes": granted["pinned"],
            "managed_bytes": granted["managed"],
            "bounded_flight_bytes": slot("in_flight_bytes"),
            **entry,
        }
        self.stack.enter_context(place.entry(number, bytes(content), **words))

    def __getattr__(self, name):
        return getattr(self.file, name)

    def close(self):
        self.stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
