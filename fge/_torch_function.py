"""`linear_act`: takes each call the shortest way that is right for it."""

import sys

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function, has_torch_function_variadic

from fge import _torch, _torch_operator, _torch_reference  # noqa: F401  (registers the operators)
from fge._torch_autograd import LinearActFunction, TransformedFunction


def linear_act(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """act(x @ weight.T + bias), in one pass.

    Parameters
    ----------
    x : tensor [.., in_features], any strides
    weight : tensor [out_features, in_features], as in `torch.nn.functional.linear`
    bias : tensor [out_features], or None
    activation : one of `fge.activations()`. "gelu" is the tanh form; PyTorch's default is "gelu_erf"

    x and weight are float32, float64, float16 or bfloat16, of one dtype; bias is of that dtype, or float32 beside
    a half type. Under `torch.autocast("cpu")` x and weight are cast as for `torch.nn.functional.linear`. Tensors
    whose leading axes can't be merged into rows are copied, all others are read where they are.

    Returns
    -------
    out : contiguous tensor [.., out_features] of x's dtype. Gradients are computed for the inputs that require
        one. Derivatives of any order, and forward-mode ones, are right; beyond the first they are computed by
        PyTorch's own operators.

    Raises
    ------
    TypeError : an argument isn't a strided tensor of these dtypes
    ValueError : shapes don't fit, the devices differ, or the activation doesn't exist
    MemoryError : scratch memory could not be allocated
    """
    if is_compiling():  # what follows can't be traced
        return _operator(*_autocast(x, weight, bias), activation, is_grad_enabled())
    if has_torch_function_variadic(x, weight, bias):
        return handle_torch_function(linear_act, (x, weight, bias), x, weight, bias, activation)
    direct = _torch.direct(x, weight, bias)
    if is_autocast_enabled("cpu"):
        x, weight, bias = _autocast(x, weight, bias)
    if forward_ad._current_level >= 0:  # inside torch.func.jvp or forward_ad.dual_level
        return _torch_reference.linear_act(x, weight, bias, activation)
    if not direct:
        if _is_distributed(x, weight, bias):
            # takes a while to import, and uses this module
            from fge._torch_dtensor import linear_act_of_shards

            return linear_act_of_shards(x, weight, bias, activation)
        if torch._C._are_functorch_transforms_active():
            return TransformedFunction.apply(x, weight, bias, activation)[0]
        # a trace outlives the settings that it was made under
        return _operator(x, weight, bias, activation, is_grad_enabled() or torch._C._is_tracing())
    if is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        out = _apply(x, weight, bias, activation)
        return out[0] if type(out) is tuple else out
    return _torch.forward(x, weight, bias, activation, False)[0]


# Function.apply without its search for torch.func's transforms, which takes longer than the rest of it.
_apply = super(torch.autograd.Function, LinearActFunction).apply


def _is_distributed(*operands):
    """Whether one is a DTensor, without importing what defines them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(operand, module.DTensor) for operand in operands)


def _operator(x, weight, bias, activation, save_reserve):
    return torch.ops.fge.linear_act(x, weight, bias, activation, save_reserve)[0]


def _autocast(x, weight, bias):
    """What autocast makes of the operands. A float32 bias stays, since the sums that it is added to are float32."""
    if not is_autocast_enabled("cpu"):
        return x, weight, bias
    if bias is not None and bias.dtype is not torch.float32:
        bias = _cast(bias)
    return _cast(x), _cast(weight), bias


def _cast(tensor):
    """As PyTorch's autocast casts the operands of a product: float64 and what isn't a real number stay."""
    if tensor.is_floating_point() and tensor.dtype is not torch.float64 and tensor.is_cpu:
        return tensor.to(torch.get_autocast_dtype("cpu"))
    return tensor
