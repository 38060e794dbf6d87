#!/usr/bin/env python3
"""Finds the largest batch that fits with JAX.

    LD_PRELOAD=libsparkguard.so SPARKGUARD_LIMIT=1500M python3 batch.py

A refused request is a JaxRuntimeError. Its words differ by the place at which XLA asked, so the words "Out of memory" count.
"""

import sys

import jax
import jax.numpy as jnp


def step(x):
    return jnp.tanh(x @ x[0]).sum()


def fits(batch):
    try:
        step(jnp.ones((batch, 1024, 1024), jnp.float32)).block_until_ready()
        return True
    except jax.errors.JaxRuntimeError as error:
        if "Out of memory" not in str(error):
            raise
        print(f"batch {batch}: {str(error).splitlines()[0]}", flush=True)
        return False


def main():
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    while not fits(batch):
        batch //= 2
    print(f"batch {batch}: fits")


if __name__ == "__main__":
    main()
