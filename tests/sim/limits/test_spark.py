"""A fake Spark of 121.7 GiB under the loads that were reported to freeze real ones, alone and together.

MemAvailable may not go below the reserve at any moment: the simulator notes the least value at each change. And each
program gets an answer that it can handle: it goes on or ends by itself. Many that ask at once are the program
cuda_share, which fails where somebody does not answer. SPARKGUARD_TEST_ROUNDS sets how often (30, and 60 in the long form; fewer
where they are emulated; 1000 for a long run).
"""

import contextlib
import os
import re
import threading
from pathlib import Path

import pytest
from conftest import GIB, MIB, OUT_OF_MEMORY, lists, values
from lib.target import IS_LONG, IS_SHORT, IS_SLOW

ROOT = Path(__file__).resolve().parents[3]
SPARK = 1217 * GIB // 10 // 4096 * 4096
RESERVE = SPARK * 8 // 100
SYSTEM = 4 * GIB  # what an idle desktop takes
COST = 2662 * MIB  # of a context
CHEAP = 16 * MIB  # of one that costs next to nothing
ROUNDS = int(os.environ.get("SPARKGUARD_TEST_ROUNDS", "6" if IS_SHORT else "20" if IS_SLOW else "60" if IS_LONG else "30"))
SECONDS = max(60, ROUNDS)  # for one program of many rounds

pytestmark = pytest.mark.timeout_seconds(SECONDS + 60)


@contextlib.contextmanager
def spark(sim, available=SPARK - SYSTEM, **variables):
    """The machine, watched: yields the variables for its programs; at the end it must never have been near the wall."""
    machine = sim.machine(SPARK, available) | {"SGSIM_CONTEXT": COST} | variables
    with sim.watch() as watch:
        yield machine
    assert watch.least_available >= RESERVE, f"{watch.least_available / GIB:.2f} GiB were left of {RESERVE / GIB:.2f}"


HELPERS = """
def fill(size, piece):
    '''Pieces until there are `size` bytes or one is refused: their addresses, and the last answer.'''
    addresses, result = [], 0
    while len(addresses) * piece < size and result == 0:
        result, address = take("cuMemAlloc_v2", piece)
        if result == 0:
            addresses.append(address)
    return addresses, result
def give_all(addresses):
    while addresses:
        give(addresses.pop())
"""

VLLM = (
    HELPERS
    + """
start()
free, total = info()
wanted = -(-total * 92 // 100)
if free < wanted:
    say(refused_to_start=1)
    sys.exit(0)
weights, result = fill(77 * GIB, 20 * MIB)
say(weights=len(weights), weights_result=result)
before = info()[0]
peak, result = fill(9 * GIB, GIB)
peak_bytes = before - info()[0]
give_all(peak)
say(profile=result, peak=peak_bytes)
used = total - info()[0]
size = wanted - used - peak_bytes
cache, result = fill(size, size // 48)
say(blocks=len(cache), cache=result, cache_bytes=size)
for step in range(20):
    peak, result = fill(9 * GIB, GIB)
    give_all(peak)
    if result != 0:
        break
say(serving=result)
"""
)


def test_vllm_starts_and_serves(sim):
    """A context, 77 GiB in pieces of 20 MiB, a profiling peak, a KV cache of what 0.92 leaves, the peak again."""
    with spark(sim) as machine:
        done = sim.script(VLLM, SPARKGUARD_JOB="vllm", **machine)
    assert (done.weights, done.weights_result, done.profile) == (77 * GIB // (20 * MIB) + 1, 0, 0)
    assert (done.cache, done.blocks) == (0, 49 if done.cache_bytes % 48 else 48)
    assert done.serving == 0, "what it was told is what it may have"
    assert told_of_vllm(sim.guard.report_command("--job", "vllm").stdout) == told_of_vllm((ROOT / "README.md").read_text())


def told_of_vllm(text):
    """What the report, and the README, say of the job, without the time and to a GiB."""
    words = re.search(r"^job vllm, last seen .*(, peak .*\n.*)$", text, re.MULTILINE)
    return re.sub(r"\.\d GiB", " GiB", words[1])


def test_vllm_that_does_not_find_its_share_says_so_and_ends(sim):
    with spark(sim) as machine:
        text = HELPERS + "start()\nheld, result = fill(30 * GIB, GIB)\nquiet(result=result)"
        with sim.tenant(text, **machine) as other:
            assert other.quiet().result == 0
            done = sim.script(VLLM, **machine)
            assert done.refused_to_start == 1
            other.finish()


RESUME = (
    HELPERS
    + """
start()
loaded, result = fill(40 * GIB, 512 * MIB)
say(result=result, loaded=len(loaded))
give_all(loaded[len(loaded) // 2:])
say(again=fill(4 * GIB, 512 * MIB)[1])
"""
)


def test_checkpoint_resume_is_stopped_above_the_wall(sim):
    """34 GiB available, of which it wants 40 within a second; it unwinds and goes on with a smaller one."""
    with spark(sim, available=34 * GIB + COST) as machine:
        done = sim.script(RESUME, **machine)
    assert done.result == OUT_OF_MEMORY
    assert 47 <= done.loaded <= (34 * GIB - RESERVE) // (512 * MIB)
    assert done.again == 0


def test_managed_checkpoint_that_is_touched_piece_by_piece_is_stopped_too(sim):
    """Lazy when it is granted, resident at once after that: neither counts twice, and none of it is free."""
    text = """
start()
result, loaded = 0, 0
while result == 0 and loaded < 80:
    result, p = take("cuMemAllocManaged", 512 * MIB, c_uint(1))
    if result == 0:
        ok(cuda.sgsim_touch(p, 512 * MIB))
        loaded += 1
say(result=result, loaded=loaded)
"""
    with spark(sim, available=34 * GIB + COST) as machine:
        done = sim.script(text, SGSIM_MANAGED="unmapped", **machine)  # mapped, it would take as much of the tests' own machine
    assert done.result == OUT_OF_MEMORY
    assert done.loaded <= (34 * GIB - RESERVE) // (512 * MIB)
    assert done.loaded >= (34 * GIB - RESERVE) // (512 * MIB) - 1


SHARE = (
    HELPERS
    + """
start()
quiet()
free, total = info()
quiet()
mine, result = fill(total * 45 // 100, 256 * MIB)
say(result=result, mine=len(mine))
quiet()
peak, result = fill(2 * GIB, 256 * MIB)
say(peak=result, got=len(peak))
"""
)


def test_two_tenants_with_45_percent_each_both_fit(sim):
    with spark(sim) as machine, sim.tenant(SHARE, **machine) as one, sim.tenant(SHARE, **machine) as other:
        for _ in range(2):
            for tenant in (one, other):
                tenant.quiet()
            for tenant in (one, other):
                tenant.go()
        results = [tenant.quiet().result for tenant in (one, other)]
        ends = [tenant.finish().peak for tenant in (one, other)]
    assert results == [0, 0]
    assert set(ends) <= {0, OUT_OF_MEMORY}


def test_two_tenants_that_want_too_much_are_stopped_and_go_on(sim):
    """70 GiB each at the same time: what one is refused the other may have; both end by themselves."""
    text = (
        HELPERS
        + "start()\nquiet()\nmine, result = fill(70 * GIB, GIB)\nquiet(result=result, mine=len(mine))\ngive_all(mine)"
    )
    with spark(sim) as machine, sim.tenant(text, **machine) as one, sim.tenant(text, **machine) as other:
        for tenant in (one, other):
            tenant.quiet()
        for tenant in (one, other):
            tenant.go()
        said = [tenant.quiet() for tenant in (one, other)]
        for tenant in (one, other):
            tenant.finish()
    assert OUT_OF_MEMORY in [s.result for s in said]
    room = SPARK - SYSTEM - 2 * COST - RESERVE
    assert room // GIB - 2 <= sum(s.mine for s in said) <= room // GIB


HASHCAT = """
start()
size, tries = 116 * GIB, 0
while True:
    tries += 1
    result, buffer = take("cuMemAlloc_v2", size)
    if result == 0:
        break
    assert result == 2, result
    size //= 2
say(tries=tries, size=size)
give(buffer)
"""


def test_hashcats_one_huge_request_is_refused_and_a_smaller_one_is_not(sim):
    with spark(sim) as machine:
        done = sim.script(HASHCAT, **machine)
    assert (done.tries, done.size) == (2, 58 * GIB)


# A caching allocator as PyTorch's: frees go into its cache; it retries on error 2 only, after clearing the error.
PYTORCH = """
runtime = ctypes.CDLL("libcudart.so.13")
cache, errors, retries = [], [], 0
def cuda_malloc(size):
    p = c_void_p()
    error = runtime.cudaMalloc(byref(p), c_size_t(size))
    if error:
        errors.append(error)
        assert runtime.cudaGetLastError() == error and runtime.cudaGetLastError() == 0
    return error, p.value
def allocate(size):
    global retries
    for index, (block, address) in enumerate(cache):
        if block >= size:
            return cache.pop(index)
    error, address = cuda_malloc(size)
    if error == 2:
        retries += 1
        while cache:
            ok(runtime.cudaFree(c_void_p(cache.pop()[1])))
        error, address = cuda_malloc(size)
    if error:
        raise MemoryError(error)
    return size, address
blocks = [allocate(2 * GIB) for _ in range({blocks})]
cache, blocks = cache + blocks[5:], blocks[:5]
blocks.append(allocate(60 * GIB))
say(retries=retries, held=sum(size for size, _ in blocks))
try:
    allocate(80 * GIB)
except MemoryError as error:
    say(user_error=error.args[0])
free, total = c_size_t(0), c_size_t(0)
say(message=runtime.cudaMemGetInfo(byref(free), byref(total)), last=runtime.cudaGetLastError())
blocks.append(allocate(2 * GIB))
say(after=len(blocks), kinds=len(set(errors)), kind=errors[0])
"""


@pytest.mark.parametrize("late", [0, 300], ids=["at_once", "late"])
def test_pytorch_frees_its_cache_and_tries_again(sim, late):
    """What is freed may come back late (drivers >= 590): then the second try waits for it."""
    with spark(sim, SGSIM_LATE_FREE=late) as machine:
        done = sim.script(PYTORCH.replace("{blocks}", "45"), **machine)
    assert (done.retries, done.held) == (1, 70 * GIB)
    assert (done.user_error, done.kinds, done.kind) == (OUT_OF_MEMORY, 1, OUT_OF_MEMORY)
    assert (done.message, done.last, done.after) == (0, 0, 7)


def test_all_of_them_at_once(sim):
    """Who is refused what is a matter of luck; that nobody is refused while there is room is not."""
    many = HELPERS + "start()\nquiet()\nmine, result = fill(50 * GIB, 512 * MIB)\nquiet(result=result, held=len(mine) * 512 * MIB)"
    huge = """
start()
quiet()
size, result = 116 * GIB, 2
while result == 2 and size >= 512 * MIB:
    result, buffer = take("cuMemAlloc_v2", size)
    size = size if result == 0 else size // 2
quiet(result=result, held=size if result == 0 else 0)
"""
    with spark(sim) as machine, contextlib.ExitStack() as stack:
        tenants = [stack.enter_context(sim.tenant(text, **machine)) for text in [many] * 4 + [huge]]
        for tenant in tenants:
            tenant.quiet()
        for tenant in tenants:
            tenant.go()
        said = [tenant.quiet() for tenant in tenants]
        for tenant in tenants:
            tenant.finish()
    assert {s.result for s in said} <= {0, OUT_OF_MEMORY}
    room = SPARK - SYSTEM - len(tenants) * COST - RESERVE
    assert room - GIB <= sum(s.held for s in said) <= room


def test_machine_gets_back_what_a_killed_tenant_held(sim):
    """Killed where it stands, in the middle of a call of the driver."""
    go = sim.scratch / "go"
    text = HELPERS + "start()\nmine, result = fill(60 * GIB, GIB)\nquiet(result=result)\ntake('cuMemAlloc_v2', 9 * GIB)"
    again = "start()\nsay(result=take('cuMemAlloc_v2', 80 * GIB)[0])"
    with spark(sim) as machine, sim.tenant(text, SGSIM_HOLD=f"cuMemAlloc_v2:61:{go}", **machine) as tenant:
        assert tenant.quiet().result == 0
        tenant.go()
        while not go.with_name("go.held").exists():
            assert tenant.process.poll() is None
        assert sim.script(again, **machine).result == OUT_OF_MEMORY
        tenant.kill()
        sim.settle()
        assert sim.script(again, **machine).result == 0


# ---- many at once -------------------------------------------------------------------------------------------------

# 1 GiB above a reserve of 2: of 16 that ask for 240 MiB each four fit, and the small change of all 16.
ASKERS, SIZE, FIT = 16, 240 * MIB, 4
# Sleeps of one request: a wait of 3 s looks 65 times by itself (preload/core/admit/wait.c), and again whenever another's request is granted or
# has ended. For each of these it may sleep at a lock, too.
SLEEPS = 65 + 2 * 2 * ASKERS


def share(sim, kind, call, rounds=ROUNDS):
    contexts = 0 if call == "malloc" else CHEAP if kind == "threads" else ASKERS * CHEAP
    machine = sim.machine(4 * GIB, 3 * GIB + contexts) | {"SPARKGUARD_RESERVE": "2G", "SGSIM_LEDGER": None}
    machine["SGSIM_CONTEXT"] = CHEAP
    sim.script("start()", **machine)  # measures one: who takes a killed one's place has no room for the 512 MiB of a first guess
    sim.settle()
    command = [sim.program("cuda_share"), kind, call, ASKERS, SIZE, FIT, max(1, rounds)]
    done = sim.guard.run(command, env=sim.env | machine, timeout=SECONDS)
    if done.returncode == 77:
        pytest.skip("PID namespaces need root")
    assert done.returncode == 0, done.stderr
    answer = values(done.stdout)
    assert (answer.fewest, answer.most) == (FIT, FIT), "exactly four each time"
    assert answer.others == 0
    assert answer.sleeps <= SLEEPS, "nobody is held up for longer than 3 s"
    if call == "cuMemAlloc_v2":
        assert sim.machine_bytes("least_available") >= 2 * GIB
    return answer


@pytest.mark.parametrize("kind", ["processes", "namespaces", "killed", "stopped"])
def test_fake_machine_itself_is_exact(sim, kind):
    """Without the guard: what it has is given once, whoever is killed or stopped meanwhile, and comes back."""
    room = FIT * SIZE + SIZE // 2
    machine = sim.machine(4 * GIB, room)
    done = sim.unguarded([sim.program("cuda_share"), kind, "cuMemAlloc_v2", ASKERS, SIZE, FIT, ROUNDS], **machine)
    if done.returncode == 77:
        pytest.skip("PID namespaces need root")
    assert done.returncode == 0, done.stderr
    answer = values(done.stdout)
    assert (answer.fewest, answer.most, answer.others) == (FIT, FIT, 0)
    assert sim.settle() == 0
    assert sim.available_bytes() == room
    assert sim.machine_bytes("least_available") == room - FIT * (SIZE + lists(SIZE))


def available_bytes():
    with open("/proc/meminfo") as meminfo:
        return next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable:"))


@contextlib.contextmanager
def watching_available():
    """A list whose only entry is the most that this machine has had available since."""
    most, is_over = [available_bytes()], threading.Event()

    def watch():
        while not is_over.wait(0.002):  # poll: what is available
            most[0] = max(most[0], available_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        is_over.set()
        watcher.join()


@pytest.mark.parametrize("kind", ["processes", "threads", "namespaces"])
def test_over_the_real_proc_never_five(sim, kind):
    """Nobody touches anything: what is asked for is an eighth of what this machine has available, and half of that more is
    left above the reserve than four take. Where others give back more than that meanwhile, the fifth is rightly admitted."""
    available = available_bytes()
    size = available // 8
    reserve = available - FIT * size - size // 2
    env = {"SPARKGUARD_RESERVE": reserve, "SPARKGUARD_WATCHDOG": "off", "SGSIM_LEDGER": None}
    command = [sim.program("cuda_share"), kind, "malloc", ASKERS, size, FIT, ROUNDS]
    with watching_available() as most:
        done = sim.guard.run(command, env=sim.env | env, timeout=SECONDS)
    if done.returncode == 77:
        pytest.skip("PID namespaces need root")
    assert done.returncode == 0, done.stderr
    answer = values(done.stdout)
    assert answer.most <= max(FIT, (most[0] - reserve) // size) and answer.others == 0
    assert answer.fewest >= 1


CALLS = ["malloc", "cuMemAlloc_v2", "cuMemAllocManaged"]


@pytest.mark.parametrize("call", CALLS)
def test_of_16_processes_that_ask_for_a_quarter_each_exactly_four_get_it(sim, call):
    share(sim, "processes", call)


@pytest.mark.parametrize("call", CALLS)
def test_of_16_threads_that_ask_for_a_quarter_each_exactly_four_get_it(sim, call):
    share(sim, "threads", call)


@pytest.mark.parametrize("call", CALLS)
def test_a_pid_namespace_makes_no_difference(sim, call):
    share(sim, "namespaces", call)


@pytest.mark.parametrize("call", ["malloc", "cuMemAlloc_v2"])
def test_room_of_the_killed_comes_back(sim, call):
    """Of holders at once, and of those killed while they ask."""
    done = share(sim, "killed", call, ROUNDS // 3)
    assert (done.again_fewest, done.again_most) == (0, 0)
    assert FIT - 1 <= done.hurt_fewest <= done.hurt_most <= FIT


@pytest.mark.parametrize("call", ["malloc", "cuMemAlloc_v2"])
def test_stopped_process_keeps_what_it_has_and_holds_up_nobody(sim, call):
    done = share(sim, "stopped", call, ROUNDS // 6)
    assert (done.again_fewest, done.again_most) == (0, 0)
    assert FIT - 1 <= done.hurt_fewest <= done.hurt_most <= FIT


@pytest.mark.parametrize("call", ["malloc", "cuMemAlloc_v2"])
def test_forked_and_threaded_askers_share_one_limit(sim, call):
    """LIMIT is the job's: 16 children of one parent have it together."""
    variables = sim.machine(64 * GIB) | {"SPARKGUARD_LIMIT": "1G", "SGSIM_LEDGER": None}
    command = [sim.program("cuda_share"), "processes", call, ASKERS, SIZE, FIT, max(1, ROUNDS // 3)]
    done = sim.values(command, **variables)
    assert (done.fewest, done.most, done.others) == (FIT, FIT, 0)
