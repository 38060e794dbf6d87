"""sparkguard.retry without a framework: what it does not take, and how losses of micro-batches add up. Stand-ins have the names and
the few members that it looks at; tests/frameworks/test_retry.py has the frameworks themselves."""

import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "tools/python"

HEAD = """
import contextlib, types
import sparkguard
from sparkguard import _ranks, _retry, transformers, trl

def made(name, **members):
    return type(name, (), members)()

def refused(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except TypeError as error:
        print(error)
    else:
        print("taken")

def trainer(kind, model, **members):
    args = types.SimpleNamespace(n_gpu=1)
    own = dict(args=args, model=made(model), model_accepts_loss_kwargs=True, compute_loss_func=None)
    own |= dict(compute_loss=lambda *_: 1.0, training_step=lambda *_: 1.0)
    return made(kind, **(own | members))

def alone(**members):
    found = _retry.Retry(None, **members)
    found._known_ranks = types.SimpleNamespace(is_guarded=True, is_alone=True, local_gradients=contextlib.nullcontext)
    return found
"""


@pytest.fixture
def python(guard):
    def run(text, **env):
        done = guard.run([sys.executable, "-c", HEAD + text], env={"PYTHONPATH": PACKAGE} | env)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_of_trls_trainers_the_one_for_sft_is_taken(python):
    """Rows of the others belong together: chosen and rejected ones of DPO are halves of a batch."""
    lines = python("for kind in ('SFTTrainer', 'DPOTrainer', 'RewardTrainer', 'KTOTrainer', 'GRPOTrainer'):\n refused(trl.retry, trainer(kind, 'LlamaForCausalLM'))")
    assert lines[0] == "taken" and len(lines) == 5
    assert all(kind in line for kind, line in zip(("DPOTrainer", "RewardTrainer", "KTOTrainer", "GRPOTrainer"), lines[1:]))


def test_a_head_that_may_ignore_the_items_of_a_step_is_not_taken(python):
    lines = python(
        """
refused(transformers.retry, trainer("Trainer", "BertForSequenceClassification"))
refused(transformers.retry, trainer("Trainer", "BertForSequenceClassification", model_accepts_loss_kwargs=False))
refused(transformers.retry, trainer("Trainer", "BertForSequenceClassification", compute_loss_func=len))
refused(transformers.retry, trainer("Trainer", "GPT2LMHeadModel"))
"""
    )
    assert lines == ["sparkguard.retry does not know how losses of BertForSequenceClassification add up; set compute_loss_func"] + ["taken"] * 3


def test_a_step_that_does_not_compute_its_loss_where_it_is_weighed_ends(python):
    lines = python(
        """
own = trainer("Trainer", "LlamaForCausalLM")
weighted = transformers._Weighted(own)
with weighted.by(0.5):
    print(own.compute_loss())
def foreign():
    with weighted.by(0.5):
        pass
refused(foreign)
"""
    )
    assert lines[0] == "0.5" and "does not call compute_loss" in lines[1]


def test_models_whose_backward_calls_others_are_not_taken(python):
    lines = python(
        """
class DistributedDataParallel:
    static_graph, _comm_hooks = True, ()
    def modules(self): return [self]
class DeepSpeedEngine:
    def modules(self): return [self]
ranks = _ranks.Ranks.__new__(_ranks.Ranks)
ranks._torch = types.SimpleNamespace(nn=types.SimpleNamespace(parallel=types.SimpleNamespace(DistributedDataParallel=DistributedDataParallel)))
for ranks.is_alone, model in ((False, DistributedDataParallel()), (True, DistributedDataParallel()), (True, DeepSpeedEngine())):
    refused(ranks._take, model)
"""
    )
    assert "static_graph" in lines[0] and lines[1] == "taken" and "DeepSpeedEngine" in lines[2]


def test_a_part_of_which_nothing_counts_is_left_out(python):
    """Its mean may be 0 / 0."""
    lines = python(
        """
found = alone(weigh=lambda part: part.count("x"))
found._size, found._slice, found.micro_batch = len, lambda batch, begin, end: batch[begin:end], 2
seen = []
entry = types.SimpleNamespace(batch=list("..xx.x"), run=lambda part, weight: seen.append(("".join(part), round(weight, 2))) or weight)
print(found._run_parts(entry, _retry._Outcome()), seen)
"""
    )
    assert lines == ["1.0 [('xx', 0.67), ('.x', 0.33)]"]


def test_an_error_of_the_programs_own_behind_a_refusal_is_not_retried(python):
    """A refusal that something got over may have come just before."""
    lines = python(
        """
def run(error):
    def part(batch, weight):
        try:
            bytearray(1 << 40)
        except MemoryError:
            pass
        raise error
    return part
for error in (KeyError("x"), RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")):
    entry = types.SimpleNamespace(batch=[1, 2], run=run(error))
    found = alone()
    found._size, found._slice = len, lambda batch, begin, end: batch[begin:end]
    outcome = found._attempt([entry])
    print(type(outcome.error).__name__, outcome.is_refusal)
""",
        SPARKGUARD_LIMIT="1G",
    )
    assert lines == ["KeyError False", "RuntimeError True"]
