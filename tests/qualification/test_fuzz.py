"""Readers of what others may have written believe nothing: stored inputs of each fuzz target, and in the long form its fuzzer.

What does not fit into a reader's buffer is made of the stored inputs by a rule (long_inputs), so that it need not be stored.

An input that a fuzzer finds goes into tests/fuzz/corpus/TARGET, named for what it shows. What it made on its way is in
build/fuzzers/corpus/TARGET; of that, what reaches code that no stored input does is added by
`build/fuzzers/fuzz/TARGET -use_counters=0 -merge=1 tests/fuzz/corpus/TARGET build/fuzzers/corpus/TARGET`.
"""

import contextlib
import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
TARGETS = sorted(source.stem.removeprefix("fuzz_") for source in FUZZ.glob("fuzz_*.c"))
SECONDS = int(os.environ.get("FUZZ_SECONDS", "600"))


@contextlib.contextmanager
def unguarded():
    """An environment without what would guard the target itself, and with a folder for it in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="sparkguard-fuzz-") as scratch:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_")}
        yield {**kept, "TMPDIR": scratch}


def replay(build, target, inputs):
    """The bytes that the target's readers have room for: fuzz_room."""
    with unguarded() as environment:
        done = subprocess.run([build / "fuzz" / target, *inputs], env=environment, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stderr[-4000:]
    count, room = re.fullmatch(r"(\d+) inputs, room (\d+)\n", done.stdout).groups()
    assert int(count) == len(inputs)
    return int(room)


@pytest.mark.parametrize("target", TARGETS)
def test_stored_inputs_are_read_to_the_end(build, record_property, target):
    inputs = sorted((FUZZ / "corpus" / target).iterdir())
    replay(build, target, inputs)
    assert inputs
    record_property("cases", len(inputs))


TEXTS = ("container", "doctor", "machine", "process", "options")  # inputs of texts that end with NUL
LEAST_ROOM = 64  # of a buffer
LONG_TEXT = 65536
FILLER = b"Filler: 1 kB\n"


def longest_texts(target):
    """Of each of its texts the longest that is stored: those that were made by hand."""
    stored = [path.read_bytes().split(b"\0") for path in (FUZZ / "corpus" / target).iterdir() if not path.name.isdigit()]
    return [max((texts[i] for texts in stored if i < len(texts)), key=len) for i in range(max(map(len, stored)))]


def long_texts(text, room):
    """Of it only the first bytes fit into such a buffer, behind others; the same with an end that is drawn out."""
    for fits in {len(text) * eighth // 8 for eighth in range(9)}:
        if (before := room - 1 - fits) >= 0:
            filler = FILLER * (before // len(FILLER) + 1)
            yield filler[len(filler) - before :] + text
    for more in range(-1, 2):
        yield text.rstrip(b"\n").ljust(room + more, b"x") + b"\n"


def long_inputs(target, room, least):
    """Where an input is texts, each of them around the end of every buffer that there may be, from the least on; else whole inputs."""
    if target in TEXTS:
        texts = longest_texts(target)
        rooms = [1 << n for n in range(least.bit_length() - 1, room.bit_length())]
        for i, text in enumerate(texts):
            for long in (long for each in rooms for long in long_texts(text, each)):
                yield b"\0".join([*texts[:i], long, *texts[i + 1 :]])
        return
    for path in sorted((FUZZ / "corpus" / target).iterdir()):
        if not path.name.isdigit() and (stored := path.read_bytes()):
            for length in (room - 1, room, room + 1):
                yield (stored * (length // len(stored) + 1))[:length]
            if target == "sweep":
                for text in re.finditer(b'": "', stored):
                    yield stored[: text.end()] + b"x" * LONG_TEXT + stored[text.end() :]


def put_long_inputs(folder, target, room, least=LEAST_ROOM):
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(long_inputs(target, room, least)):
        (folder / str(number)).write_bytes(data)


@pytest.mark.parametrize("target", TARGETS)
def test_inputs_longer_than_the_readers_room_are_read_to_the_end(build, tmp_path, record_property, target):
    room = replay(build, target, [])
    put_long_inputs(tmp_path / "long", target, room)
    inputs = sorted((tmp_path / "long").iterdir())
    assert max(path.stat().st_size for path in inputs) > room
    replay(build, target, inputs)
    record_property("cases", len(inputs))


@pytest.fixture(scope="module")
def fuzzers(build, request):
    """Each fuzzer's run, begun before its test asks for it: as many at a time as there are processors."""
    wanted = [t for t in TARGETS if any(item.name == f"test_fuzzer_finds_nothing[{t}]" for item in request.session.items)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {target: pool.submit(fuzz, build, target) for target in wanted}
        pool.shutdown(cancel_futures=True)


def fuzz(build, target):
    """(exit status, what it said). New inputs stay in build/fuzzers/corpus: the next run goes on from them."""
    folder, room = build / "fuzzers", replay(build, target, [])
    found, fresh, long = folder / "found", folder / "corpus" / target, folder / "long" / target
    for made in (found, fresh):
        made.mkdir(parents=True, exist_ok=True)
    put_long_inputs(long, target, room, least=room)  # where to begin; of the doctor's it reads some tens in a second
    # Beyond the room of the readers; what takes long is chosen less often.
    limits = [f"-max_len={room + 4096}", "-len_control=0", "-entropic_scale_per_exec_time=1"]
    limits += [f"-max_total_time={SECONDS}", "-timeout=60", "-rss_limit_mb=2048"]
    command = [folder / "fuzz" / target, *limits, "-print_final_stats=1", f"-artifact_prefix={found}/{target}-"]
    log = found / f"{target}.log"
    with unguarded() as environment, log.open("w") as said:
        status = subprocess.run([*command, fresh, FUZZ / "corpus" / target, long], env=environment, stdout=said, stderr=said).returncode
    return status, log.read_text(errors="replace")


@pytest.mark.long
@pytest.mark.timeout_seconds(2 * SECONDS + 300)
@pytest.mark.parametrize("target", TARGETS)
def test_fuzzer_finds_nothing(fuzzers, record_property, target):
    status, text = fuzzers[target].result()
    assert status == 0, text[-4000:]
    record_property("cases", int(re.search(r"stat::number_of_executed_units: (\d+)", text)[1]))
    record_property("note", f"{len(TARGETS)} fuzzers, {SECONDS} s each, {os.cpu_count()} at a time; inputs are longer than the readers' buffers, too; cases are inputs tried")
