"""The operators that PyTorch's dispatcher knows: for torch.compile, export, modes and traces.

    fge::linear_act(x, weight, bias, activation, save_reserve) -> (out, reserve)
    fge::linear_act_backward(out_grad, x, weight, reserve, activation, bias_dtype) -> gradients

An operator can't answer None for a tensor: the reserve of an activation that has none of its own is empty, and
the backward lists the gradients that it was asked for.
"""

import torch

from fge import _torch, _torch_autograd

_library = torch.library.Library("fge", "DEF")
_library.define(
    "linear_act(Tensor x, Tensor weight, Tensor? bias, str activation, bool save_reserve) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
_library.define(
    "linear_act_backward(Tensor out_grad, Tensor? x, Tensor? weight, Tensor? reserve, str activation, "
    "ScalarType? bias_dtype) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)


def _forward(compute):
    def linear_act(x, weight, bias, activation, save_reserve):
        out, reserve = compute(x, weight, bias, activation, save_reserve)
        return out, out.new_empty(0, dtype=torch.uint8) if reserve is None else reserve

    return linear_act


def _backward(compute):
    def linear_act_backward(out_grad, x, weight, reserve, activation, bias_dtype):
        grads = compute(out_grad, x, weight, reserve, activation, bias_dtype)
        return [grad for grad in grads if grad is not None]

    return linear_act_backward


def _save(ctx, inputs, output):
    x, weight, bias, activation, _ = inputs
    _torch_autograd.save(ctx, x, weight, bias, activation, *output)


def _differentiate(ctx, out_grad, reserve_grad):
    return (*_torch_autograd.gradients(ctx, out_grad, reserve_grad), None, None)


for _name, _wrap, _compute, _allocate in (
    ("linear_act", _forward, _torch.forward, _torch.empty_outputs),
    ("linear_act_backward", _backward, _torch.backward, _torch.empty_gradients),
):
    _library.impl(_name, _wrap(_compute), "CPU")
    torch.library.register_fake(f"fge::{_name}", _wrap(_allocate), lib=_library)
torch.library.register_autograd("fge::linear_act", _differentiate, setup_context=_save, lib=_library)
