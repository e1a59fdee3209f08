"""`fused_mlp` and `fused_glu`: what is built from the operator, with a backward of its own.

Where nothing but autograd needs to see the call, one autograd function runs the whole of it. Everywhere else
(torch.compile, transforms, modes, forward-mode derivatives) it is put together from `linear_act`, which knows all of these.
"""

import torch
from torch import Tensor, is_autocast_enabled
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from fge import _torch
from fge._kernels import reserve_kind
from fge._mlp import check_checkpoint_lvl, keeps, naming
from fge._torch_function import _autocast, linear_act


def fused_mlp(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    activation: str = "gelu",
    checkpoint_lvl: int = 0,
) -> Tensor:
    """act(x @ w1.T + b1) @ w2.T + b2.

    Parameters
    ----------
    x : tensor [.., K]
    w1, w2 : tensors [H, K] and [N, H], as in `torch.nn.functional.linear`
    b1, b2 : tensors [H] and [N], or None
    activation : one of `fge.activations()`; "gelu" is the tanh form
    checkpoint_lvl : what is saved for the backward. 0: hidden and the reserve of its activation. 1: the reserve; hidden is
        computed from it again. 2: neither; the first layer is computed again. For activations that reserve bits, or hidden
        itself, 1 is as 0. Under torch.compile and torch.func it has no effect

    The backward multiplies act' in the epilogue of the product that makes the gradient of hidden. Derivatives of any order
    are right. Dtypes, autocast and errors are those of `linear_act`.
    """
    check_checkpoint_lvl(checkpoint_lvl)
    if _is_seen(x, w1, b1, w2, b2):
        return _composed_mlp(x, w1, b1, w2, b2, activation)
    if is_autocast_enabled("cpu"):
        x, w1, b1 = _autocast(x, w1, b1)
        _, w2, b2 = _autocast(x, w2, b2)
    return _Mlp.apply(x, w1, b1, w2, b2, activation, checkpoint_lvl)


def fused_glu(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None = None,
    b_up: Tensor | None = None,
    activation: str = "silu",
) -> Tensor:
    """act(x @ w_gate.T + b_gate) * (x @ w_up.T + b_up), in one pass over x: SwiGLU, GeGLU and their like.

    Parameters
    ----------
    x : tensor [.., K]
    w_gate, w_up : tensors [N, K]
    b_gate, b_up : tensors [N], or None
    activation : one of `fge.activations()`

    Saved for the backward are the two pre-activations. Derivatives of any order are right. Dtypes, autocast and errors are
    those of `linear_act`.
    """
    if _is_seen(x, w_gate, b_gate, w_up, b_up):
        return _composed_glu(x, w_gate, w_up, b_gate, b_up, activation)
    if is_autocast_enabled("cpu"):
        x, w_gate, b_gate = _autocast(x, w_gate, b_gate)
        _, w_up, b_up = _autocast(x, w_up, b_up)
    return _Glu.apply(x, w_gate, w_up, b_gate, b_up, activation)


def _composed_mlp(x, w1, b1, w2, b2, activation):
    return linear_act(linear_act(x, w1, b1, activation), w2, b2)


def _composed_glu(x, w_gate, w_up, b_gate, b_up, activation):
    return linear_act(x, w_gate, b_gate, activation) * linear_act(x, w_up, b_up)


def _is_seen(x, weight, bias, other_weight, other_bias):
    """Whether more than autograd needs to see a call."""
    if is_compiling() or forward_ad._current_level >= 0:
        return True
    return not (_torch.direct(x, weight, bias) and _torch.direct(x, other_weight, other_bias))


def _differentiable(composed, tensors, activation, needs, out_grad):
    """Gradients that are to be differentiated again."""
    with torch.autocast("cpu", enabled=False):  # the forward has settled the dtypes
        out = composed(*tensors, activation)
    wanted = [tensor for tensor, need in zip(tensors, needs) if need]
    grads = iter(torch.autograd.grad(out, wanted, out_grad, create_graph=True))
    return [next(grads) if need else None for need in needs]


def _dtype(tensor):
    return None if tensor is None else tensor.dtype


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2, activation, checkpoint_lvl):
        with naming("the first layer, where weight is w1 and bias is b1"):
            hidden, reserve = _torch.forward(x, w1, b1, activation, any(ctx.needs_input_grad[:4]))
        with naming("the second layer, where x is act(x @ w1.T + b1), weight is w2 and bias is b2"):
            out, _ = _torch.forward(hidden, w2, b2, "none", False)
        with_hidden, with_reserve = keeps(activation, checkpoint_lvl)
        ctx.save_for_backward(
            x, w1, b1, w2, b2, hidden if with_hidden else None, reserve if with_reserve else None
        )
        ctx.activation, ctx.bias_dtypes = activation, (_dtype(b1), _dtype(b2))
        return out

    @staticmethod
    def backward(ctx, out_grad):
        x, w1, b1, w2, b2, hidden, reserve = ctx.saved_tensors
        activation, needs = ctx.activation, ctx.needs_input_grad
        if torch.is_grad_enabled():
            return (
                *_differentiable(_composed_mlp, (x, w1, b1, w2, b2), activation, needs[:5], out_grad),
                None,
                None,
            )
        first = any(needs[:3])
        if hidden is None and reserve is None:
            hidden, reserve = _torch.forward(x, w1, b1, activation, True)
        elif hidden is None and needs[3]:
            hidden = _torch.activate(reserve, activation)
        dz, w2_grad, b2_grad = _torch.backward(
            out_grad,
            hidden if needs[3] else None,
            w2 if first else None,
            None,
            "none",
            ctx.bias_dtypes[1] if needs[4] else None,
            activation,
            hidden if reserve_kind(activation) == "out" else reserve,
        )
        if not first:
            return None, None, None, w2_grad, b2_grad, None, None
        grads = _torch.backward(
            dz,
            x if needs[1] else None,
            w1 if needs[0] else None,
            None,
            "none",
            ctx.bias_dtypes[0] if needs[2] else None,
        )
        return *grads, w2_grad, b2_grad, None, None


class _Glu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_gate, w_up, b_gate, b_up, activation):
        out, z_gate, z_up = _torch.glu_forward(
            x, w_gate, w_up, b_gate, b_up, activation, any(ctx.needs_input_grad)
        )
        ctx.save_for_backward(x, w_gate, w_up, b_gate, b_up, z_gate, z_up)
        ctx.activation, ctx.bias_dtypes = activation, (_dtype(b_gate), _dtype(b_up))
        return out

    @staticmethod
    def backward(ctx, out_grad):
        *inputs, z_gate, z_up = ctx.saved_tensors
        needs = ctx.needs_input_grad[:5]
        if torch.is_grad_enabled():
            return *_differentiable(_composed_glu, inputs, ctx.activation, needs, out_grad), None
        grads = _torch.glu_backward(
            out_grad, *inputs[:3], z_gate, z_up, ctx.activation, needs, *ctx.bias_dtypes
        )
        return *grads, None
