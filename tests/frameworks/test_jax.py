"""JAX on the CPU: a refused request is a JaxRuntimeError, in whichever words, and the process goes on."""

import pytest


@pytest.mark.timeout_seconds(400)
def test_the_largest_batch_is_found(client):
    done = client.example("jax/batch.py", SPARKGUARD_LIMIT="1500M")
    *tries, last = done.stdout.splitlines()
    assert last in ("batch 128: fits", "batch 64: fits") and len(tries) >= 2
    assert tries[0] == "batch 512: RESOURCE_EXHAUSTED: Out of memory allocating 2147483648 bytes."
    assert all("Out of memory" in line for line in tries)
    process = done.process()
    assert process["refused_count"] >= len(tries) and process["refusals"][0]["reason"] == "limit"


def test_a_calculation_is_the_same_to_the_bit(client):
    text = """
import jax, jax.numpy as jnp
x = jax.random.normal(jax.random.PRNGKey(0), (256, 256))
print(float(jax.grad(lambda y: jnp.tanh(y @ y).sum())(x).sum()).hex())
"""
    assert client.same(text).startswith(("0x", "-0x"))
