#!/usr/bin/env python3
"""Loads a model of llama.cpp with the largest context that fits, and lets it say a few words.

    LD_PRELOAD=libsparkguard.so python3 generate.py MODEL.gguf [TOKENS]

A context that does not fit is refused while llama.cpp allocates it: the server of this process ends with an error instead of
the machine. The next try has half the context. Needs xllamacpp of PyPI, a build of llama.cpp.
"""

import sys

import xllamacpp


def load(path, context):
    """A server, or None if its context was refused."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx = context
    parameters.n_parallel = 1
    parameters.warmup = False
    try:
        return xllamacpp.Server(parameters)
    except RuntimeError:  # llama.cpp has written the reason to stderr
        return None


def main():
    path, context = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 131072
    while (server := load(path, context)) is None:
        print(f"a context of {context} tokens: refused", flush=True)
        context //= 2
    print(f"a context of {context} tokens: fits", flush=True)
    answer = server.handle_completions({"prompt": "hello", "max_tokens": 4, "temperature": 0})
    print("completion tokens:", answer["usage"]["completion_tokens"])


if __name__ == "__main__":
    main()
