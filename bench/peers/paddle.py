"""Paddle's unfused operators: ``linear`` and an activation, in dynamic mode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import paddle
from paddle.nn import functional

from bench.inputs import Inputs
from bench.peers.work import Unavailable, Work
from bench.task import Task

DISTRIBUTION = "paddlepaddle"

paddle.set_device("cpu")

_ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": partial(functional.gelu, approximate=True),
    "gelu_erf": functional.gelu,
    "silu": functional.silu,
    "sigmoid": functional.sigmoid,
    "tanh": paddle.tanh,
    "leaky_relu": functional.leaky_relu,
    "relu6": functional.relu6,
    "clamp": functional.hardtanh,
    "sqrelu": lambda z: functional.relu(z).square(),
    "hardswish": functional.hardswish,
}


def about() -> str:
    """What its products come from."""
    return f"MKL {paddle.version.mkl().lower()}, on CPUs in float32 and float64 only"


def prepare(task: Task, inputs: Inputs) -> Work:
    """Inference without records; gradients by Paddle's autograd."""
    if task.dtype not in ("float32", "float64"):
        raise Unavailable(f"has no {task.dtype} linear on CPUs")
    x, y, bias, out_grad = map(paddle.to_tensor, inputs)

    def forward():
        z = functional.linear(x, y, bias if task.bias else None)
        return _ACTIVATIONS[task.activation](z) if task.activation != "none" else z

    if task.operation in ("gemm", "forward"):
        return Work(paddle.no_grad()(forward), lambda out: (out.numpy(),))

    parameters = [x, y, bias]
    for parameter in parameters:
        parameter.stop_gradient = False

    if task.operation == "backward":
        out = forward()
        return Work(partial(paddle.grad, [out], parameters, [out_grad], retain_graph=True), _arrays)

    def step():
        out = forward()
        return [out, *paddle.grad([out], parameters, [out_grad])]

    return Work(step, _arrays)


def _arrays(tensors: Sequence[paddle.Tensor]) -> list[np.ndarray]:
    return [tensor.numpy() for tensor in tensors]
