"""A tiny language model, trained for some steps by one of five loops. What test_retry.py runs; prints one line of JSON.

    retry_train.py loop|trainer|trl|accelerate|lightning [--batch 32] [--accumulation 1] [--no-retry] [--steps 3]

Model, tokens and batches are made here from fixed seeds; with --no-retry the same loop runs without sparkguard.retry. The line has
the loss of each optimizer step, a sum over the trained weights, the samples that the loss functions have seen of each step, and
what the retry tells: micro-batch, retries. Under torchrun each rank prints its line. With GREEDY_RANK=N rank N asks for more
than its job may hold, once, in the backward of its second step.
"""

import argparse
import json
import os
import tempfile

import torch
from torch import distributed
from transformers import LlamaConfig, LlamaForCausalLM

import sparkguard

TOKENS, LENGTH, SAMPLES = 256, 256, 192
RATE = 0.5


def make_model():
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=TOKENS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, attention_dropout=0.1
    )
    return LlamaForCausalLM(config)


def make_data():
    """Rows of unequal length: what is not trained on is -100 in the labels."""
    make = torch.Generator().manual_seed(5)
    words = torch.randint(0, TOKENS, (SAMPLES, LENGTH), generator=make)
    ends = torch.randint(LENGTH // 4, LENGTH, (SAMPLES, 1), generator=make)
    labels = words.masked_fill(torch.arange(LENGTH) >= ends, -100)
    return [{"input_ids": row, "labels": label} for row, label in zip(words, labels)]


def rank():
    return int(os.environ.get("RANK", 0))


def count_tokens(part):
    return float(part["labels"][:, 1:].ne(-100).sum())


def loader(batch):
    return torch.utils.data.DataLoader(make_data()[rank() * 96 :], batch_size=batch, shuffle=False)


def loss_of(model, part):
    return model(**part).loss


class Greedy(torch.autograd.Function):
    """Passes a tensor on, and asks for a tebibyte in its backward."""

    @staticmethod
    def forward(_, value):
        return value.clone()

    @staticmethod
    def backward(_, gradient):
        torch.empty(1 << 40, dtype=torch.uint8)
        return gradient


def run_loop(words):
    """A plain loop, under torchrun with DistributedDataParallel."""
    model = make_model()
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    training, losses, whole = sparkguard.retry(model, weigh=count_tokens), [], words.batch * words.accumulation
    torch.manual_seed(100 + rank())

    def compute(part):
        loss = loss_of(model, part)
        is_greedy = os.environ.get("GREEDY_RANK") == str(rank()) and len(losses) == 1 and len(part["labels"]) == whole
        return Greedy.apply(loss) if is_greedy else loss

    for batch, _ in zip(loader(whole), range(words.steps)):
        optimizer.zero_grad()
        if words.retry:
            losses.append(training.step(compute, batch).item())
        else:
            losses.append(plain_step(model, batch, words.batch))
        optimizer.step()
    if distributed.is_initialized():
        distributed.destroy_process_group()
    return model, losses, training


def plain_step(model, batch, micro_batch):
    """A step as it is written by hand: micro-batches in order, their mean over tokens."""
    parts = [{key: value[at : at + micro_batch] for key, value in batch.items()} for at in range(0, len(batch["labels"]), micro_batch)]
    total = 0.0
    for part in parts:
        loss = loss_of(model, part) * (count_tokens(part) / count_tokens(batch))
        loss.backward()
        total += loss.item()
    return total


def run_trainer(words, make=None):
    from transformers import Trainer, TrainingArguments

    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    sizes = {"per_device_train_batch_size": words.batch, "gradient_accumulation_steps": words.accumulation, "max_steps": words.steps}
    fixed = {"optim": "sgd", "learning_rate": RATE, "lr_scheduler_type": "constant", "seed": 3}
    with tempfile.TemporaryDirectory() as folder:
        if make:
            trainer = make(folder, quiet | sizes | fixed)
        else:
            trainer = Trainer(model=make_model(), args=TrainingArguments(folder, **quiet, **sizes, **fixed), train_dataset=make_data())
        module = sparkguard.trl if make else sparkguard.transformers
        training = module.retry(trainer) if words.retry else None
        losses, step = [], trainer.training_step

        def training_step(*arguments, **named):
            losses.append(step(*arguments, **named).item())
            return torch.tensor(losses[-1])

        trainer.training_step = training_step
        torch.manual_seed(7)
        trainer.train()
    return trainer.model, [sum(losses[at : at + words.accumulation]) for at in range(0, len(losses), words.accumulation)], training


def run_trl(words):
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    def make(folder, arguments):
        letters = {"<pad>": 0, "</s>": 1, "<unk>": 2, " ": 3} | {chr(97 + i): i + 4 for i in range(26)}
        core = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
        core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
        data = Dataset.from_dict({"text": ["the quick brown fox " * (4 + row % 9) for row in range(SAMPLES)]})
        # All rows padded alike: where smaller batches are padded to other lengths, dropout draws other numbers.
        arguments |= {"bf16": False, "gradient_checkpointing": False, "pad_to_multiple_of": LENGTH}
        arguments = SFTConfig(folder, max_length=LENGTH, **arguments)
        return SFTTrainer(model=make_model(), args=arguments, train_dataset=data, processing_class=tokenizer)

    return run_trainer(words, make)


def run_accelerate(words):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=words.accumulation)
    model = make_model()
    model, optimizer, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE), loader(words.batch))
    training = sparkguard.accelerate.retry(accelerator, model, weigh=len_of)
    losses = []
    torch.manual_seed(100)
    for batch, _ in zip(batches, range(words.steps * words.accumulation)):
        with accelerator.accumulate(model):
            if words.retry:
                losses.append(training.step(lambda part: mean_of_rows(model, part), batch).item())
            else:
                loss = mean_of_rows(model, batch)
                accelerator.backward(loss)
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    return model, means(losses, words.accumulation), training


def mean_of_rows(model, part):
    """A mean over samples, whatever their tokens: so an average over equal micro-batches is that of the batch."""
    logits = model(input_ids=part["input_ids"]).logits[:, :-1].transpose(1, 2)
    return torch.nn.functional.cross_entropy(logits, part["labels"][:, 1:], reduction="none").mean(dim=1).mean()


def len_of(part):
    return len(part["labels"])


def means(losses, count):
    return [sum(losses[at : at + count]) / count for at in range(0, len(losses), count)]


def run_lightning(words):
    import lightning.pytorch as lightning

    losses = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = make_model()

        def training_step(self, batch, _):
            return mean_of_rows(self.model, batch)

        def on_train_batch_end(self, outputs, *_):
            losses.append(outputs["loss"].item())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=RATE)

    module = Module()
    callback = sparkguard.lightning.retry()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    sizes = {"accumulate_grad_batches": words.accumulation, "max_steps": words.steps}
    trainer = lightning.Trainer(accelerator="cpu", callbacks=[callback] if words.retry else [], **quiet, **sizes)
    torch.manual_seed(100)
    trainer.fit(module, loader(words.batch))
    return module, [value * words.accumulation for value in means(losses, words.accumulation)], callback.retry


RUNS = {"loop": run_loop, "trainer": run_trainer, "trl": run_trl, "accelerate": run_accelerate, "lightning": run_lightning}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=RUNS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--no-retry", dest="retry", action="store_false")
    words = parser.parse_args()
    torch.set_num_threads(1)
    now = sparkguard.stats()
    before = now["live_bytes"] if now else 0
    model, losses, training = RUNS[words.kind](words)
    weights = sum(each.detach().double().abs().sum().item() for each in model.parameters())
    now = sparkguard.stats()
    said = {"rank": rank(), "losses": losses, "weights": weights, "before": before, "peak": now["peak_bytes"] if now else 0}
    said |= {"micro_batch": training and training.micro_batch, "retries": training and training.retries}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
