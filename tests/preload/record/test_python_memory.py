"""The helpers of training scripts in the package sparkguard, its arithmetic of micro-batches, and %%memory, without a framework."""

import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "tools/python"
sys.path.insert(0, str(PACKAGE))
from sparkguard import _batches  # noqa: E402

GIB = 1 << 30
HELD = "import mmap\nheld = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"  # a GiB that nobody touches


@pytest.fixture
def python(guard, build):
    def run(text, **env):
        variables = {"PYTHONPATH": PACKAGE, "PATH": f"{build}:/usr/bin:/bin"} | env
        done = guard.run([sys.executable, "-c", "import os, sparkguard\n" + text], env=variables)
        assert done.returncode == 0, done.stderr
        done.said = done.stdout.splitlines()
        return done

    return run


# ---- helpers ----------------------------------------------------------------------------------------------------------


def test_statistics_have_the_keys_of_training_scripts(python):
    done = python(
        HELD
        + """
now = sparkguard.get_memory_stats()
print(*now)
print(now["allocated_gb"] == now["reserved_gb"], 1 <= now["allocated_gb"] < 1.1, now["max_allocated_gb"] == now["max_reserved_gb"] >= 1)
print(abs(now["total_gb"] - now["free_gb"] - now["allocated_gb"]) < 1e-9, now["free_gb"] > 0, now["num_alloc_retries"])
"""
    )
    keys = "allocated_gb reserved_gb max_allocated_gb max_reserved_gb total_gb free_gb num_alloc_retries"
    assert done.said == [keys, "True True True", "True True 0"]


def test_bar_shows_the_share_of_the_total(python):
    done = python(HELD + "sparkguard.print_memory_stats('Now')\nprint(sparkguard.get_memory_stats()['total_gb'])")
    head, allocated, free, total, bar, precise = done.said
    assert head == "Now memory:" and allocated.split()[1].startswith("1.0") and free.endswith(" GiB") and total.endswith(" GiB")
    share = round(100 / float(precise), 1)  # as the bar's figure
    gib = float(allocated.split()[1])  # rounded to hundredths
    assert bar.count("█") in {int(40 * (gib + error) / float(precise)) for error in (-0.005, 0.005)}
    assert bar.count("█") + bar.count("░") == 40
    assert share <= float(bar.split()[-1].rstrip("%")) < share + 10


def test_bar_needs_no_unicode(python):
    done = python(HELD + "sparkguard.print_memory_stats()", PYTHONIOENCODING="ascii")
    bar = done.said[-1].split("[")[1].split("]")[0]
    assert len(bar) == 40 and set(bar) <= {"#", "."}


@pytest.mark.parametrize("choice, expected", [("on", "True"), ("off", "False")])
def test_unified_memory_is_what_was_chosen(python, choice, expected):
    text = "print(sparkguard.is_unified_memory_system(), sparkguard.get_memory_config()['memory_pool'])"
    pool = "unified" if expected == "True" else "standard"
    assert python(text, SPARKGUARD_UNIFIED=choice).said == [f"{expected} {pool}"]


def test_settings_say_what_unified_memory_needs(python):
    text = """
for unified in (True, False):
    config = sparkguard.get_memory_config(unified_memory=unified)
    print(config["pin_memory"], config["disable_cpu_offload"], config["expandable_segments"], len(config))
"""
    assert python(text).said == ["False True True 6", "True False False 6"]


def test_environment_is_set_on_unified_memory_only_and_never_overridden(python):
    text = "sparkguard.setup_unified_memory_env()\nprint(*(os.environ.get(n) for n in ('PYTORCH_CUDA_ALLOC_CONF', 'CUDA_MANAGED_FORCE_DEVICE_ALLOC')))"
    assert python(text, SPARKGUARD_UNIFIED="on").said == ["expandable_segments:True None"]
    assert python(text, SPARKGUARD_UNIFIED="off").said == ["None None"]
    assert python(text, SPARKGUARD_UNIFIED="on", PYTORCH_CUDA_ALLOC_CONF="x:1").said == ["x:1 None"]
    assert python(text, SPARKGUARD_UNIFIED="on", PYTORCH_ALLOC_CONF="x:1").said == ["None None"]
    text = "sparkguard.setup_unified_memory_env()\nprint(os.environ['MIMALLOC_ARENA_EAGER_COMMIT'])"
    assert python(text, SPARKGUARD_UNIFIED="off").said == ["0"]
    assert python(text, SPARKGUARD_UNIFIED="off", MIMALLOC_ARENA_EAGER_COMMIT="1").said == ["1"]


def test_tensors_are_still_placed_on_the_device(python):
    text = """
given = {"mixed_precision": "bf16"}
print(sparkguard.configure_accelerator_for_unified_memory(given), given)
print(sparkguard.configure_accelerator_for_unified_memory({"device_placement": False}))
"""
    assert python(text, SPARKGUARD_UNIFIED="on").said == [
        "{'device_placement': True, 'mixed_precision': 'bf16'} {'mixed_precision': 'bf16'}",
        "{'device_placement': False}",
    ]


def test_memory_that_nothing_names_is_given_back(python):
    text = """
class Node: pass
one, two = Node(), Node()
one.other, two.other, one.data = two, one, bytearray(200 << 20)
del one, two
before = sparkguard.stats()["live_bytes"]
sparkguard.clear_memory()
print(before - sparkguard.stats()["live_bytes"] >= 200 << 20, sparkguard.stats()["peak_bytes"] < before)
"""
    assert python(text).said == ["True True"]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8 kB\nBuffers: 1048576 kB\nCached: 2097152 kB\nSReclaimable: 524288 kB\n")
    return tmp_path


def test_page_cache_is_counted_and_cleared(python, root):
    text = "print(sparkguard.check_buffer_cache())\nprint(sparkguard.clear_buffer_cache())"
    done = python(text, SPARKGUARD_SYSTEM_ROOT=root, LD_PRELOAD=None)
    assert done.said == ["3.5", "Page cache cleared: 3.5 GiB before, 3.5 GiB after", "True"]
    assert (root / "proc/sys/vm/drop_caches").read_text() == "3\n"


def test_without_the_right_the_command_is_said(python, root):
    (root / "proc/sys/vm/drop_caches").mkdir()  # cannot be written, not even by root
    done = python("print(sparkguard.clear_buffer_cache())", SPARKGUARD_SYSTEM_ROOT=root, LD_PRELOAD=None)
    assert "needs root, outside a container" in done.said[0] and "sudo sh -c 'sync; echo 3" in done.said[1] and done.said[2] == "False"


def test_without_the_guard_functions_answer_as_documented(python):
    text = """
print(sparkguard.active(), sparkguard.stats(), sparkguard.get_memory_stats(), sparkguard.is_unified_memory_system())
print(sparkguard.mark("x"), sparkguard.reset_peak(), sparkguard.refusals(), sparkguard.explain(MemoryError()))
print(sparkguard.log_memory_usage(), sparkguard.reset_peak_memory_stats(), sparkguard.clear_memory(), sparkguard.setup_unified_memory_env())
sparkguard.print_memory_stats()
print(sparkguard.get_memory_config()["memory_pool"], sparkguard.check_buffer_cache() > 0)
"""
    assert python(text, LD_PRELOAD=None, SPARKGUARD_UNIFIED=None).said == [
        "False None None None",
        "False False [] None",
        "None None None None",
        "Current memory: not under sparkguard",
        "standard True",
    ]


def test_every_function_is_documented_and_no_framework_is_imported(python):
    done = python(
        """
import inspect, sys
for name in sparkguard.__all__:
    if not name.startswith("__") and not inspect.getdoc(getattr(sparkguard, name)):
        print("undocumented", name)
from sparkguard import accelerate, lightning, transformers, trl
print(sparkguard.lightning is lightning, [name for name in ("torch", "numpy", "IPython", "transformers") if name in sys.modules])
print(*sparkguard.__all__, "load_ipython_extension")
"""
    )
    assert done.said[0] == "True []"
    reference = (PACKAGE.parents[1] / "docs/python.md").read_text()
    missing = [name for name in done.said[1].split() if f"`{name}" not in reference and name not in ("__version__", "load_ipython_extension")]
    assert missing == []


# ---- micro-batches ----------------------------------------------------------------------------------------------------


def test_a_batch_is_split_evenly_and_by_a_divisor_where_one_is_near():
    assert _batches.bounds(32, None) == [(0, 32)]
    assert _batches.bounds(32, 19) == [(0, 16), (16, 32)]
    assert [end - begin for begin, end in _batches.bounds(32, 11)] == [8] * 4
    assert [end - begin for begin, end in _batches.bounds(31, 11)] == [11, 10, 10]
    assert _batches.bounds(3, 1) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("size", range(1, 70))
def test_a_smaller_bound_makes_more_parts_and_no_sample_is_lost(size):
    for largest in range(1, size + 1):
        bounds = _batches.bounds(size, largest)
        lengths = [end - begin for begin, end in bounds]
        assert bounds[0][0] == 0 and bounds[-1][1] == size and all(a[1] == b[0] for a, b in zip(bounds, bounds[1:]))
        assert max(lengths) <= largest and max(lengths) - min(lengths) <= 1
        if max(lengths) > 1:
            assert len(_batches.bounds(size, max(lengths) - 1)) > len(bounds)


def test_fit_follows_the_slope_and_not_the_half():
    assert _batches.largest_fit((4, 140), (8, 180), 100 + 10 * 27.5) == 27
    assert _batches.largest_fit((4, 140), (8, 180), 90) == 1
    assert _batches.largest_fit((4, 140), (8, 140), 1000) is None
    assert [_batches.probe_sizes(size) for size in (3, 8, 32)] == [(1, 2), (1, 2), (4, 8)]


def test_what_was_left_has_no_reserve_in_it():
    assert _batches.left_bytes("limit", 50, 10) == 50
    assert [_batches.left_bytes("reserve", usable, 10) for usable in (50, 7)] == [40, 0]
    assert _batches.left_bytes("device", 50, 10) == 0


class Array:
    """Of no library: a shape and slices."""

    def __init__(self, rows):
        self.rows, self.shape = rows, (len(rows), 2)

    def __getitem__(self, part):
        return Array(self.rows[part])


def test_arrays_are_sliced_wherever_they_are_in_a_batch():
    batch = {"x": Array("abcd"), "pair": (Array("efgh"), 3), "names": ["k", "l", "m", "n"], "use_cache": False}
    part = _batches.slice_batch(batch, 1, 3)
    assert (part["x"].rows, part["pair"][0].rows, part["pair"][1], part["names"], part["use_cache"]) == ("bc", "fg", 3, ["l", "m"], False)


def test_a_batch_whose_arrays_disagree_is_not_guessed_at():
    for batch in ({"x": Array("abcd"), "patches": Array("abcdefgh")}, {"x": 3}):
        with pytest.raises(_batches.CannotSplit):
            _batches.batch_size(batch)
