"""sparkguard.retry in real frameworks (retry_train.py): a refused step goes on with smaller micro-batches and comes to the same.

The limit of each run lies between what the program holds before its training and what a batch of 32 takes at most, as an unlimited
run has shown. So the batch of 32 is refused, wherever libraries have grown. Rows of the table in RESULTS.md go to RETRY_ROWS.
"""

import json
import os
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "retry_train.py"
NAMES = {"loop": "PyTorch", "trainer": "Transformers' Trainer", "trl": "TRL's SFTTrainer", "accelerate": "Accelerate", "lightning": "Lightning"}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
MIB = 1 << 20


@pytest.fixture
def train(client):
    def run(*arguments, launcher=(), fails=False, **variables):
        command = [os.environ["FRAMEWORK_PYTHON"], *launcher, PROGRAM, *map(str, arguments)]
        env = {"PYTHONPATH": client.package, "PATH": f"{client.guard.build}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
        done = client.guard.run(command, env=env | variables, timeout=400)
        assert (done.returncode != 0) == fails, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
        done.ranks = sorted(lines, key=lambda said: said["rank"])
        return done

    return run


def limit_between(said, part):
    return f"{(said['before'] + int((said['peak'] - said['before']) * part)) // MIB}M"


def assert_same(one, other):
    assert len(one["losses"]) == len(other["losses"]) == 3
    assert one["losses"] == pytest.approx(other["losses"], abs=1e-5)
    assert one["weights"] == pytest.approx(other["weights"], rel=1e-7)


def note(kind, limit, said, same):
    worst = max(abs(one - other) for one, other in zip(said["losses"], same["losses"]))
    if rows := os.environ.get("RETRY_ROWS"):
        cells = (NAMES[kind], limit, f"32 x 1 -> {said['micro_batch']} x {32 // said['micro_batch']}", said["retries"], f"{worst:.1e}")
        with open(rows, "a") as file:
            file.write(f"| {' | '.join(map(str, cells))} |\n")


@pytest.mark.timeout_seconds(1500)
@pytest.mark.parametrize("kind", NAMES)
def test_refused_batch_of_32_comes_to_what_its_micro_batch_would_have(train, kind):
    (free,) = train(kind).ranks
    assert free["retries"] == 0
    limit = limit_between(free, 0.6)
    done = train(kind, SPARKGUARD_LIMIT=limit)
    (said,) = done.ranks
    micro = said["micro_batch"]
    assert 1 <= said["retries"] <= 2 and micro < 32 and 32 % micro == 0
    assert f"the step is run again with micro-batch {micro}, accumulation {32 // micro}" in done.stderr
    assert done.process()["phases"][-1]["name"] == f"micro-batch {micro}, accumulation {32 // micro}"
    (same,) = train(kind, "--no-retry", "--batch", micro, "--accumulation", 32 // micro).ranks
    assert_same(said, same)
    note(kind, limit, said, same)


@pytest.mark.timeout_seconds(1000)
def test_step_of_several_batches_is_repeated_as_a_whole(train):
    """The gradients of earlier batches of the step are neither lost nor doubled."""
    (free,) = train("trainer", "--accumulation", 2).ranks
    (said,) = train("trainer", "--accumulation", 2, SPARKGUARD_LIMIT=limit_between(free, 0.6)).ranks
    micro = said["micro_batch"]
    assert 1 <= said["retries"] <= 2 and micro < 32
    (same,) = train("trainer", "--no-retry", "--batch", micro, "--accumulation", 64 // micro).ranks
    assert_same(said, same)


@pytest.mark.timeout_seconds(1000)
def test_two_ranks_of_which_one_is_refused_both_change(train):
    """Rank 1 asks for a tebibyte in the backward of its second step, where DistributedDataParallel would already add gradients."""
    done = train("loop", launcher=TORCHRUN, GREEDY_RANK="1", SPARKGUARD_LIMIT="16G")
    one, two = done.ranks
    assert one["retries"] == two["retries"] == 1 and one["micro_batch"] == two["micro_batch"] < 32
    assert one["weights"] == two["weights"]
    if rows := os.environ.get("RETRY_ROWS"):
        with open(rows, "a") as file:
            file.write(f"| DDP, rank 1 of 2 refused | - | 32 x 1 -> {one['micro_batch']} x {32 // one['micro_batch']} | 1 | - |\n")
    assert "another rank was refused; the step is run again" in done.stderr
    (job,) = done.report("--all")["jobs"]
    ranks = [each for each in job["processes"] if "retry_train" in each["command"] and "torch.dist" not in each["command"]]
    assert sorted(each["refused_count"] > 0 for each in ranks) == [False, True]


FOREIGN = """
import sys, torch, sparkguard
torch.manual_seed(1)
model = torch.nn.Linear(8, 8)
training = sparkguard.retry(model)
calls = []
def compute(part):
    calls.append(len(part))
    if len(calls) == 1 and sys.argv[1] == "refused":
        torch.empty(1 << 40, dtype=torch.uint8)
    if sys.argv[1] == "foreign":
        raise RuntimeError("CUDA out of memory")
    return model(part).square().mean()
try:
    training.step(compute, torch.ones(int(sys.argv[2]), 8))
    print("done", calls, training.retries, model.weight.grad is not None)
except RuntimeError as error:
    print(type(error).__name__, calls, training.retries, model.weight.grad)
"""


def outcome(client, kind, size, **variables):
    text = FOREIGN.replace("sys.argv[1]", repr(kind)).replace("sys.argv[2]", str(size))
    path = f"{client.guard.build}:{os.environ['PATH']}"
    done = client.run(text, PYTHONPATH=client.package, PATH=path, SPARKGUARD_LIMIT="8G", **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_foreign_exception_is_never_retried_whatever_it_says(client):
    assert outcome(client, "foreign", 32) == "RuntimeError [32] 0 None"


def test_single_sample_that_is_refused_raises(client):
    assert outcome(client, "refused", 1) == "RuntimeError [1] 0 None"


def test_two_samples_become_one_at_a_time(client):
    assert outcome(client, "refused", 2) == "done [2, 1, 1] 1 True"


def test_without_the_guard_nothing_is_retried_and_nothing_changes(client):
    assert outcome(client, "fine", 32, LD_PRELOAD=None) == "done [32] 0 True"
    assert outcome(client, "foreign", 32, LD_PRELOAD=None) == "RuntimeError [32] 0 None"
