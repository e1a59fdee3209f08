"""PyTorch in eager mode: ``linear`` and an activation, with the weight in PyTorch's own layout, [N, K]."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch.nn import functional

from bench.inputs import Inputs, dtype_of
from bench.peers.work import Work
from bench.task import Task

DISTRIBUTION = "torch"

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

_ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": partial(functional.gelu, approximate="tanh"),
    "gelu_erf": functional.gelu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky_relu": functional.leaky_relu,
    "relu6": functional.relu6,
    "clamp": functional.hardtanh,
    "sqrelu": lambda z: functional.relu(z).square(),
    "hardswish": functional.hardswish,
}


def about() -> str:
    """What PyTorch was built with, and the instruction set that it uses."""
    built = torch.__config__.show()
    versions = re.findall(r"(oneAPI Math Kernel Library|MKL-DNN) (?:Version |v)([\d.]+)", built)
    names = [f"{name.replace('MKL-DNN', 'oneDNN')} {version}" for name, version in versions]
    return ", ".join([*names, torch.backends.cpu.get_cpu_capability()])


def prepare(task: Task, inputs: Inputs, transform: Callable = lambda function: function) -> Work:
    """Inference without autograd's records; gradients by autograd. The forward is called as `transform` makes it."""
    x, y, bias, out_grad = map(_tensor, inputs)
    weight = y.t().contiguous()

    @transform
    def layer(x, weight, bias):
        z = functional.linear(x, weight, bias if task.bias else None)
        return _ACTIVATIONS[task.activation](z) if task.activation != "none" else z

    def forward():
        return layer(x, weight, bias)

    def inference():
        with torch.no_grad():
            return forward()

    if task.operation in ("gemm", "forward"):
        return Work(inference, lambda out: (_array(out, task),))

    parameters = x, weight, bias
    for parameter in parameters:
        parameter.requires_grad_()

    def gradients(results):
        x_grad, weight_grad, bias_grad = results
        return _array(x_grad, task), _array(weight_grad.t(), task), _array(bias_grad, task)

    if task.operation == "backward":
        out = forward()
        return Work(partial(torch.autograd.grad, out, parameters, out_grad, retain_graph=True), gradients)

    def step():
        out = forward()
        return out, *torch.autograd.grad(out, parameters, out_grad)

    return Work(step, lambda results: (_array(results[0], task), *gradients(results[1:])))


def _tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name != "bfloat16":
        return torch.from_numpy(array.copy())
    # PyTorch doesn't know the dtype of ml_dtypes: the bits change hands.
    return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)


def _array(tensor: torch.Tensor, task: Task) -> np.ndarray:
    tensor = tensor.detach().contiguous()
    if task.dtype != "bfloat16":
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(dtype_of(task.dtype))
