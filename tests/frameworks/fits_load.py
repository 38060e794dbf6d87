"""Loads models of fits_models.py as a program would, uses all of their weights, and tells what that took.

    fits_load.py FOLDER CONTEXT

Each is loaded by a child of its own. Of each it prints "NAME RESIDENT PRIVATE": the bytes that its resident memory (the kernel's
high-water mark) and its live bytes (the guard's peak) rose above those of the same process just before: with all libraries
loaded, and a model of a few weights of the same family and dtype run.
"""

import copy
import gc
import os
import sys

import fits_models


def status(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


def baseline():
    gc.collect()
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # the high-water mark begins anew
    import sparkguard

    sparkguard.mark("load")
    sparkguard.reset_peak()
    return status("VmRSS"), sparkguard.stats()


def rise(before):
    import sparkguard

    resident, stats = before
    return status("VmHWM") - resident, sparkguard.stats()["peak_bytes"] - stats["live_bytes"]


def load_gguf(folder):
    import gguf
    import numpy

    numpy.zeros(1).sum()
    before = baseline()
    reader = gguf.GGUFReader(folder + "/model.gguf")
    for tensor in reader.tensors:
        tensor.data.view(numpy.uint8).max()
    return rise(before)


def use(model, kind, tokens, torch):
    for parameter in model.parameters():
        parameter.detach().view(-1)[::256].sum()
    ids = torch.ones(1, tokens - 8, dtype=torch.long)
    with torch.inference_mode():
        if kind == "MaskedLM":
            return model(ids)
        return model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0)


def load(name, folder, tokens):
    import safetensors.torch
    import torch
    import transformers

    family, kind, config, stored, dtype, how, _ = fits_models.MODELS[name]
    loader = getattr(transformers, "AutoModelFor" + kind)
    few = copy.deepcopy(config)
    for key in few:
        if key in ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers"):
            few[key] = 1
        elif key == "vocab_size":
            few[key] = 100
        elif key in ("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"):
            few[key] = 64
    # In the same dtype, for as many tokens: oneDNN compiles kernels for each shape of a product in BF16, tens of MiB of the program.
    small = loader.from_config(transformers.AutoConfig.for_model(family, **few)).to(getattr(torch, dtype or stored))
    if how == "map":
        small.save_pretrained(folder + ".few")
        small = loader.from_pretrained(folder + ".few", dtype="auto")
    use(small, kind, tokens, torch)
    del small
    before = baseline()
    if how == "read":
        with open(folder + "/model.safetensors", "rb") as file:
            weights = safetensors.torch.load(file.read())
        with torch.device("meta"):
            model = loader.from_config(transformers.AutoConfig.from_pretrained(folder))
        model.load_state_dict(weights, assign=True, strict=False)
        for weight in weights.values():
            weight.view(-1)[::256].float().sum()
    else:
        model = loader.from_pretrained(folder, dtype=getattr(torch, dtype) if dtype else "auto")
        use(model, kind, tokens, torch)
    return rise(before)


def main(folder, tokens):
    import gguf  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401

    for name, (family, *_) in fits_models.MODELS.items():
        child = os.fork()
        if child == 0:
            of = f"{folder}/{name}"
            print(name, *(load_gguf(of) if family == "gguf" else load(name, of, tokens)), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
