"""Activations in numpy.

``forward(z)`` gives out and what the backward needs, and may overwrite z where that isn't it;
``backward(saved, out_grad)`` gives the gradient of z.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import NamedTuple

import numpy as np

_SLOPE = sqrt(2 / pi)
_CUBIC = 0.044715


class Activation(NamedTuple):
    """One activation."""

    forward: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    backward: Callable[[np.ndarray, np.ndarray], np.ndarray]


def _none(z):
    return z, z


def _none_backward(saved, out_grad):
    del saved
    return out_grad


def _relu(z):
    out = np.maximum(z, 0, out=z)
    return out, out


def _relu_backward(out, out_grad):
    return out_grad * (out > 0)


def _gelu_tanh(z):
    t = z * z  # not z**3: numpy calls pow for it
    t *= _CUBIC * _SLOPE
    t += _SLOPE
    t *= z
    return np.tanh(t, out=t)


def _gelu(z):
    out = _gelu_tanh(z)
    out += 1
    out *= z
    out *= 0.5
    return out, z


def _gelu_backward(z, out_grad):
    t = _gelu_tanh(z)
    slope = z * z
    slope *= 3 * _CUBIC * _SLOPE
    slope += _SLOPE
    slope *= z
    slope *= 1 - t * t
    slope += t
    slope += 1
    slope *= 0.5
    slope *= out_grad
    return slope


def _sigmoid_of(z, out=None):
    out = np.negative(z, out=out)
    np.exp(out, out=out)
    out += 1
    return np.reciprocal(out, out=out)


def _sigmoid(z):
    out = _sigmoid_of(z, out=z)
    return out, out


def _sigmoid_backward(out, out_grad):
    slope = 1 - out
    slope *= out
    slope *= out_grad
    return slope


def _silu(z):
    out = _sigmoid_of(z)
    out *= z
    return out, z


def _silu_backward(z, out_grad):
    s = _sigmoid_of(z)
    slope = 1 - s
    slope *= z
    slope += 1
    slope *= s
    slope *= out_grad
    return slope


def _tanh(z):
    out = np.tanh(z, out=z)
    return out, out


def _tanh_backward(out, out_grad):
    slope = out * out
    np.subtract(1, slope, out=slope)
    slope *= out_grad
    return slope


#: gelu_erf is missing because numpy has no erf.
ACTIVATIONS = {
    "none": Activation(_none, _none_backward),
    "relu": Activation(_relu, _relu_backward),
    "gelu": Activation(_gelu, _gelu_backward),
    "silu": Activation(_silu, _silu_backward),
    "sigmoid": Activation(_sigmoid, _sigmoid_backward),
    "tanh": Activation(_tanh, _tanh_backward),
}
