#!/usr/bin/env python3
"""Fine-tuning with Hugging Face's Trainer, or with TRL's SFTTrainer: a batch that is refused goes on in parts that fit.

    pip install sparkguard-*.whl     # the package of `make wheel`, for this Python
    LD_PRELOAD=libsparkguard.so SPARKGUARD_LIMIT=900M python3 finetune.py [--trl] [--batch 256]

sparkguard.transformers.retry is the line that does it; what is learned in a step stays the same. Model, tokenizer and text are
made here; nothing is downloaded.
"""

import argparse
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments

import sparkguard

TOKENS = 256


def make_model():
    config = LlamaConfig(vocab_size=TOKENS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    return LlamaForCausalLM(config)


def make_trainer(folder, batch):
    words = torch.randint(0, TOKENS, (512, 256), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in words]
    return Trainer(model=make_model(), args=TrainingArguments(folder, **settings(batch)), train_dataset=data)


def make_trl_trainer(folder, batch):
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from trl import SFTConfig, SFTTrainer

    letters = {"<pad>": 0, "</s>": 1, "<unk>": 2, " ": 3} | {chr(97 + i): i + 4 for i in range(26)}
    core = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    data = Dataset.from_dict({"text": ["the quick brown fox " * 12] * 512})
    arguments = SFTConfig(folder, max_length=256, bf16=False, gradient_checkpointing=False, **settings(batch))
    return SFTTrainer(model=make_model(), args=arguments, train_dataset=data, processing_class=tokenizer)


def settings(batch):
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": not torch.cuda.is_available()}
    return {"per_device_train_batch_size": batch, "max_steps": 2, **quiet}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trl", action="store_true")
    parser.add_argument("--batch", type=int, default=256)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trainer = (make_trl_trainer if words.trl else make_trainer)(folder, words.batch)
        training = (sparkguard.trl if words.trl else sparkguard.transformers).retry(trainer)
        done = trainer.train()
    parts = f"{training.micro_batch or words.batch} at a time, {training.retries} repeated"
    print(f"{done.global_step} steps of {words.batch}, {parts}")


if __name__ == "__main__":
    main()
