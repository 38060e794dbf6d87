"""Other people's test suites, and programs that do the same each time: servers, languages, frameworks, whole machines."""

import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import only_named
from .place import AT_ONCE, FOREIGN, PYTHON, ROOT, SECONDS, UNPACKED, Place, Suite, Unavailable, libraries_of, need, outcome

TORCH = FOREIGN / "torch"

# ---- suites that pytest runs ------------------------------------------------------------------------------------------------


def results(junit):
    """What each test came to, by its class and name; of several with one name, all of them."""
    said = {}
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        word = next((word for word in ("error", "failure", "skipped") if case.find(word) is not None), "passed")
        said.setdefault(f"{case.get('classname')}::{case.get('name')}", []).append(word)
    return {name: " ".join(sorted(words)) for name, words in said.items()}


def pytest_of(*arguments, environment=(), python=PYTHON, needs=(), seconds=SECONDS):
    """Python packages whose wheels hold their tests, or files of tests."""

    def run(place):
        for path in (python, *needs):
            need(path)
        report, names = place.scratch / "report.xml", place.scratch / "names"
        names.write_text("".join(f"{name}\0" for name in place.only))
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "only_named"]
        command += ["-o", "junit_family=xunit1", f"--junitxml={report}"]
        more = {**dict(environment), only_named.VARIABLE: str(names)}
        more["PYTHONPATH"] = ":".join(filter(None, (more.get("PYTHONPATH"), str(Path(only_named.__file__).parent))))
        done = place._replace(environment={**place.environment, **more}).run([*command, *arguments], seconds)
        if not report.exists():
            return {"the suite": f"status {done.returncode} without a report: {(done.stderr or done.stdout)[-300:]}"}
        return {**results(report), "the suite": f"status {done.returncode}"}

    return run


# ---- suites whose tests are programs: their statuses -----------------------------------------------------------------

WORDS = {0: "passed", 77: "skipped", -signal.SIGALRM: "no end"}


def programs_of(folder, seconds, arguments=None):
    """All programs of a folder, several at once, each in an empty folder of its own; some with arguments."""

    def run(place):
        names = [file.name for file in sorted(need(folder).iterdir()) if place.wants(file.name)]

        def one(name):
            own = place.scratch / name
            own.mkdir()
            done = place._replace(scratch=own).run([folder / name, *(arguments or {}).get(name, ())], seconds)
            return WORDS.get(done.returncode, f"failure, status {done.returncode}")

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return dict(zip(names, pool.map(one, names)))

    return run


# ---- programs whose output is known to be the same each time ----------------------------------------------------------------


def python_says(code, seconds=600):
    def run(place):
        done = place.run([need(PYTHON), "-c", code], seconds)
        return {"output": outcome(done) + ("" if done.returncode == 0 else f": {done.stderr[-300:]}")}

    return run


def shell_says(script, *needed, seconds=1200):
    """`needed`: programs of the unpacked packages or of the machine."""

    def run(place):
        place = place.with_unpacked()
        for name in needed:
            if shutil.which(name, path=place.environment["PATH"]) is None:
                raise Unavailable(f"no {name} here: scripts/install-deps foreign")
        done = place.run(["bash", "-c", f"set -euo pipefail\n{script}"], seconds)
        return {"output": outcome(done) + ("" if done.returncode == 0 else f": {done.stderr[-300:]}")}

    return run


TENSORFLOW = """
import numpy, tensorflow
tensorflow.keras.utils.set_random_seed(7); tensorflow.config.experimental.enable_op_determinism()
x = numpy.random.rand(2048, 64).astype("float32"); y = (x.sum(1) > 32).astype("float32")
model = tensorflow.keras.Sequential([tensorflow.keras.layers.Dense(64, "relu"), tensorflow.keras.layers.Dense(1)])
model.compile("adam", tensorflow.keras.losses.BinaryCrossentropy(from_logits=True))
print([round(v, 4) for v in model.fit(x, y, epochs=5, batch_size=64, verbose=0).history["loss"]])
"""

JAX = """
import jax, jax.numpy as jnp
def loss(w, x, y): return jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - y) ** 2)
key = jax.random.PRNGKey(0); x = jax.random.normal(key, (1024, 128)); y = jnp.sin(x.sum(1, keepdims=True))
w = [jax.random.normal(key, (128, 256)) * 0.1, jax.random.normal(key, (256, 1)) * 0.1]
step = jax.jit(lambda w: jax.tree_util.tree_map(lambda a, g: a - 0.05 * g, w, jax.grad(loss)(w, x, y)))
for _ in range(50): w = step(w)
print(round(float(loss(w, x, y)), 4))
"""

DASK = """
import dask.array as da
from dask.distributed import Client, LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None) as cluster, Client(cluster):
        x = da.random.RandomState(3).random((4000, 4000), chunks=(500, 500))
        print(round(float((x @ x.T).mean().compute()), 6), round(float(da.linalg.norm(x).compute()), 6))
"""

SBCL = """
sbcl --noinform --non-interactive --eval '
(progn (defun grow (n) (let ((h (make-hash-table))) (dotimes (i n) (setf (gethash i h) (make-array 100 :initial-element i))) h))
       (dotimes (k 5) (grow 100000) (gc :full t))
       (let ((threads (loop for k below 4 collect (sb-thread:make-thread (lambda () (hash-table-count (grow 50000)))))))
         (print (mapcar (function sb-thread:join-thread) threads))))'
"""

# The script erl has the place of an installed package written in it: it is done without.
ERLANG = """
export ROOTDIR=$ERL_ROOTDIR EMU=beam PROGNAME=erl
[ -d "$ROOTDIR" ] || export ROOTDIR=/usr/lib/erlang
export BINDIR=$(ls -d "$ROOTDIR"/erts-*/bin)
"$BINDIR/erlexec" -noshell -eval '
  Parent = self(),
  Work = fun(N) -> L = lists:seq(1, 2000), Parent ! {N, lists:sum([X * N rem 7 || X <- L])} end,
  [spawn(fun() -> Work(N) end) || N <- lists:seq(1, 600)],
  Sum = lists:sum([receive {N, S} -> S end || N <- lists:seq(1, 600)]),
  Bins = [binary:copy(<<"x">>, 65536) || _ <- lists:seq(1, 500)],
  io:format("~p ~p~n", [Sum, lists:sum([byte_size(B) || B <- Bins])]), halt().'
"""

# The same bytes out of twelve files, optimised at link time by as many jobs as make allows.
LTO = """
for n in 1 2 3 4 5 6 7 8 9 10 11 12; do
    { for f in $(seq 150); do echo "int f${n}_$f(int x) { int s = x; for (int i = 0; i < x % 9; i++) s = s * 31 + i * $f; return s; }"; done
      echo "int f$n(int x) { int s = 0;"; for f in $(seq 150); do echo "s += f${n}_$f(x + $f);"; done; echo 'return s; }'; } > p$n.c
done
{ for n in $(seq 12); do echo "int f$n(int);"; done; echo '#include <stdio.h>'; echo 'int main(void) { int s = 0;'
  for n in $(seq 12); do echo "s += f$n($n);"; done; echo 'printf("%d\\n", s); return 0; }'; } > main.c
printf 'CFLAGS = -O2 -flto=2 -frandom-seed=7\\nprogram: main.o %s\\n\\t$(CC) $(CFLAGS) -o $@ $^\\n' "$(printf 'p%s.o ' $(seq 12))" > Makefile
make -s -j 4; ./program; strip program; cksum program
"""

LIBREOFFICE = """
soffice=$(command -v soffice)
unset LD_LIBRARY_PATH
{ echo 'a,b,c'; for n in $(seq 2000); do echo "$n,$((n * 7 % 101)),text $n"; done; } > table.csv
HOME=$PWD "$soffice" -env:UserInstallation="file://$PWD/profile" --headless --convert-to ods --outdir . table.csv >/dev/null 2>&1
HOME=$PWD "$soffice" -env:UserInstallation="file://$PWD/profile" --headless --convert-to csv --outdir out table.ods >/dev/null 2>&1
cksum < out/table.csv
"""

FIREFOX = """
unset LD_LIBRARY_PATH
firefox=$(readlink -f "$(command -v firefox-esr)"); firefox=$(dirname "$firefox")/firefox-esr
{ echo '<html><body style="background:#fff">'; for n in $(seq 400); do echo "<p style=\\"color:rgb($((n % 255)),0,0)\\">line $n</p>"; done; } > page.html
HOME=$PWD MOZ_DISABLE_CONTENT_SANDBOX=1 timeout 240 "$firefox" --headless --no-remote --profile "$PWD" --screenshot "$PWD/page.png" --window-size=800,600 "file://$PWD/page.html" >/dev/null 2>&1
test -s page.png; head -c 8 page.png | cksum
"""

# ---- stressors that check what they did -----------------------------------------------------------------------------------------

STRESSORS = (
    "bigheap brk clone context daemon exec fault fork futex madvise malloc mcontend memfd memthrash mincore mlock mmap mmapaddr mmapfixed "
    "mmapfork mmapmany mprotect mremap msync munmap pthread remap rmap secretmem sem shm shm-sysv sigsegv stack stackmmap switch tmpfs "
    "userfaultfd vfork vm vm-addr vm-rw vm-segv vm-splice zombie"
)
BOUNDS = {
    "bigheap": ["--bigheap-ops", "3000"],
    "brk": ["--brk-ops", "20000"],
    "malloc": ["--malloc-bytes", "64M"],
    "mmap": ["--mmap-bytes", "256M"],
    "mremap": ["--mremap-bytes", "64M"],
    "stack": ["--stack-fill"],
    "vm": ["--vm-bytes", "256M"],
}
STRESS_OPTIONS = ["--verify", "-t", "2", "--oomable", "--no-rand-seed"]


def stress(place):
    if shutil.which("stress-ng", path=place.environment["PATH"]) is None:
        raise Unavailable("no stress-ng here: scripts/install-deps foreign")
    found = {}
    for name in filter(place.wants, STRESSORS.split()):
        done = place.run(["stress-ng", f"--{name}", "2", *BOUNDS.get(name, []), *STRESS_OPTIONS], 90)
        bad = re.findall(r"(?:fail|error|unexpected)[^\n]*", done.stderr + done.stdout)
        found[name] = f"status {done.returncode}" + (f", {len(bad)} complaints" if bad else "")
    return found


# ---- a machine in software -------------------------------------------------------------------------------------------

GUESTS = ROOT / ".deps/guest"
QEMU = {
    "x86_64": ("amd64", ["-append", "console=ttyS0 quiet panic=-1"]),
    "aarch64": ("arm64", "-M virt -cpu max,pauth-impdef=on -append".split() + ["console=ttyAMA0 quiet panic=-1"]),
}
GUEST_INIT = """#!/bin/busybox sh
bb=/bin/busybox
$bb mount -t devtmpfs none /dev; $bb mount -t proc none /proc
$bb mount -t tmpfs -o size=160m none /tmp
$bb seq 1 400000 > /tmp/numbers; echo "guest $($bb sha256sum /tmp/numbers)"
echo "guest $($bb gzip -c /tmp/numbers | $bb gunzip -c | $bb sort -n -r | $bb md5sum)"
for n in 1 2 3 4; do echo "guest $($bb dd if=/dev/zero bs=1M count=10 2>/dev/null | $bb md5sum)" & done; wait
echo "guest $($bb uname -sm) $($bb grep -c processor /proc/cpuinfo) the end"
$bb poweroff -f
"""


def qemu(architecture):
    """qemu-system in software with two processors: what the guest prints."""

    def run(place):
        folder, options = QEMU[architecture]
        packed, native = need(GUESTS / folder), QEMU[os.uname().machine][0]
        tree, image = place.scratch / "tree", place.scratch / "initramfs"
        for name in ("bin", "dev", "proc", "tmp"):
            (tree / name).mkdir(parents=True)
        shutil.copy(packed / "bin/busybox", tree / "bin")
        (tree / "init").write_text(GUEST_INIT)
        (tree / "init").chmod(0o755)
        pack = f"find . | sort | {need(GUESTS / native)}/bin/busybox cpio -o -H newc > {image} 2>/dev/null"
        subprocess.run(pack, shell=True, check=True, cwd=tree)
        (kernel,) = (packed / "boot").glob("vmlinuz-*")
        system = GUESTS / "qemu"
        command = [system / f"usr/bin/qemu-system-{architecture}", *options, "-kernel", kernel, "-initrd", image]
        command += ["-L", system / "usr/share/qemu", "-L", system / "usr/share/seabios", "-accel", "tcg,thread=multi"]
        command += "-smp 2 -m 384 -nographic -no-reboot -monitor none -nic none".split()
        environment = {**place.environment, "LD_LIBRARY_PATH": libraries_of(system)}
        done = place._replace(environment=environment).run(command, 500)
        said = re.findall(r"guest [^\r\n]*", done.stdout)
        has_ended = any(line.endswith("the end") for line in said)
        status = f"status {done.returncode}" + ("" if has_ended else f", no end: {(done.stdout + done.stderr)[-300:]}")
        return {"status": status, **{f"said {line}": str(count) for line, count in Counter(said).items()}}

    return run


# ---- servers: each answers a client that counts ---------------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A program that listens on this machine, ended with everything that it started."""

    def __init__(self, place, command, port):
        self.process = subprocess.Popen([str(c) for c in command], cwd=place.scratch, env=place.environment, start_new_session=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        self.port = port

    def __enter__(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                time.sleep(0.05)  # poll: the server answers
        self.__exit__()
        raise RuntimeError(f"{self.process.args[0]} does not listen; status {self.process.poll()}")

    def __exit__(self, *_):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(10)  # limit: the time to end by SIGTERM, then SIGKILL follows
                break
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()


def answers(url, requests=2000, threads=8):
    """What a web server says to each of many requests: how often which bytes."""

    def ask(_):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return f"{answer.status} {hashlib.sha256(answer.read()).hexdigest()[:12]}"
        except OSError as error:
            return f"{type(error).__name__}"

    with ThreadPoolExecutor(threads) as pool:
        said = list(pool.map(ask, range(requests)))
    return {f"answer {word}": str(said.count(word)) for word in sorted(set(said))}


def program(place, name):
    found = shutil.which(name, path=place.environment["PATH"])
    if found is None:
        raise Unavailable(f"no {name} here: scripts/install-deps foreign")
    return found


def memcached(place):
    place = place.with_unpacked()
    port, found = free_port(), {}
    with Server(place, [program(place, "memcached"), "-u", "root", "-l", "127.0.0.1", "-p", port, "-m", "128", "-t", "4"], port):
        with socket.create_connection(("127.0.0.1", port)) as client, client.makefile("rb") as answers_:
            for number in range(20000):
                body = str(number).encode() * (1 + number % 900)
                client.sendall(b"set k%d 0 0 %d\r\n%s\r\n" % (number % 5000, len(body), body))
                word = answers_.readline().strip().decode()
                found[word] = found.get(word, 0) + 1
            for number in range(5000):
                client.sendall(b"get k%d\r\n" % number)
                line = answers_.readline()
                if line.startswith(b"VALUE"):
                    answers_.read(int(line.split()[3]) + 2)
                    answers_.readline()
                found[line.split()[0].decode()] = found.get(line.split()[0].decode(), 0) + 1
    return {word: str(count) for word, count in found.items()}


def write_page(place):
    folder = place.scratch / "www"
    folder.mkdir()
    (folder / "page.html").write_text("".join(f"line {n}\n" for n in range(20000)))
    (folder / "work.php").write_text('<?php $a = []; for ($i = 0; $i < 20000; $i++) $a[$i % 997] = str_repeat("x", $i % 300); echo crc32(implode(",", $a));')
    return folder


def nginx_with_php(place):
    place = place.with_unpacked()
    folder, port, php_port = write_page(place), free_port(), free_port()
    fpm = next((name for name in ("php-fpm", "php-fpm8.2", "php-fpm8.3") if shutil.which(name, path=place.environment["PATH"])), "php-fpm8.2")
    (place.scratch / "fpm.conf").write_text(
        f"[global]\nerror_log = {place.scratch}/fpm.log\ndaemonize = no\n[www]\nuser = root\ngroup = root\nlisten = 127.0.0.1:{php_port}\n"
        "pm = dynamic\npm.max_children = 6\npm.start_servers = 2\npm.min_spare_servers = 1\npm.max_spare_servers = 3\npm.max_requests = 100\n"
    )
    parameters = "".join(
        f"fastcgi_param {name} {value};" for name, value in (("SCRIPT_FILENAME", f"{folder}$fastcgi_script_name"), ("REQUEST_METHOD", "$request_method"))
    )
    (place.scratch / "nginx.conf").write_text(
        f"user root; worker_processes 4; pid {place.scratch}/nginx.pid; error_log {place.scratch}/error.log; daemon off;\n"
        f"events {{ }} http {{ access_log off; client_body_temp_path {place.scratch}/b; proxy_temp_path {place.scratch}/p;\n"
        f"fastcgi_temp_path {place.scratch}/f; uwsgi_temp_path {place.scratch}/u; scgi_temp_path {place.scratch}/s;\n"
        f"server {{ listen 127.0.0.1:{port}; root {folder}; gzip on; gzip_types *; location ~ php$ {{ {parameters} fastcgi_pass 127.0.0.1:{php_port}; }} }} }}\n"
    )
    fpm_command = [program(place, fpm), "-R", "-n", "-F", "-y", place.scratch / "fpm.conf"]
    with Server(place, fpm_command, php_port), Server(place, [program(place, "nginx"), "-c", place.scratch / "nginx.conf", "-e", place.scratch / "error.log"], port):
        found = answers(f"http://127.0.0.1:{port}/page.html")
        return {**found, **{f"php {word}": count for word, count in answers(f"http://127.0.0.1:{port}/work.php", 600).items()}}


def plain_server(place):
    """Python's own, unguarded: what stands behind haproxy and varnish."""
    port = free_port()
    quiet = Place(write_page(place), {key: value for key, value in place.environment.items() if key != "LD_PRELOAD"})
    return Server(quiet, ["/usr/bin/python3", "-m", "http.server", port, "--bind", "127.0.0.1"], port)


def haproxy(place):
    place = place.with_unpacked()
    with plain_server(place) as behind:
        port = free_port()
        (place.scratch / "haproxy.cfg").write_text(
            "global\n nbthread 4\n maxconn 500\ndefaults\n mode http\n timeout connect 10s\n timeout client 20s\n timeout server 20s\n"
            f"frontend f\n bind 127.0.0.1:{port}\n compression algo gzip\n default_backend b\nbackend b\n server s 127.0.0.1:{behind.port}\n"
        )
        with Server(place, [program(place, "haproxy"), "-f", place.scratch / "haproxy.cfg"], port):
            return answers(f"http://127.0.0.1:{port}/page.html", 1000)


def varnish(place):
    place = place.with_unpacked()
    with plain_server(place) as behind:
        port = free_port()
        command = [program(place, "varnishd"), "-F", "-a", f"127.0.0.1:{port}", "-b", f"127.0.0.1:{behind.port}", "-n", place.scratch / "varnish",
                   "-s", "malloc,64m", "-j", "none", "-p", "cc_command=exec cc -fpic -shared -Wl,-x -o %o %s"]  # fmt: skip
        with Server(place, command, port):
            return answers(f"http://127.0.0.1:{port}/page.html", 1500)


def mariadb(place):
    """A database made from nothing, worked on by several clients at once, and dumped."""
    place = place.with_unpacked()
    server, client = program(place, "mariadbd"), program(place, "mariadb")
    share, data, port = UNPACKED / "usr/share/mysql", place.scratch / "data", free_port()
    data.mkdir()
    common = [server, "--no-defaults", f"--datadir={data}", f"--lc-messages-dir={share}", f"--plugin-dir={data}", "--user=root",
              f"--socket={place.scratch}/s", f"--pid-file={place.scratch}/pid", "--innodb-buffer-pool-size=64M"]  # fmt: skip
    (data / "mysql").mkdir()
    tables = "".join((share / name).read_text() for name in ("mysql_system_tables.sql", "mysql_system_tables_data.sql"))
    made = subprocess.run(
        [str(c) for c in (*common, "--bootstrap")], input="use mysql;\n" + tables, env=place.environment, cwd=place.scratch,
        capture_output=True, text=True, errors="replace", timeout=600,
    )  # fmt: skip
    if made.returncode != 0:
        return {"bootstrap": f"status {made.returncode}: {made.stderr[-200:]}"}
    found = {}
    with Server(place, [*common, "--skip-grant-tables", f"--port={port}", "--bind-address=127.0.0.1"], port):

        def sql(text):
            done = subprocess.run([client, "--no-defaults", f"--socket={place.scratch}/s", "-N", "-e", text], env=place.environment,
                                  capture_output=True, text=True, timeout=300)  # fmt: skip
            return done.stdout if done.returncode == 0 else f"status {done.returncode}: {done.stderr[-200:]}"

        sql("create database d; create table d.t(id int primary key auto_increment, worker int, data longblob, key(worker)) engine=innodb")
        insert = "; ".join("insert into d.t(worker, data) select {0}, repeat('x', 1 + seq * 37 % 4000) from seq_1_to_400" for _ in range(5))
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda n: sql("use d; " + insert.format(n)), range(6)))
        found["sums"] = sql("select worker, count(*), sum(length(data)), sum(crc32(data)) from d.t group by worker order by worker")
        found["check"] = sql("alter table d.t force; check table d.t")
        found["sort"] = sql("select crc32(group_concat(length(data) order by length(data), id)) from (select id, data from d.t where id % 37 = 0) x")
    return found


# ---- all of them ------------------------------------------------------------------------------------------------------------------

# Threads, scale in percent, rounds.
STRESS = {name: ("4", "10", "3") for name in ("test-stress", "debug-stress", "override-stress")}
# The others repeat the same with other kinds of workers, or mostly wait, for up to a minute each.
DATALOADER = ("PersistentWorkers", "WorkerQueue", "IntegrationTest", "iterable", "get_worker_info", "proper_exit")
DATALOADER += ("multiprocessing_contexts", "reproducibility", "large_sampler", "segfault", "timeout")
DATALOADER = " and ".join(f"not {name}" for name in DATALOADER)


def torch_tests(name, *options):
    """By the distribution's Python, with which its PyTorch works."""
    packages = TORCH / "usr/lib/python3/dist-packages"
    file, python = TORCH / "tests" / name, Path("/usr/bin/python3")
    environment = {
        "PYTHONPATH": f"{packages}:{TORCH}/expecttest",
        "LD_LIBRARY_PATH": libraries_of(TORCH),
        "OMP_NUM_THREADS": "2",
    }
    return pytest_of(file, *options, environment=environment.items(), python=python, needs=(packages / "torch", file))


NUMPY = [f"numpy._core.tests.test_{name}" for name in ("multiarray", "nditer", "memmap", "mem_overlap")] + ["numpy.linalg", "numpy.lib"]
PANDAS = [f"pandas.tests.{name}" for name in ("reshape.merge", "reshape.concat", "io.parser.common")]
JOBLIB = [f"joblib.test.test_{name}" for name in ("memmapping", "hashing", "memory")]
DASK_TESTS = [f"dask.array.tests.test_{name}" for name in ("array_core", "linalg")]
QUICK = ("-m", "not slow and not network")
FEW_THREADS = (("OMP_NUM_THREADS", "2"), ("OPENBLAS_NUM_THREADS", "2"))

SUITES = {
    "numpy": Suite("numpy's tests of arrays, iterators, linalg and lib", pytest_of("--pyargs", *NUMPY, *QUICK, environment=FEW_THREADS)),
    "scipy": Suite("scipy's tests of linalg and fft", pytest_of("--pyargs", "scipy.linalg", "scipy.fft", *QUICK, environment=FEW_THREADS)),
    "pandas": Suite("pandas' tests of merging, concatenating and text files", pytest_of("--pyargs", *PANDAS, *QUICK)),
    "joblib": Suite("joblib's tests of memory maps, hashing and caches", pytest_of("--pyargs", *JOBLIB)),
    "scikit-learn": Suite("scikit-learn's tests of its clusters", pytest_of("--pyargs", "sklearn.cluster", environment=FEW_THREADS)),
    "dask": Suite("dask's tests of arrays and linear algebra", pytest_of("--pyargs", *DASK_TESTS, *QUICK)),
    "dask-cluster": Suite("a cluster of two dask workers", python_says(DASK)),
    "tensorflow": Suite("TensorFlow trains a small model", python_says(TENSORFLOW)),
    "jax": Suite("JAX trains a small model", python_says(JAX)),
    "stress-ng": Suite("45 stressors with --verify", stress),
    "glibc": Suite("glibc's own tests of malloc, nptl, posix and stdlib that build alone", programs_of(FOREIGN / "glibc/bin", 120)),
    "mimalloc": Suite("mimalloc's own tests, also where it is the program's malloc", programs_of(FOREIGN / "mimalloc/bin", 300, STRESS)),
    "qemu-x86_64": Suite("qemu-system of x86-64 boots a kernel and works", qemu("x86_64")),
    "qemu-aarch64": Suite("qemu-system of aarch64 boots a kernel and works", qemu("aarch64")),
    "torch-dataloader": Suite("torch's test_dataloader, what does not wait", torch_tests("test_dataloader.py", "-k", DATALOADER)),
    "torch-multiprocessing": Suite("torch's test_multiprocessing", torch_tests("test_multiprocessing.py")),
    "memcached": Suite("memcached under a client that counts", memcached),
    "nginx-php": Suite("nginx with php-fpm, 2,600 requests", nginx_with_php),
    "haproxy": Suite("haproxy, 1,000 requests", haproxy),
    "varnish": Suite("varnish, 1,500 requests", varnish),
    "mariadb": Suite("MariaDB: six clients at once", mariadb),
    "sbcl": Suite("SBCL: threads and full collections", shell_says(SBCL, "sbcl")),
    "erlang": Suite("Erlang: 600 processes", shell_says(ERLANG, "erl")),
    "gcc-lto": Suite("a build with link-time optimisation, make -j", shell_says(LTO, "gcc", "make")),
    "libreoffice": Suite("LibreOffice converts a table", shell_says(LIBREOFFICE, "soffice")),
    "firefox": Suite("Firefox renders a page", shell_says(FIREFOX, "firefox-esr")),
}
