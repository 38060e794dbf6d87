"""Real software under the guard: its own tests, or a workload whose result is known, come to the same as without."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from software import Server, assert_same, complaints, first, named, redis_failed, redis_suite, results, summary

ROOT = Path(__file__).resolve().parents[2]
DEPS = ROOT / ".deps"
MIB = 1 << 20
NOBODY = 65534


def as_nobody(guard, place):
    """Gives an ordinary user the folder and the guard's own: how guard.run starts a program as that user."""
    os.chown(place, NOBODY, NOBODY)
    for parent in guard.directory.parents:
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 1:
            parent.chmod(parent.stat().st_mode | 0o111)
    for folder in (guard.directory, guard.history):
        folder.mkdir(mode=0o700)
        os.chown(folder, NOBODY, NOBODY)
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def need(*names):
    """The first of the programs that is there."""
    for name in names:
        if found := shutil.which(str(name)):
            return found
    pytest.skip(f"no {names[0]} here")


# ---- short: what every machine of `make test` has ------------------------------------------------------------------------

SQL = """
import hashlib, sqlite3
db = sqlite3.connect(":memory:")
db.execute("create table t(id integer primary key, word text, data blob)")
with db:
    db.executemany("insert into t values(?, ?, ?)", ((i, f"w{i % 977}", bytes([i % 251]) * 400) for i in range(20000)))
with db:
    db.execute("create index w on t(word)")
    db.execute("delete from t where id % 7 = 3")
    db.execute("update t set word = word || word where id % 11 = 0")
print(db.execute("select count(*), sum(length(data)) from t").fetchone(), db.execute("pragma integrity_check").fetchone())
print(hashlib.sha256("".join(db.iterdump()).encode()).hexdigest())
"""

PERL = """
my %h; $h{$_ % 5003} .= "x$_" for 1 .. 200000;
my $s = join ",", map { "$_:" . length $h{$_} } sort { $a <=> $b } keys %h;
my $pid = fork // die; if (!$pid) { my @a = (1) x 500000; exit @a % 251 } waitpid $pid, 0;
print length($s), " ", unpack("%32C*", $s), " ", $? >> 8, "\\n";
"""


def test_sqlite_in_python_dumps_the_same(guard):
    assert "('ok',)" in assert_same(guard, [sys.executable, "-c", SQL], least_mib=16)


def test_perl_says_the_same(guard):
    assert_same(guard, ["perl", "-e", PERL], least_mib=16)


def test_git_writes_the_same_objects(guard, tmp_path):
    script = """
    set -e; rm -rf "$1"; git init -q "$1"; cd "$1"
    export GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z
    for n in 1 2 3; do
        seq $((n * 20000)) > numbers; seq -f "line %g" $((n * 500)) > "file$n"; git add .
        git -c user.name=a -c user.email=a@b -c gc.auto=0 commit -q -m "commit $n"
    done
    head -c 24M /dev/zero | git hash-object -w --stdin | git cat-file --batch | cksum
    git gc -q; git fsck --full --strict 2>&1; git log --format='%H %T'; git blame -s numbers | cksum; git diff HEAD~2 | cksum
    """
    env = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    assert_same(guard, ["sh", "-c", script, "sh", tmp_path / "repository"], least_mib=24, env=env)


# ---- CPython's own tests -------------------------------------------------------------------------------------------------

# Suites none of whose processes holds 16 MiB: the MiB that one holds which leaves a record, as it was killed or replaced; 0: none does.
SMALL = {"test_gc": 0, "test_array": 0, "test_multiprocessing_main_handling": 4}

# Module, and which of its classes: () is all; of those that have some here, all take many minutes.
PYTHON_SUITES = [
    ("test_gc", ()),
    ("test_array", ()),
    ("test_json", ()),
    ("test_mmap", ()),
    ("test_ctypes", ()),
    ("test_sqlite3", ()),
    ("test_threading", ()),
    ("test_subprocess", ()),
    ("test_multiprocessing_main_handling", ()),
    ("test_multiprocessing_fork", ("*WithProcessesTestArray*", "*WithProcessesTestPool.*", "*TestSharedMemory*")),
    ("test_multiprocessing_spawn", ("*WithProcessesTestArray*", "*WithProcessesTestQueue*", "*TestSharedMemory*")),
    ("test_multiprocessing_forkserver", ("*WithProcessesTestArray*", "*WithProcessesTestQueue*", "*TestSharedMemory*")),
]


def python_that_has(module):
    """(interpreter, where its tests are if they do not come with it): not every installation has all of them."""
    users = subprocess.run(["python3", "-c", "import sys; print(sys.executable)"], capture_output=True, text=True).stdout.strip()
    for python, path in ((sys.executable, ""), (users, ""), ("/usr/bin/python3", str(DEPS / "python-tests"))):
        env = os.environ | {"PYTHONPATH": path}
        if subprocess.run([python, "-c", f"import test.{module}, test.libregrtest"], env=env, capture_output=True).returncode == 0:
            return python, path
    pytest.skip(f"no Python here has {module}; scripts/install-deps qualify fetches those of the distribution")


def python_suite(guard, python_with_tests, folder, preload, module, patterns):
    python, path = python_with_tests
    folder.mkdir(exist_ok=True)
    junit = folder / "junit.xml"
    command = [python, "-m", "test", "--junit-xml", junit, module]
    for pattern in patterns:
        command += ["--match", pattern]
    done = guard.run(command, env={"PYTHONPATH": path}, preload=preload, timeout=1500, cwd=folder)
    assert junit.exists(), done.stdout + done.stderr
    return results(junit), done


def differing(plain, guarded):
    return sorted(name for name in plain.keys() | guarded.keys() if plain.get(name) != guarded.get(name))


@pytest.mark.long
@pytest.mark.timeout_seconds(3200)
@pytest.mark.parametrize("module, patterns", PYTHON_SUITES, ids=[name for name, _ in PYTHON_SUITES])
def test_pythons_own(guard, tmp_path, record_property, module, patterns):
    python_with_tests = python_that_has(module)
    plain, _ = python_suite(guard, python_with_tests, tmp_path / "plain", [], module, patterns)
    guarded, done = python_suite(guard, python_with_tests, tmp_path / "guarded", None, module, patterns)
    if not plain and not guarded:
        pytest.skip(f"{python_with_tests[0]} comes without the tests of {module}")
    different, tries = differing(plain, guarded), ""
    if different:  # some depend on how busy the machine is: again by themselves
        tries = f"; {len(different)} at the second try only ({named(different)})"
        names = [name.partition(" ")[0] for name in different]
        plain = plain | python_suite(guard, python_with_tests, tmp_path / "plain", [], module, names)[0]
        again, done = python_suite(guard, python_with_tests, tmp_path / "guarded", None, module, names)
        guarded = guarded | again
    assert {n: (plain.get(n), guarded.get(n)) for n in differing(plain, guarded)} == {}, done.stdout + done.stderr
    assert "sparkguard" not in done.stdout + done.stderr
    assert complaints(guard, SMALL.get(module, 16)) == []
    record_property("cases", len(plain))
    what = f"{module}, chosen classes" if patterns else module
    record_property("note", f"CPython {what}: {summary(plain)}, the same with the guard{tries}")


# ---- PyTorch -------------------------------------------------------------------------------------------------------------

TORCH = """
import torch, warnings
warnings.simplefilter("ignore")
torch.manual_seed(1); torch.set_num_threads(2)
a = torch.randn(700, 700); b = a @ a.T
print(b.shape, f"{torch.linalg.norm(b):.3f}", torch.equal(b, b.T.contiguous().T))
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
data = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randn(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for workers in (0, 2):
    for x, y in torch.utils.data.DataLoader(data, batch_size=64, num_workers=workers):
        optimizer.zero_grad(); loss = ((model(x) - y) ** 2).mean(); loss.backward(); optimizer.step()
    print(workers, f"{loss.item():.4f}")
print(torch.autograd.gradcheck(lambda t: (t.sin() * t).sum(), torch.randn(8, dtype=torch.double, requires_grad=True)))
s = torch.zeros(1 << 22).share_memory_(); s += 1; print(s.sum().item())
"""


@pytest.mark.long
@pytest.mark.timeout_seconds(900)
def test_pytorch_computes_the_same(guard, build):
    python = build / "frameworks/torch/bin/python"
    if not python.exists():
        pytest.skip("make test-frameworks has not been run")
    assert_same(guard, [python, "-c", TORCH], least_mib=32, env={"CUDA_VISIBLE_DEVICES": ""})


# ---- databases -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout_seconds(600)
def test_sqlite_shell_dumps_the_same(guard, tmp_path):
    script = """
    pragma journal_mode=wal; pragma cache_size=-65536; create table t(i integer primary key, w text, b blob);
    with recursive c(i) as (select 1 union all select i + 1 from c where i < 200000)
    insert into t select i, printf('w%d', i % 977), zeroblob(i % 300) from c;
    create index w on t(w); delete from t where i % 7 = 3; update t set w = w || 'x' where i % 13 = 0; vacuum; analyze;
    select w, count(*), sum(length(b)) from t group by w order by w; pragma integrity_check;
    """
    command = f'rm -f db db-wal db-shm; {need("sqlite3")} db && {need("sqlite3")} db .dump | cksum'
    assert "ok\n" in assert_same(guard, ["sh", "-c", command], least_mib=24, input=script, cwd=tmp_path)


@pytest.mark.long
@pytest.mark.timeout_seconds(900)
def test_redis_holds_what_it_was_given(guard, tmp_path, record_property):
    """Where its jemalloc is a library, as Debian's, that is behind us and all counts; linked in, it maps what promises nothing."""
    redis, client = (need(name, DEPS / "redis/bin" / name) for name in ("redis-server", "redis-cli"))
    libraries = ":".join(map(str, (DEPS / "redis/lib").glob("*-linux-gnu")))
    env = {"LD_LIBRARY_PATH": libraries if Path(redis).is_relative_to(DEPS) else None}
    fill = ["debug", "populate", "200000", "key", "64"]
    said = {}
    for is_guarded in (False, True):
        folder = tmp_path / str(is_guarded)
        folder.mkdir()
        socket = folder / "socket"
        command = [redis, "--port", "0", "--unixsocket", socket, "--dir", folder, "--logfile", "log", "--enable-debug-command", "yes"]

        def ask(*words, socket=socket):
            done = guard.run([client, "-s", socket, *words], env=env, preload=[])
            return done.stdout.strip()

        with Server(guard, command, is_guarded, env=env) as server:
            server.wait_until(lambda: ask("ping") == "PONG")
            assert ask(*fill) == "OK"
            answers = [ask("eval", "for i=1,20000 do redis.call('rpush','l'..i%100,i) end return redis.call('llen','l7')", "0")]
            answers += [ask("debug", "reload"), ask("dbsize"), ask("debug", "digest"), ask("save"), ask("bgrewriteaof")]
            said[is_guarded] = answers
        assert server.process.returncode == 0 and server.said == ""
    assert said[True] == said[False]
    assert complaints(guard, 24) == []
    record_property("note", "redis: filled, reloaded, saved: the same digest")


@pytest.mark.long
@pytest.mark.timeout_seconds(6000)
def test_redis_own(guard, tmp_path, record_property):
    if not (DEPS / "redis-tests/runtest").exists():
        pytest.skip("no tests of redis here; scripts/install-deps qualify fetches them")
    need("tclsh", "tclsh8.6")
    names = ("redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb")
    programs = [Path(need(name, DEPS / "redis/bin" / name)) for name in names]
    env = {"LD_LIBRARY_PATH": ":".join(map(str, (DEPS / "redis/lib").glob("*-linux-gnu"))) or None}

    def run(is_guarded):
        preload = None if is_guarded else []
        return redis_suite(guard, tmp_path / str(is_guarded), preload, DEPS / "redis-tests", programs, env)

    plain, guarded = run(False), run(True)
    tries = ""
    if first_different := sorted((plain - guarded) + (guarded - plain)):  # some depend on how busy the machine is
        tries = f"; at the second try, as the first differed in {named(name for name, _ in first_different)}"
        plain, guarded = run(False), run(True)
    assert redis_failed(guarded) - redis_failed(plain) == Counter()
    assert (plain - guarded, guarded - plain) == (Counter(), Counter())
    assert complaints(guard, 16) == []
    record_property("cases", sum(plain.values()))
    numbers = Counter()
    for (_, word), count in plain.items():
        numbers[word] += count
    said = ", ".join(f"{number} {word}" for word, number in numbers.items())
    not_run = sorted({name for name, word in plain if word in ("skip", "ignore")})
    said += f" (not run: {named(not_run)})" if not_run else ""
    failed = f"; failed without it, too: {named(redis_failed(plain).elements())}" if redis_failed(plain) else ""
    record_property("note", f"redis' own tests: {said}, the same with the guard{failed}{tries}")


@pytest.mark.long
@pytest.mark.timeout_seconds(900)
def test_postgresql_keeps_its_books(guard, tmp_path, record_property):
    """pgbench over a Unix socket: the sums of its four tables agree afterwards, as they must after every transaction."""
    home = first("/usr/lib/postgresql/*/bin/postgres", f"{DEPS}/postgresql/usr/lib/postgresql/*/bin/postgres")
    if home is None:
        pytest.skip("no PostgreSQL here; on Debian: apt-get install postgresql")
    bin, place = home.parent, tmp_path / "pg"
    place.mkdir()
    options, libraries = {}, [str(p) for p in (DEPS / "postgresql/usr/lib").glob("*-linux-gnu")] if DEPS in home.parents else []
    if os.geteuid() == 0:  # it will not run as root
        options = as_nobody(guard, place)
    env = {"HOME": place, "LC_ALL": "C", "TZ": "UTC", "LD_LIBRARY_PATH": ":".join(libraries) or None}
    sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history), "
    sums += "(select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches), "
    sums += "(select count(*) from pgbench_history), (select count(*) from pgbench_accounts)"
    said = {}
    for is_guarded in (False, True):
        data, preload = place / str(is_guarded), None if is_guarded else []

        def run(*command, preload=preload):
            done = guard.run(command, env=env, preload=preload, timeout=300, cwd=place, **options)
            assert done.returncode == 0, done.stderr
            return done.stdout

        run(bin / "initdb", "-D", data, "-A", "trust", "-U", "pg", "--no-sync")
        command = [bin / "postgres", "-D", data, "-k", place, "-c", "listen_addresses=", "-c", "fsync=off"]
        with Server(guard, command, is_guarded, env=env, cwd=place, **options) as server:
            ready = [bin / "pg_isready", "-h", place, "-q"]
            server.wait_until(lambda ready=ready: guard.run(ready, env=env, preload=[], cwd=place, **options).returncode == 0)
            to = ("-h", place, "-U", "pg")
            run(bin / "pgbench", "-i", "-q", "-s", "2", *to, "postgres")
            run(bin / "pgbench", "-c", "4", "-j", "2", "-t", "200", *to, "postgres")
            said[is_guarded] = run(bin / "psql", *to, "-Atc", sums, "postgres")
        assert server.process.returncode == 0
        assert "sparkguard" not in server.said
    assert said[True] == said[False] == "t|t|800|200000\n"
    assert complaints(guard, 100) == []
    record_property("note", "PostgreSQL: initdb and 800 transactions of pgbench, the books agree")


# ---- runtimes ------------------------------------------------------------------------------------------------------------

NODE = """
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");
const crypto = require("crypto"), zlib = require("zlib"), assert = require("assert");
if (!isMainThread) {
  let b = Buffer.alloc(32 << 20, workerData);
  parentPort.postMessage(crypto.createHash("sha256").update(b).digest("hex"));
} else {
  let jobs = [1, 2, 3].map((n) => new Promise((ok, bad) => new Worker(__filename, { workerData: n }).on("message", ok).on("error", bad)));
  let text = Buffer.from(Array.from({ length: 200000 }, (_, i) => "line " + i).join("\\n"));
  assert(zlib.gunzipSync(zlib.gzipSync(text)).equals(text));
  let a = []; for (let i = 0; i < 500000; i++) a.push({ i, s: "x" + i });
  let shared = new Float64Array(new SharedArrayBuffer(16 << 20)); shared.fill(2);
  let wasm = new WebAssembly.Memory({ initial: 16, maximum: 1024 }); wasm.grow(64);
  console.log(text.length, a.length, shared.reduce((x, y) => x + y), wasm.buffer.byteLength, new Map(a.map((o) => [o.s, o.i])).size);
  Promise.all(jobs).then((hashes) => console.log(hashes.join("\\n")));
}
"""

JAVA = """
import java.nio.ByteBuffer; import java.util.*; import java.util.concurrent.*; import java.util.stream.*; import java.util.zip.*;
public class Smoke { public static void main(String[] a) throws Exception {
  ExecutorService pool = Executors.newFixedThreadPool(8); List<Future<Long>> all = new ArrayList<>();
  for (int t = 0; t < 16; t++) { final int n = t; all.add(pool.submit(() -> { long sum = 0;
    for (int r = 0; r < 40; r++) { byte[] b = new byte[1 << 20]; Arrays.fill(b, (byte) (n + r)); CRC32 c = new CRC32(); c.update(b); sum += c.getValue(); } return sum; })); }
  long sum = 0; for (Future<Long> f : all) sum += f.get(); pool.shutdown();
  ByteBuffer[] direct = new ByteBuffer[8]; for (int i = 0; i < 8; i++) { direct[i] = ByteBuffer.allocateDirect(8 << 20); direct[i].putLong(8, i); }
  for (ByteBuffer d : direct) sum += d.getLong(8);
  Map<String, Integer> m = IntStream.range(0, 300000).boxed().collect(Collectors.toMap(i -> "k" + i, i -> i)); System.gc();
  System.out.println(sum + " " + m.size()); try { byte[] big = new byte[Integer.MAX_VALUE - 8]; System.out.println(big.length); } catch (OutOfMemoryError e) { System.out.println("OutOfMemoryError"); }
} }
"""


@pytest.mark.long
@pytest.mark.timeout_seconds(600)
def test_node_says_the_same(guard, tmp_path, record_property):
    """V8 reserves address space by the terabyte: none of it counts."""
    script = tmp_path / "smoke.js"
    script.write_text(NODE)
    assert_same(guard, [need("node", "nodejs"), script], least_mib=100)
    peak = max(p["peak_bytes"] for p in guard.processes())
    assert 100 * MIB < peak < 3000 * MIB
    record_property("note", f"Node.js: workers, Buffers, zlib, crypto, WebAssembly; peak {peak // MIB} MiB")


JAVA_HEAP_MIB = 512


def bytes_of(number, unit):
    """As the virtual machine prints it, by its version."""
    return int(number) * (1024 if unit else 1)


@pytest.mark.long
@pytest.mark.timeout_seconds(900)
@pytest.mark.parametrize("collector", ["SerialGC", "ParallelGC", "G1GC", "ZGC"])
def test_openjdk_says_the_same(guard, tmp_path, record_property, collector):
    """What the guard counted is what the virtual machine's own books say that it took, also where ZGC maps its heap, a memory file, at
    three places."""
    need("javac")
    source = tmp_path / "Smoke.java"
    source.write_text(JAVA)
    command = [need("java"), f"-XX:+Use{collector}", f"-Xms{JAVA_HEAP_MIB}m", f"-Xmx{JAVA_HEAP_MIB}m", "-Xlog:disable"]
    assert "OutOfMemoryError" in assert_same(guard, [*command, source], least_mib=JAVA_HEAP_MIB)
    books = ["-XX:NativeMemoryTracking=summary", "-XX:+UnlockDiagnosticVMOptions", "-XX:+PrintNMTStatistics"]
    done = guard.run([*command, *books, source], timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    own = bytes_of(*re.search(r"^Total: .*committed=(\d+)(KB)?", done.stdout, re.MULTILINE).groups()) // MIB
    peak = done.process()["peak_bytes"] // MIB
    assert own - 24 <= peak <= own + 64, f"{peak} MiB counted, {own} taken"  # stacks and libraries; arenas that went
    record_property("note", f"OpenJDK -Xms{JAVA_HEAP_MIB}m, {collector}: peak {peak} MiB, of its own books {own}")


def write_metrics(path, series=200, samples=8000):
    """Of some 45 MB."""
    with path.open("w") as file:
        file.write("# TYPE work gauge\n")
        for one in range(series):
            file.writelines(f'work{{s="{one}"}} {one * i % 9973} {1600000000 + 15 * i}\n' for i in range(samples))
        file.write("# EOF\n")


@pytest.mark.long
@pytest.mark.timeout_seconds(1200)
def test_a_go_program_makes_the_same_database(guard, tmp_path, record_property):
    """Linked with a libc, Go's runtime maps its heap through that, by arenas of 64 MiB, and these are counted; linked without, it
    asks the kernel itself and does not load the library at all."""
    promtool = DEPS / "prometheus/bin/promtool"
    if not promtool.exists():
        pytest.skip("no Go program here; scripts/install-deps ecosystem fetches one")
    metrics, database = tmp_path / "metrics", tmp_path / "database"
    write_metrics(metrics)
    make = [promtool, "tsdb", "create-blocks-from", "openmetrics", metrics, database]
    # The names of blocks are made of the time and by chance, what is equal has no order, and without a log nothing is dumped.
    show = 'mkdir "$1/wal"; "$0" tsdb list "$1" | cut -c 27-; "$0" tsdb dump "$1" | cksum; '
    show += '"$0" tsdb analyze --limit=1000 "$1" | grep -v "^Block ID" | sort'
    said, heap = {}, 0
    for is_guarded in (False, True):
        shutil.rmtree(database, ignore_errors=True)
        preload = None if is_guarded else []
        done = guard.run(make, env={"GODEBUG": "gctrace=1"}, preload=preload, timeout=500)
        assert done.returncode == 0 and "sparkguard" not in done.stderr, done.stderr
        heap = max(int(mib) for mib in re.findall(r"^gc .* (?:\d+)->(\d+)->\d+ MB", done.stderr, re.MULTILINE))
        shown = guard.run(["sh", "-c", show, promtool, database], preload=preload, timeout=500)
        said[is_guarded] = (shown.returncode, shown.stdout, shown.stderr)
    assert said[True] == said[False] and said[True][0] == 0 and said[True][2] == "" and said[True][1].count(" 800 ") > 10
    is_static = "INTERP" not in subprocess.run(["readelf", "-lW", promtool], capture_output=True, text=True, check=True).stdout
    assert complaints(guard, 0 if is_static else 16) == []  # what sorts its answers is guarded in any case
    peak = max((p["peak_bytes"] // MIB for p in guard.processes(done.pid)), default=0)
    if is_static:
        assert peak == 0
    else:
        arenas = (heap + 63) // 64
        assert heap <= peak <= (arenas + 1) * 64, f"{peak} MiB counted, a heap of {heap}"
    seen = "not counted, as it is linked statically" if is_static else f"a heap of {heap} MiB, {peak} counted: libc maps its arenas of 64"
    record_property("note", f"promtool (Go): {said[True][1].count(' 800 ')} blocks of 45 MB of metrics, the same; {seen}")


# ---- Chromium ------------------------------------------------------------------------------------------------------------

PAGE = "data:text/html,<p>x</p><script>document.write(new Array(3e6).fill(7).length)</script>"


@pytest.fixture
def short_path():
    """A folder whose name leaves room for a socket's in 108 bytes, which Chromium makes there."""
    with tempfile.TemporaryDirectory(prefix="sg-") as folder:
        yield Path(folder)


@pytest.mark.long
@pytest.mark.timeout_seconds(600)
@pytest.mark.parametrize("sandbox", ["sandboxed", "no-sandbox"])
def test_chromium_shows_the_same_page(guard, short_path, record_property, sandbox):
    """In its sandbox no renderer may be ended by a call of ours; one of them cannot keep statistics, and says so."""
    chromium = need("chromium", "chromium-browser", "google-chrome")
    place, options = short_path, {}
    if sandbox == "sandboxed" and os.geteuid() == 0:
        options = as_nobody(guard, place)
    env = {"HOME": place, "TMPDIR": place, "XDG_RUNTIME_DIR": place, "XDG_STATE_HOME": None}
    said = {}
    for is_guarded in (False, True):
        command = [chromium, "--headless", "--disable-gpu", f"--user-data-dir={place / str(is_guarded)}", "--dump-dom", PAGE]
        command[1:1] = ["--no-sandbox"] if sandbox == "no-sandbox" else []
        done = guard.run(command, env=env, preload=None if is_guarded else [], timeout=280, cwd=place, **options)
        if not is_guarded and done.returncode != 0:
            pytest.skip(f"Chromium does not run here: {done.stderr.strip().splitlines()[-1][:160]}")
        assert "seccomp-bpf failure" not in done.stderr
        said[is_guarded] = (done.returncode, done.stdout)
        ours = [line for line in done.stderr.splitlines() if line.startswith("sparkguard")]
    assert said[True] == said[False] and "3000000" in said[True][1]
    assert all("cannot keep statistics" in line for line in ours) and (sandbox == "sandboxed" or ours == [])
    assert complaints(guard, 16) == []
    if ours:
        record_property("note", f"Chromium: {len(ours)} sandboxed processes say that they cannot keep statistics")
