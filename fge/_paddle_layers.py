"""`fused_mlp` and `fused_glu` for Paddle: one PyLayer each in eager mode, `linear_act` in a static graph."""

import paddle

from fge import _paddle
from fge._kernels import activation_parts, reserve_kind
from fge._mlp import check_checkpoint_lvl, keeps, naming
from fge._paddle_front import (
    contiguous,
    empty_grads,
    empty_like,
    forward_into_new,
    linear_act,
    needs_of,
    of_operands,
    require_tensors,
    save,
    saved,
)


def fused_mlp(x, w1, b1, w2, b2, activation="gelu", checkpoint_lvl=0):
    """act(x . w1 + b1) . w2 + b2, with its gradients.

    x [.., M, K], w1 [K, H], b1 [H] or None, w2 [H, N], b2 [N] or None, of one dtype out of float32, float64,
    float16 and bfloat16; the result is [.., M, N]. `activation`: one of `fge.activations()`; "gelu" is the tanh
    form.

    `checkpoint_lvl` is what eager mode saves for the backward. 0: hidden = act(..) and the reserve of its
    activation. 1: the reserve; hidden is computed from it again. 2: neither; the first layer is computed again.
    For activations that reserve bits, or hidden itself, 1 is as 0. It has no effect in a static graph.

    ValueError for shapes, dtypes, activations and levels that don't fit; NotImplementedError for second
    derivatives.
    """
    check_checkpoint_lvl(checkpoint_lvl)
    activation_parts(activation)  # raises where there is none of that name
    if not paddle.in_dynamic_mode():
        return linear_act(linear_act(x, w1, b1, activation), w2, b2)
    require_tensors(x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    return _Mlp.apply(x, w1, b1, w2, b2, activation, checkpoint_lvl)


def fused_glu(x, w_gate, w_up, b_gate=None, b_up=None, activation="silu"):
    """act(x . w_gate + b_gate) * (x . w_up + b_up) in one pass over x, with its gradients: SwiGLU, GeGLU.

    x [.., M, K], w_gate and w_up [K, N], b_gate and b_up [N] or None, of one dtype; the result is [.., M, N].
    Saved for the backward are the two pre-activations. Errors are those of `fused_mlp`.
    """
    activation_parts(activation)
    if not paddle.in_dynamic_mode():
        return linear_act(x, w_gate, b_gate, activation) * linear_act(x, w_up, b_up)
    require_tensors(x=x, w_gate=w_gate, w_up=w_up, b_gate=b_gate, b_up=b_up)
    return _Glu.apply(x, w_gate, w_up, b_gate, b_up, activation)


class _Mlp(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2, activation, checkpoint_lvl):
        ctx.activation, ctx.needs = activation, needs_of(x, w1, b1, w2, b2)
        x, w1, b1, w2, b2 = contiguous(x, w1, b1, w2, b2)
        with naming("the first layer, where y is w1 and bias is b1"):
            hidden, reserve = forward_into_new(x, w1, b1, False, False, activation)
        with naming("the second layer, where x is act(x . w1 + b1), y is w2 and bias is b2"):
            out, _ = forward_into_new(hidden, w2, b2, False, False, "none")
        with_hidden, with_reserve = keeps(activation, checkpoint_lvl)
        read = [x, w1, w2, hidden if with_hidden else None, reserve if with_reserve else None]
        biases = [b1, b2]
        if checkpoint_lvl == 2:  # the first layer's bias is read again
            read.append(biases.pop(0))
        save(ctx, read, biases)
        return out

    @staticmethod
    def backward(ctx, out_grad):
        x, w1, w2, hidden, reserve, b1, b2 = saved(ctx)
        first = any(ctx.needs[:3])
        if hidden is None and reserve is None:
            hidden, reserve = forward_into_new(x, w1, b1, False, False, ctx.activation)
        elif hidden is None:
            hidden = empty_like(reserve)
            if ctx.needs[3]:
                _paddle.activate(reserve, ctx.activation, hidden)
        dz = empty_like(hidden) if first else None
        of_second = empty_grads((w2, b2), ctx.needs[3:])
        # The product that makes dz multiplies the first layer's derivative in its epilogue.
        x_reserve = hidden if reserve_kind(ctx.activation) == "out" else reserve
        _paddle.backward(
            hidden,
            w2,
            None,
            out_grad.contiguous(),
            False,
            False,
            "none",
            dz,
            *of_second,
            ctx.activation,
            x_reserve,
        )
        of_first = empty_grads((x, w1, b1), ctx.needs)
        if first:
            _paddle.backward(x, w1, None, dz, False, False, "none", *of_first)
        return of_operands((*of_first, *of_second), ctx.needs)


class _Glu(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x, w_gate, w_up, b_gate, b_up, activation):
        ctx.activation, ctx.needs = activation, needs_of(x, w_gate, w_up, b_gate, b_up)
        x, w_gate, w_up, b_gate, b_up = contiguous(x, w_gate, w_up, b_gate, b_up)
        shape = [*x.shape[:-1], *w_gate.shape[-1:]]
        out = paddle.empty(shape, x.dtype)
        z_gate, z_up = (empty_like(out), empty_like(out)) if any(ctx.needs) else (None, None)
        _paddle.glu_forward(x, w_gate, w_up, b_gate, b_up, activation, out, z_gate, z_up)
        save(ctx, (x, w_gate, w_up, z_gate, z_up), (b_gate, b_up))
        return out

    @staticmethod
    def backward(ctx, out_grad):
        x, w_gate, w_up, z_gate, z_up, b_gate, b_up = saved(ctx)
        grads = empty_grads((x, w_gate, w_up, b_gate, b_up), ctx.needs)
        _paddle.glu_backward(
            x,
            w_gate,
            w_up,
            z_gate,
            z_up,
            out_grad.contiguous(),
            ctx.activation,
            empty_like(z_gate),
            empty_like(z_up),
            grads,
        )
        return of_operands(grads, ctx.needs)
