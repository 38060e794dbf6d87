"""Signal handlers that use the heap and mappings, wherever they interrupt the library: every byte is found afterwards."""

from pathlib import Path

import pytest
from library import compile_library
from lib.target import SLOWER

HERE = Path(__file__).parent
# Under qemu-user a signal waits for the end of a block of instructions: here each is a block. Until and from 8.1 on.
EACH_INSTRUCTION = {"QEMU_SINGLESTEP": "1", "QEMU_ONE_INSN_PER_TB": "1"}


@pytest.fixture
def abuse_signals(abuse):
    return lambda case, times, **options: abuse("abuse_signals", case, times, env=EACH_INSTRUCTION, **options)


@pytest.fixture
def times(amount):
    return lambda *, short, long: amount(short=short, long=long // SLOWER)


@pytest.fixture
def safe_heap(guard, tmp_path):
    """The guard, and behind it a heap that handlers may use whatever they interrupted."""
    return [guard.library, compile_library(tmp_path, "signal_safe_heap", HERE / "signal_safe_heap.c")]


@pytest.mark.timeout_seconds(600)
def test_handlers_that_allocate_in_every_instruction_are_counted_to_the_byte(abuse_signals, safe_heap, times):
    done = abuse_signals("handlers_in_every_instruction", times(short=5000, long=200000), preload=safe_heap)
    assert int(done.stdout) > 0


@pytest.mark.timeout_seconds(600)
def test_handlers_that_allocate_beside_mappings(abuse_signals, times):
    """Over glibc's heap; over others in test_others.py."""
    done = abuse_signals("handlers_beside_mappings", times(short=500, long=20000))
    assert int(done.stdout) > 0


@pytest.mark.timeout_seconds(600)
def test_what_a_thread_takes_after_a_jump_out_of_the_heap_counts(abuse_signals, safe_heap, times):
    abuse_signals("handlers_that_jump_out_of_the_heap", times(short=200, long=20000), preload=safe_heap)


@pytest.mark.timeout_seconds(600)
def test_what_a_jump_leaves_of_a_mapping_is_not_in_flight(abuse_signals, times):
    abuse_signals("handlers_that_jump_out_of_mappings", times(short=500, long=50000))


@pytest.mark.timeout_seconds(600)
@pytest.mark.parametrize("case", ["handlers_that_jump_away", "fault_handlers_that_jump_away"])
def test_handlers_that_jump_away(abuse_signals, times, case):
    abuse_signals(case, times(short=500, long=50000))


def test_handlers_on_a_small_alternate_stack(abuse_signals):
    abuse_signals("handlers_on_a_small_stack", 3)
