"""JAX on a CPU: the layer and its gradients under ``jax.jit``. Compiling is no part of what is timed."""

from __future__ import annotations

import os
from functools import partial

# XLA has no setting for its number of threads: it takes those that the process may run on.
_THREADS = int(os.environ["OMP_NUM_THREADS"])
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_THREADS])
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from bench.inputs import Inputs
from bench.peers.work import Work
from bench.task import Task

DISTRIBUTION = "jax"

jax.config.update("jax_enable_x64", True)  # or float64 would be float32

_ACTIVATIONS = {
    "none": lambda z: z,
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=True),
    "gelu_erf": partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "leaky_relu": jax.nn.leaky_relu,
    "relu6": jax.nn.relu6,
    "clamp": jax.nn.hard_tanh,
    "sqrelu": lambda z: jnp.square(jax.nn.relu(z)),
    "hardswish": jax.nn.hard_swish,
}


def about() -> str:
    """What compiles, and for what."""
    return f"XLA {jax.lib.__version__}, {jax.default_backend()}"


def prepare(task: Task, inputs: Inputs) -> Work:
    """Each operation is one compiled function of arrays that are ready."""
    x, y, bias, out_grad = map(jnp.asarray, inputs)
    act = _ACTIVATIONS[task.activation]

    def layer(x, y, bias):
        z = jnp.matmul(x, y)
        return act(z + bias if task.bias else z)

    def step(x, y, bias, out_grad):
        out, pull = jax.vjp(layer, x, y, bias)
        return out, *pull(out_grad)

    if task.operation in ("gemm", "forward"):
        return _work(jax.jit(layer), x, y, bias)
    if task.operation == "training":
        return _work(jax.jit(step), x, y, bias, out_grad)
    pull = jax.jit(lambda *operands: jax.vjp(layer, *operands)[1])(x, y, bias)
    return _work(jax.jit(lambda pull, out_grad: pull(out_grad)), pull, out_grad)


def _work(function, *operands) -> Work:
    def call():
        return jax.block_until_ready(function(*operands))

    return Work(
        call,
        lambda results: [np.asarray(one) for one in (results if isinstance(results, tuple) else (results,))],
    )
