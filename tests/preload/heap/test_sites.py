"""Large blocks by call site: which library asked for them, at which offset, as nm(1) tells it from outside."""

import mmap
import resource
import subprocess
import textwrap

import pytest
from lib.target import CC, PYTHON
from lib.waiting import wait_until

KIB, MIB = 1 << 10, 1 << 20

# One function for each way to ask; what it gives back is kept in a variable, so that no call is the function's last.
LIBRARY = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
void *volatile last;
void *take(size_t n) { return last = malloc(n); }
void *take_zeroed(size_t n) { return last = calloc(1, n); }
void *take_aligned(size_t n) { void *p = NULL; return last = posix_memalign(&p, 4096, n) == 0 ? p : NULL; }
void *resize(void *p, size_t n) { return last = realloc(p, n); }
void give(void *p) { free(p); }
void *map(size_t n) { return last = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
void *reserve(size_t n) { return last = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
int commit(char *p, size_t n) { return mprotect(p, n, PROT_READ | PROT_WRITE); }
int unmap(char *p, size_t n) { return munmap(p, n); }
void *remap(void *p, size_t n, size_t m) { return last = mremap(p, n, m, MREMAP_MAYMOVE); }
"""

PRELUDE = """
import _ctypes, ctypes, os, sys
from ctypes import c_size_t as size, c_void_p as pointer
KIB, MIB = 1 << 10, 1 << 20
def load(path):
    library = ctypes.CDLL(path)
    for name in "take", "take_zeroed", "take_aligned", "resize", "map", "reserve", "remap":
        if hasattr(library, name):
            getattr(library, name).restype = pointer
    return library
one, two = map(load, sys.argv[1:3])
"""


def build_library(folder, name, source=LIBRARY):
    path = folder / f"lib{name}.so"
    (folder / f"{name}.c").write_text(source)
    subprocess.run([CC, "-O1", "-fno-builtin", "-shared", "-fPIC", folder / f"{name}.c", "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("libraries")
    return build_library(folder, "one"), build_library(folder, "two")


def symbols(path):
    """Name to (address, size), as the file's own table has them."""
    lines = subprocess.run(["nm", "-S", path], check=True, capture_output=True, text=True).stdout.splitlines()
    fields = [line.split() for line in lines]
    return {f[3]: (int(f[0], 16), int(f[1], 16)) for f in fields if len(f) == 4}


def held(process, key, *paths):
    """(library, function) to bytes, of `blocks_at_peak` or `blocks_at_refusal`."""
    found = {}
    for block in process[key]:
        for path in paths:
            if block["library"] == path.name:
                (name,) = [n for n, (at, length) in symbols(path).items() if at < block["offset"] <= at + length]
                found[path.name, name] = block["bytes"]
    return found


def blocks_of(process, *paths):
    """(library, function) to (domain, bytes, count) of these files' blocks. An address that a call returns to is behind
    the call: never a function's first, at most its end."""
    found = {}
    for block in process["blocks"]:
        for path in paths:
            if block["library"] != path.name:
                continue
            names = [n for n, (at, length) in symbols(path).items() if at < block["offset"] <= at + length]
            assert len(names) == 1, (block, symbols(path))
            assert (path.name, names[0]) not in found
            found[path.name, names[0]] = (block["domain"], block["bytes"], block["count"])
            assert block["peak_bytes"] >= block["bytes"]
    return found


@pytest.fixture
def run(guard, libraries):
    def run(code, **variables):
        command = [PYTHON, "-S", "-c", PRELUDE + textwrap.dedent(code), *libraries]
        done = guard.run(command, env=variables)
        assert done.returncode in (0, -9), done.stderr
        return done

    return run


def near(bytes_, wanted):
    """Heap blocks count by usable size: up to a page more each, two where aligned."""
    return wanted <= bytes_ <= wanted + 16 * mmap.PAGESIZE


def test_blocks_are_told_apart_by_library_and_function_even_after_a_kill(run, libraries):
    done = run("""
        for _ in range(3):
            one.take(size(8 * MIB))
        one.take_zeroed(size(5 * MIB))
        two.take(size(16 * MIB))
        two.take_aligned(size(4 * MIB))
        two.map(size(6 * MIB))
        os.kill(os.getpid(), 9)
    """)
    found = blocks_of(done.process(), *libraries)
    assert {key: (domain, count) for key, (domain, _, count) in found.items()} == {
        ("libone.so", "take"): ("heap", 3),
        ("libone.so", "take_zeroed"): ("heap", 1),
        ("libtwo.so", "take"): ("heap", 1),
        ("libtwo.so", "take_aligned"): ("heap", 1),
        ("libtwo.so", "map"): ("mapped", 1),
    }
    sizes = {key: size for key, (_, size, _) in found.items()}
    assert near(sizes["libone.so", "take"], 24 * MIB) and near(sizes["libone.so", "take_zeroed"], 5 * MIB)
    assert near(sizes["libtwo.so", "take"], 16 * MIB) and near(sizes["libtwo.so", "take_aligned"], 4 * MIB)
    assert sizes["libtwo.so", "map"] == 6 * MIB
    shown = done.guard.report_command(done.pid).stdout
    assert "libone.so+0x" in shown and "libtwo.so+0x" in shown


def test_freed_blocks_are_gone_and_resized_ones_belong_to_who_resized_them(run, libraries):
    done = run("""
        kept = [one.take(size(20 * MIB)) for _ in range(3)]
        one.give(pointer(kept[0]))
        two.resize(pointer(kept[1]), size(50 * MIB))
        shrunk = two.take(size(30 * MIB))
        one.resize(pointer(shrunk), size(100 * KIB))
        gone = two.take_zeroed(size(30 * MIB))
        two.give(pointer(gone))
    """)
    found = blocks_of(done.process(), *libraries)
    assert sorted(found) == [("libone.so", "take"), ("libtwo.so", "resize")]
    assert found["libone.so", "take"][2] == found["libtwo.so", "resize"][2] == 1
    assert near(found["libone.so", "take"][1], 20 * MIB) and near(found["libtwo.so", "resize"][1], 50 * MIB)


def test_a_refused_resize_leaves_the_block_to_its_site(run, libraries):
    done = run(
        """
        kept = one.take(size(40 * MIB))
        assert two.resize(pointer(kept), size(400 * MIB)) is None
        """,
        SPARKGUARD_LIMIT="200M",
    )
    found = blocks_of(done.process(), *libraries)
    assert list(found) == [("libone.so", "take")] and found["libone.so", "take"][2] == 1


def test_mappings_count_by_what_is_left_of_them(run, libraries):
    done = run("""
        at = one.map(size(8 * MIB))
        one.unmap(pointer(at), size(MIB))
        one.unmap(pointer(at + 4 * MIB), size(2 * MIB))
        reserved = one.reserve(size(64 * MIB))
        one.commit(pointer(reserved + 3 * MIB), size(7 * MIB))
        grown = two.map(size(4 * MIB))
        one.remap(pointer(grown), size(4 * MIB), size(9 * MIB))
        gone = two.reserve(size(32 * MIB))
        two.commit(pointer(gone), size(32 * MIB))
        two.unmap(pointer(gone), size(32 * MIB))
        one.take(size(20 * MIB))
    """)
    found = blocks_of(done.process(), *libraries)
    found.pop(("libone.so", "take"))
    assert found == {
        ("libone.so", "map"): ("mapped", 5 * MIB, 2),
        ("libone.so", "reserve"): ("mapped", 7 * MIB, 1),
        ("libtwo.so", "map"): ("mapped", 9 * MIB, 1),
    }


def test_only_large_blocks_have_a_site(run, libraries):
    code = """
        one.take(size(5 * MIB))
        two.take(size(3 * MIB))
        one.map(size(5 * MIB))
        two.map(size(3 * MIB))
        two.map(size(30 * MIB))
    """
    found = blocks_of(run(code, SPARKGUARD_LARGE="4M").process(), *libraries)
    assert {key: count for key, (_, _, count) in found.items()} == {
        ("libone.so", "take"): 1,
        ("libone.so", "map"): 1,
        ("libtwo.so", "map"): 1,
    }


def test_a_forked_child_goes_on_with_its_parents_blocks(run, libraries):
    done = run("""
        kept = [one.take(size(20 * MIB)) for _ in range(2)]
        mapped = one.map(size(10 * MIB))
        child = os.fork()
        if child == 0:
            one.give(pointer(kept[0]))
            one.unmap(pointer(mapped), size(4 * MIB))
            two.take(size(30 * MIB))
            os._exit(0)
        os.waitpid(child, 0)
        print(child)
    """)
    parent = blocks_of(done.process(), *libraries)
    child = blocks_of(done.guard.process(int(done.stdout)), *libraries)
    assert {key: count for key, (_, _, count) in parent.items()} == {("libone.so", "take"): 2, ("libone.so", "map"): 1}
    assert near(parent["libone.so", "take"][1], 40 * MIB) and parent["libone.so", "map"][1] == 10 * MIB
    assert near(child["libone.so", "take"][1], 20 * MIB) and child["libone.so", "map"] == ("mapped", 6 * MIB, 1)
    assert near(child["libtwo.so", "take"][1], 30 * MIB) and len(child) == 3


def test_a_library_that_is_unloaded_keeps_its_name(run, libraries):
    done = run("""
        two.take(size(20 * MIB))
        _ctypes.dlclose(two._handle)
        assert "libtwo.so" not in open("/proc/self/maps").read()
    """)
    assert list(blocks_of(done.process(), *libraries)) == [("libtwo.so", "take")]


BESIDE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int count, char **arguments)
{
    struct link_map *map;
    struct stat info;
    int fd = open(arguments[count - 1], O_RDONLY);
    void *library = dlopen(arguments[count - 1], RTLD_NOW);
    void *(*take)(size_t) = (void *(*)(size_t))dlsym(library, "take");
    fstat(fd, &info);
    char *plain = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    dlinfo(library, RTLD_DI_LINKMAP, &map);
    take(20 << 20);
    long page = sysconf(_SC_PAGESIZE);
    return plain + (info.st_size + page - 1) / page * page != (char *)map->l_addr;
}
"""


def test_a_plain_map_of_a_library_beside_it_does_not_shift_its_offsets(guard, libraries, tmp_path):
    """Readers of symbols make one, and the kernel puts it directly below the library where there is room."""
    (tmp_path / "beside.c").write_text(BESIDE)
    subprocess.run([CC, "-o", tmp_path / "beside", tmp_path / "beside.c"], check=True)
    done = guard.run([tmp_path / "beside", libraries[0]])
    assert list(blocks_of(done.process(), *libraries)) == [("libone.so", "take")]
    if done.returncode == 1:
        pytest.skip("the kernel put it elsewhere")
    assert done.returncode == 0


NO_DESCRIPTOR = PRELUDE + """
one.take(size(20 * MIB))  # so that its record and its helper are there
full = []
try:
    while True:
        full.append(os.dup(0))
except OSError:
    pass
two.take(size(30 * MIB))
print("taken", flush=True)
sys.stdin.read(1)
"""


def test_a_site_that_was_seen_without_a_descriptor_gets_its_name_later(guard, libraries):
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # noqa: E731
    command = [PYTHON, "-S", "-c", NO_DESCRIPTOR, *libraries]
    with guard.popen(command, stdin=subprocess.PIPE, preexec_fn=limit) as process:
        assert process.stdout.readline() == "taken\n"
        found = wait_until(lambda: process.poll() is not None or blocks_of(guard.processes(process.pid)[0], libraries[1]))
        assert process.poll() is None
        process.communicate("x", timeout=60)
    ((place, (domain, held, count)),) = found.items()
    assert (place, domain, count) == (("libtwo.so", "take"), "heap", 1) and held >= 30 * MIB


def test_what_finds_no_place_is_counted_together(guard, tmp_path):
    source = "#include <stdlib.h>\n" + "".join(
        f"void *volatile last{i}; void take{i}(void) {{ last{i} = malloc(3 << 20); }}\n" for i in range(40)
    )
    source += "void all(void) {" + "".join(f"take{i}();" for i in range(40)) + "}\n"
    library = build_library(tmp_path, "many", source)
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).all()"
    process = guard.run([PYTHON, "-S", "-c", code, library]).process()
    others = [b for b in process["blocks"] if b["library"] is None]
    named = blocks_of(process, library)
    assert 1 <= len(named) <= 30 and len(others) == 1
    assert (others[0]["domain"], others[0]["offset"]) == ("heap", None)
    assert others[0]["count"] + len(named) >= 40  # Python may have asked for a large one itself


@pytest.mark.parametrize("option", ["-no-pie", "-pie"])
def test_offsets_in_an_executable_are_its_symbol_tables(guard, tmp_path, option):
    program = tmp_path / "program"
    code = "#include <stdlib.h>\nvoid *volatile last;\nint main(void) { last = malloc(32 << 20); return last == 0; }\n"
    (tmp_path / "program.c").write_text(code)
    subprocess.run([CC, "-fno-builtin", option, tmp_path / "program.c", "-o", program], check=True)
    process = guard.run([program]).process()
    assert list(blocks_of(process, program)) == [("program", "main")]
    assert len(process["blocks"]) == 1


def test_code_that_is_in_no_file(guard, tmp_path):
    """A copy of a function in anonymous memory, as compilers at run time make it."""
    source = """
        #include <stdlib.h>
        #include <string.h>
        #include <sys/mman.h>
        __attribute__((noinline, section("apart"))) void *copied(void *(*take)(size_t), size_t n)
        { void *volatile p = take(n); return p; }
        extern char __start_apart[], __stop_apart[];
        int main(void)
        {
            size_t n = __stop_apart - __start_apart;
            char *at = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            memcpy(at, __start_apart, n);
            __builtin___clear_cache(at, at + n);
            mprotect(at, 65536, PROT_READ | PROT_EXEC);
            return ((void *(*)(void *(*)(size_t), size_t))at)(malloc, 32 << 20) == NULL;
        }"""
    (tmp_path / "p.c").write_text(source)
    subprocess.run([CC, "-O1", tmp_path / "p.c", "-o", tmp_path / "p"], check=True)
    done = guard.run([tmp_path / "p"])
    assert done.returncode == 0
    (block,) = done.process()["blocks"]
    assert block["library"] == "[anonymous]" and 0 < block["offset"] < 4096


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_after_the_end_it_is_known_who_held_the_memory_at_the_peak_and_at_the_last_refusal(run, libraries, end):
    """All of it was freed before the end. The peak: 64 + 40 + 24 MiB. The last refusal met 64 + 8 MiB."""
    done = run(
        f"""
        first = one.take(size(64 * MIB))
        second = two.take_zeroed(size(40 * MIB))
        mapped = two.map(size(24 * MIB))
        two.give(pointer(second))
        two.unmap(pointer(mapped), size(24 * MIB))
        third = one.map(size(8 * MIB))
        assert two.take(size(900 * MIB)) is None
        one.unmap(pointer(third), size(8 * MIB))
        one.give(pointer(first))
        {end}
        """,
        SPARKGUARD_LIMIT="300M",
    )
    process = done.process()
    assert blocks_of(process, *libraries) == {}
    at_peak = held(process, "blocks_at_peak", *libraries)
    assert at_peak.keys() == {("libone.so", "take"), ("libtwo.so", "take_zeroed"), ("libtwo.so", "map")}
    assert near(at_peak["libone.so", "take"], 64 * MIB) and near(at_peak["libtwo.so", "take_zeroed"], 40 * MIB)
    assert at_peak["libtwo.so", "map"] == 24 * MIB
    at_refusal = held(process, "blocks_at_refusal", *libraries)
    assert at_refusal.keys() == {("libone.so", "take"), ("libone.so", "map")} and at_refusal["libone.so", "map"] == 8 * MIB
    text = done.guard.report_command(done.pid).stdout
    assert "AT THE PEAK" in text and "AT REFUSAL" in text and "libtwo.so+0x" in text


def test_the_peak_is_what_the_sites_hold_until_one_loses_something(run, libraries):
    done = run("one.take(size(18 * MIB)); two.map(size(6 * MIB)); one.take(size(8 * MIB))")
    at_peak = held(done.process(), "blocks_at_peak", *libraries)
    assert near(at_peak["libone.so", "take"], 26 * MIB) and at_peak["libtwo.so", "map"] == 6 * MIB
    assert done.process()["blocks_at_refusal"] == []


def test_a_later_and_higher_peak_replaces_the_first(run, libraries):
    done = run("""
        first = one.take(size(64 * MIB))
        one.give(pointer(first))
        second = two.take(size(65 * MIB))
        two.give(pointer(second))
    """)
    at_peak = held(done.process(), "blocks_at_peak", *libraries)
    assert list(at_peak) == [("libtwo.so", "take")] and near(at_peak["libtwo.so", "take"], 65 * MIB)


def test_the_highest_of_each_mapping_site_is_kept(run, libraries):
    done = run("""
        mapped = one.map(size(22 * MIB))
        one.unmap(pointer(mapped), size(16 * MIB))
        two.map(size(18 * MIB))
    """)
    (block,) = [b for b in done.process()["blocks"] if b["library"] == libraries[0].name]
    assert (block["bytes"], block["peak_bytes"]) == (6 * MIB, 22 * MIB)
