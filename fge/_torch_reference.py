"""The operator in PyTorch's own operators: what is differentiated where the core has no derivative to offer.

That is the second derivative, forward-mode differentiation, and gradients under torch.func's transforms.
"""

from functools import partial
from math import prod

import torch
from torch.nn import functional

from fge._kernels import activation_parts

_aten = torch.ops.aten

# Each takes the activation's numbers behind its tensors.
_FORWARD = {
    "none": lambda z: z,
    "relu": torch.relu,
    "gelu": partial(functional.gelu, approximate="tanh"),
    "gelu_erf": functional.gelu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky_relu": functional.leaky_relu,
    "relu6": functional.relu6,
    "clamp": functional.hardtanh,
    "sqrelu": lambda z: torch.relu(z).square(),
    "hardswish": functional.hardswish,
}

# out_grad * act'(z), from what the forward reserved
_BACKWARD = {
    "none": lambda out_grad, reserve: out_grad,
    "relu": lambda out_grad, bits: _masked(out_grad, bits, 0),
    "gelu": partial(_aten.gelu_backward, approximate="tanh"),
    "gelu_erf": _aten.gelu_backward,
    "silu": lambda out_grad, z: out_grad * _silu_slope(z),  # aten's silu_backward can't be differentiated
    "sigmoid": _aten.sigmoid_backward,
    "tanh": _aten.tanh_backward,
    "leaky_relu": lambda out_grad, bits, alpha: _masked(out_grad, bits, alpha * out_grad),
    "relu6": lambda out_grad, bits: _masked(out_grad, bits, 0),
    "clamp": lambda out_grad, bits, lo, hi: _masked(out_grad, bits, 0),
    "sqrelu": lambda out_grad, z: out_grad * 2 * torch.relu(z),
    "hardswish": lambda out_grad, z: out_grad * torch.where(z < 3, torch.where(z > -3, z / 3 + 0.5, 0), 1),
}


def _formula(table, activation):
    name, *numbers = activation_parts(activation)
    if name not in table:
        raise NotImplementedError(f"activation {activation!r} has no formula in PyTorch's operators")
    return lambda *tensors: table[name](*tensors, *numbers)


def _masked(out_grad, bits, otherwise):
    return torch.where(_unpacked(bits, out_grad.shape), out_grad, otherwise)


def _unpacked(bits, shape):
    """ReLU bits, uint8 [M, bytes] with the least significant bit first, as bool of `shape` [.., N]."""
    each = (bits.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=bits.device)) & 1
    return each.flatten(-2)[..., : shape[-1]].reshape(shape).bool()


def _silu_slope(z):
    sigmoid = torch.sigmoid(z)
    return sigmoid * (1 + z * (1 - sigmoid))


def linear_act(x, weight, bias, activation):
    """act(x @ weight.T + bias) of x [.., K], weight [N, K], bias [N] or None."""
    if bias is not None:
        bias = bias.to(x.dtype)  # float32 beside a half type
    return activate(functional.linear(x, weight, bias), activation)


def activate(z, activation):
    return _formula(_FORWARD, activation)(z)


def gradients(out_grad, z_grad, x, weight, reserve, activation, bias_dtype):
    """(x_grad, weight_grad, bias_grad) as `fge._torch.backward` gives them, differentiable in every tensor.

    `z_grad` is the gradient of a reserved z, or None: it comes from differentiating a first gradient, which
    depends on z. One of out_grad and z_grad may be None.
    """
    z_gradients = [z_grad] if z_grad is not None else []
    if out_grad is not None:
        z_gradients.append(_formula(_BACKWARD, activation)(out_grad, reserve))
    dz = sum(z_gradients[1:], z_gradients[0])
    rows = dz.reshape(prod(dz.shape[:-1]), dz.shape[-1])
    x_grad = weight_grad = bias_grad = None
    if weight is not None:
        x_grad = dz @ weight
    if x is not None:
        weight_grad = rows.mT @ x.reshape(rows.shape[0], x.shape[-1])
    if bias_dtype is not None:
        bias_grad = rows.sum(0, dtype=bias_dtype)
    return x_grad, weight_grad, bias_grad
