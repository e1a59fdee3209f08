"""numpy, as a careful user writes it: one array function after another, in place where nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from bench.inputs import Inputs
from bench.peers.libraries import blas_of
from bench.peers.numpy_activations import ACTIVATIONS, Activation
from bench.peers.work import Unavailable, Work
from bench.task import Task

DISTRIBUTION = "numpy"

Arrays = Sequence[np.ndarray]


def about() -> str:
    """The BLAS of its own."""
    return blas_of("numpy")


def prepare(task: Task, inputs: Inputs) -> Work:
    """Half types are widened in each call and the results rounded back: BLAS has no product of theirs."""
    if task.activation not in ACTIVATIONS:
        raise Unavailable(f"has no function for {task.activation}")
    x, y, bias, out_grad = inputs
    activation = ACTIVATIONS[task.activation]
    half = x.dtype.itemsize == 2

    if task.operation == "gemm":
        if not half:
            return Work(partial(np.matmul, x, y), lambda out: (out,))
        return Work(_through_float32(_gemm, (x, y)))
    if task.operation == "forward":
        function, arrays = partial(_forward, activation), (x, y, bias)
    elif task.operation == "backward":
        widened = _widen((x, y, bias)) if half else (x, y, bias)
        _, saved = _forward_and_saved(activation, *widened)
        function, arrays = partial(_backward, activation), (x, y, saved.astype(x.dtype), out_grad)
    else:
        function, arrays = partial(_training, activation), (x, y, bias, out_grad)
    return Work(_through_float32(function, arrays) if half else partial(function, *arrays))


def _gemm(x, y) -> Arrays:
    return (x @ y,)


def _forward_and_saved(activation: Activation, x, y, bias) -> tuple[np.ndarray, np.ndarray]:
    z = x @ y
    z += bias
    return activation.forward(z)


def _forward(activation: Activation, x, y, bias) -> Arrays:
    return _forward_and_saved(activation, x, y, bias)[:1]


def _backward(activation: Activation, x, y, saved, out_grad) -> Arrays:
    z_grad = activation.backward(saved, out_grad)
    return z_grad @ y.T, x.T @ z_grad, z_grad.sum(axis=0)


def _training(activation: Activation, x, y, bias, out_grad) -> Arrays:
    out, saved = _forward_and_saved(activation, x, y, bias)
    return out, *_backward(activation, x, y, saved, out_grad)


def _widen(arrays: Arrays) -> Arrays:
    return [array.astype(np.float32) for array in arrays]


def _through_float32(function: Callable[..., Arrays], arrays: Arrays) -> Callable[[], Arrays]:
    dtype = arrays[0].dtype
    return lambda: [result.astype(dtype) for result in function(*_widen(arrays))]
