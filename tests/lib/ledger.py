"""Reads machine.ledger like another process, and takes entries in it as no process should.

    ledger = Ledger(guard.directory)
    ledger.promised()                                     # of all entries with a living owner
    with ledger.entry(7, in_flight_bytes=20 * GIB):        # held by this process until the end of the block
        ...

Names and order of the fields are those of include/sparkguard_abi.h.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import struct
from pathlib import Path

HEADER = (Path(__file__).resolve().parents[2] / "include/sparkguard_abi.h").read_text()
EMPTY, LIVE, DEAD = 0, 1, 2
NO_TICKET, CHOOSING, FIRST = 0, 1, 2
SHARING = 1 << 3  # sg_slot.flags
LINK_MAGIC = int(re.search(r"SG_REGISTRY_LINK_MAGIC UINT64_C\((\w+)\)", HEADER)[1], 16)
MAGIC = int(re.search(r"SG_REGISTRY_MAGIC UINT64_C\((\w+)\)", HEADER)[1], 16)
VERSION = int(re.search(r"SG_REGISTRY_VERSION (\d+)u", HEADER)[1])
ROOM, ENTRY_BYTES, BEGIN = 1024, 2176, 4096
FILE_BYTES = BEGIN + ROOM * ENTRY_BYTES
FLOCK = "hhqqi4x"  # struct flock: type, whence, start, len, pid
FNV_BASIS, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def hash_of(job, user=None):
    """The identity of a user's job."""
    name = job if isinstance(job, bytes) else job.encode()
    owner = b"" if name.startswith(b"@") else struct.pack("<I", os.getuid() if user is None else user)
    value = FNV_BASIS
    for byte in name + owner:
        value = (value ^ byte) * FNV_PRIME & (1 << 64) - 1
    return value


def fields_of(name):
    """{field: (offset, bytes)} of a struct of naturally aligned fixed-width numbers."""
    body = re.search(rf"struct {name} {{\n(.*?)\n}};", HEADER, re.DOTALL)[1]
    fields, at = {}, 0
    for kind, field, length in re.findall(r"^    (struct \w+|u?int\d+_t) (\w+)(?:\[(\w*)\])?;", body, re.MULTILINE):
        if kind == "struct sg_slot":
            fields |= fields_of("sg_slot")
            at = 128
        elif kind.startswith("uint"):
            size = int(re.search(r"\d+", kind)[0]) // 8
            count = int(length) if length.isdigit() else 8 if length else 1
            assert at % size == 0
            fields[field] = (at, size)
            at += size * count
    return fields


ENTRY, LEDGER = fields_of("sg_registry_entry"), fields_of("sg_registry")
assert ENTRY["claim"][0] == 128 and LEDGER["asked_bytes"][0] == 32
assert ENTRY["inherited_promise_bytes"][0] == 104, "every field of the header was seen"


class Segment:
    """The System V segment that the ledger of a group's directory names, used as a mapping is."""

    LIBC = ctypes.CDLL(None, use_errno=True)
    LIBC.shmat.restype = ctypes.c_void_p

    def __init__(self, number):
        self.address = self.LIBC.shmat(number, None, 0)
        is_gone = self.address == ctypes.c_void_p(-1).value  # with its last process
        assert not is_gone or ctypes.get_errno() in (errno.EINVAL, errno.EIDRM), os.strerror(ctypes.get_errno())
        content = bytearray(FILE_BYTES) if is_gone else (ctypes.c_char * FILE_BYTES).from_address(self.address)
        self.bytes = memoryview(content).cast("B")

    def __getitem__(self, at):
        return bytes(self.bytes[at])

    def __setitem__(self, at, content):
        self.bytes[at] = content

    def close(self):
        self.bytes.release()
        self.LIBC.shmdt(ctypes.c_void_p(self.address))


class Ledger:
    def __init__(self, directory):
        self.path = Path(directory) / "machine.ledger"

    @staticmethod
    def header(version=VERSION, entry_bytes=ENTRY_BYTES, entry_used=0):
        return struct.pack("<QIIII", MAGIC, version, entry_bytes, ROOM, entry_used)

    @classmethod
    def made(cls, directory):
        """A registry as the library makes one, if there is none yet; None where something else has its name."""
        ledger, header = cls(directory), cls.header()[:20]
        with contextlib.suppress(FileExistsError), open(ledger.path, "xb") as file:
            file.write(header)
            file.truncate(FILE_BYTES)
        is_one = ledger.path.is_file() and ledger.path.read_bytes()[: len(header)] == header
        return ledger if is_one else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _open(self):
        """The file and its descriptor, kept open; again if another one has the name by now."""
        if getattr(self, "map", None) is None:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            magic, _, number = struct.unpack("<QIi", os.pread(self.fd, 16, 0).ljust(16, b"\0"))
            self.map = Segment(number) if magic == LINK_MAGIC else mmap.mmap(self.fd, FILE_BYTES)
        return self.map

    def close(self):
        if getattr(self, "map", None) is not None:
            self.map.close()
            os.close(self.fd)
            self.map = None

    def get(self, field, number=None):
        offset, size = LEDGER[field] if number is None else ENTRY[field]
        at = offset if number is None else BEGIN + number * ENTRY_BYTES + offset
        return int.from_bytes(self._open()[at : at + size], "little")

    def put(self, field, value, number=None):
        """Stores a whole word at once, as processors do."""
        offset, size = LEDGER[field] if number is None else ENTRY[field]
        at = offset if number is None else BEGIN + number * ENTRY_BYTES + offset
        mapped = self._open()
        with memoryview(getattr(mapped, "bytes", mapped)) as view, view[at : at + size] as bytes_, bytes_.cast("IQ"[size == 8]) as word:
            word[0] = value & (1 << 8 * size) - 1

    def level(self, number, index):
        at = BEGIN + number * ENTRY_BYTES + ENTRY["level"][0] + 8 * index
        return int.from_bytes(self._open()[at : at + 8], "little")

    def is_locked(self, number):
        self._open()
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, 0, number, 1, 0)
        return struct.unpack(FLOCK, fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK

    def taken(self):
        """The numbers of the entries of living processes."""
        used = min(self.get("entry_used"), ROOM)
        return [i for i in range(used) if self.get("claim", i) & 3 == LIVE and self.is_locked(i)]

    def of(self, pid):
        """The entry of a living process."""
        (number,) = [i for i in self.taken() if self.get("pid", i) == pid]
        return number

    def sum(self, *fields):
        return sum(self.get(field, i) for i in self.taken() for field in fields)

    def promise(self, number):
        """What others count of an entry's promises: no more than its process holds. The promises are read first."""
        promised = self.get("promised_bytes", number)
        return min(promised, self.get("granted_bytes", number) - self.get("device_bytes", number) - self.get("pinned_bytes", number))

    def promised(self):
        return sum(self.promise(number) for number in self.taken())

    def gone(self):
        """What nobody else may have: promised, in flight, or asked for."""
        return sum(self.promise(i) + self.flying(i) + self.asking(i) for i in self.taken()) + self.inherited()

    def inherited(self):
        """What the children of parents that are gone have from them, once for each parent."""
        left = {}
        for i in self.taken():
            parent = self.get("parent_entry", i), self.get("parent_claim", i)
            if parent[0] == 0 or self.get("claim", parent[0] - 1) != parent[1] or not self.is_locked(parent[0] - 1):
                left[parent] = max(left.get(parent, 0), self.get("inherited_promise_bytes", i))
        return sum(left.values())

    def asking(self, number):
        return self.get("queued_bytes", number) if self.get("ticket", number) != NO_TICKET else 0

    def flying(self, number):
        """By the sum or by its parts: who has stopped between them shows one and not yet the other."""
        parts = ("bounded_flight_bytes", "unbounded_flight_bytes", "device_flight_bytes")
        return max(self.get("in_flight_bytes", number), sum(self.get(part, number) for part in parts))

    @contextlib.contextmanager
    def locked(self, first, count=1):
        """Holds the bytes of some entries, as their owners would."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(FLOCK, fcntl.F_WRLCK, 0, first, count, 0))
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def entry(self, number, content=None, **fields):
        """An entry that is taken; `content`: its bytes, but for the claim. What is promised is granted, too, where nothing else is said.
        Let go as by a process that died."""
        with self.locked(number):
            begin = BEGIN + number * ENTRY_BYTES
            self._open()[begin : begin + ENTRY_BYTES] = content or bytes(ENTRY_BYTES)
            for field, value in ({"granted_bytes": fields.get("promised_bytes", 0)} | fields).items():
                self.put(field, value, number)
            self.put("claim", 1 << 2 | LIVE, number)
            self.put("entry_used", max(self.get("entry_used"), number + 1))
            yield self
