"""What the operator's backward keeps and computes, for each way in which PyTorch can differentiate a call."""

import functools

import torch
from torch import is_grad_enabled
from torch.compiler import is_compiling

from fge import _torch, _torch_reference
from fge._kernels import reserve_kind

_transforms_active = torch._C._are_functorch_transforms_active
_is_legacy_batched = torch._C._functorch.is_legacy_batchedtensor

_reserve_kind = functools.cache(reserve_kind)


def save(ctx, x, weight, bias, activation, out, reserve):
    """Keep what the gradients that are asked for need, and no more: x for weight's, weight for x's, a reserve."""
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    ctx.save_for_backward(
        x if needs_weight else None,
        weight if needs_x else None,
        out if _reserve_kind(activation) == "out" else reserve,
    )
    ctx.activation = activation
    ctx.bias_dtype = bias.dtype if needs_bias else None
    ctx.set_materialize_grads(False)


def gradients(ctx, out_grad, reserve_grad):
    """(x_grad, weight_grad, bias_grad), None for inputs that need none.

    The core computes them, unless they are to be differentiated again or for a whole batch of out_grad at once
    (`torch.autograd.grad(.., is_grads_batched=True)`, torch.func's transforms). A gradient of the reserve only comes from
    that: z is an output of the forward in autograd's eyes, so that second derivatives reach its inputs.
    """
    if out_grad is None and reserve_grad is None:
        return None, None, None
    x, weight, reserve = ctx.saved_tensors
    if is_grad_enabled() or reserve_grad is not None or _is_batched(out_grad):
        with torch.autocast("cpu", enabled=False):  # the forward has settled the dtypes
            return _torch_reference.gradients(
                out_grad, reserve_grad, x, weight, reserve, ctx.activation, ctx.bias_dtype
            )
    if not is_compiling() and _torch.direct_backward(out_grad, x, weight):
        return _torch.backward(out_grad, x, weight, reserve, ctx.activation, ctx.bias_dtype)
    computed = iter(
        torch.ops.fge.linear_act_backward(out_grad, x, weight, reserve, ctx.activation, ctx.bias_dtype)
    )
    wanted = (weight is not None, x is not None, ctx.bias_dtype is not None)
    return tuple(next(computed) if want else None for want in wanted)


def _is_batched(out_grad):
    return _transforms_active() or _is_legacy_batched(out_grad)


class LinearActFunction(torch.autograd.Function):
    """A call on ordinary tensors, some of which need a gradient. Answers out, or (out, z) where z is reserved."""

    @staticmethod
    def forward(ctx, x, weight, bias, activation):
        out, reserve = _torch.forward(x, weight, bias, activation, True)
        save(ctx, x, weight, bias, activation, out, reserve)
        return (out, reserve) if _reserve_kind(activation) == "z" else out

    @staticmethod
    def backward(ctx, out_grad, reserve_grad=None):
        return (*gradients(ctx, out_grad, reserve_grad), None)


class TransformedFunction(LinearActFunction):
    """A call under torch.func's transforms. Answers (out, reserve), where the reserve may be None.

    They want the forward apart from what it saves; that form is much slower to call.
    """

    @staticmethod
    def forward(x, weight, bias, activation):
        return _torch.forward(x, weight, bias, activation, True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        save(ctx, *inputs, *output)

    @staticmethod
    def vmap(info, in_dims, x, weight, bias, activation):
        """A batch of x alone is more rows of x; for anything else there is a call for each of the batch."""
        x_dim, weight_dim, bias_dim, _ = in_dims
        if weight_dim is None and bias_dim is None:
            out, reserve = TransformedFunction.apply(x.movedim(x_dim, 0), weight, bias, activation)
            if reserve is not None and _reserve_kind(activation) == "bits":
                reserve = reserve.unflatten(0, (info.batch_size, -1))
            return (out, reserve), (0, None if reserve is None else 0)

        def each(tensor, dim):
            return [tensor] * info.batch_size if dim is None else tensor.unbind(dim)

        slices = zip(each(x, x_dim), each(weight, weight_dim), each(bias, bias_dim), strict=True)
        outs, reserves = zip(
            *(TransformedFunction.apply(*of_one, activation) for of_one in slices), strict=True
        )
        if reserves[0] is None:
            return (torch.stack(outs), None), (0, None)
        return (torch.stack(outs), torch.stack(reserves)), (0, 0)
