"""Calls of Paddle's operator that have no meaning, and odd ones that have, as data."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import _C_ops, _legacy_C_ops
from paddle.incubate.nn.functional import fused_linear, fused_linear_activation


@dataclass
class Call:
    name: str
    run: Callable[[], object]
    error: type | tuple = ()
    match: str = ""


def t(*shape, dtype="float32"):
    made = paddle.rand(list(shape)).astype(dtype)
    made.stop_gradient = dtype not in ("float32", "float64", "float16", "bfloat16")
    return made


def forward(x=None, y=None, bias=None, trans_x=False, trans_y=False, activation="relu", n=128):
    x = t(8, 4) if x is None else x
    y = t(4, n) if y is None else y
    bias = t(n) if bias is None else bias
    return lambda: _C_ops.fused_gemm_epilogue(x, y, bias, trans_x, trans_y, activation)


def backward(x=None, y=None, reserve=None, out_grad=None, activation_grad="none", n=128):
    x = t(8, 4) if x is None else x
    y = t(4, n) if y is None else y
    out_grad = t(8, n) if out_grad is None else out_grad
    return lambda: _C_ops.fused_gemm_epilogue_grad(x, y, reserve, out_grad, False, False, activation_grad)


def _shapes(n):
    """Mistakes in shapes and dtypes, for columns that Paddle's shape inference takes and for others."""
    yield Call(f"rank of x, N={n}", forward(x=t(4), n=n), ValueError, "InvalidArgument")
    yield Call(f"rank of y, N={n}", forward(y=t(2, 4, n), n=n), ValueError, "InvalidArgument")
    yield Call(f"rank of bias, N={n}", forward(bias=t(1, n), n=n), ValueError, "InvalidArgument")
    yield Call(f"scalar bias, N={n}", forward(bias=t(), n=n), ValueError, "InvalidArgument")
    yield Call(f"length of bias, N={n}", forward(bias=t(n - 1), n=n), ValueError, "InvalidArgument")
    yield Call(f"K, N={n}", forward(x=t(8, 5), n=n), ValueError, "InvalidArgument")
    yield Call(f"K of the transpose, N={n}", forward(trans_x=True, n=n), ValueError, "InvalidArgument")
    yield Call(
        f"leading K, N={n}", forward(x=t(4, 2, 2, 8), trans_x=True, n=n), ValueError, "InvalidArgument"
    )
    yield Call(f"dtype of y, N={n}", forward(y=t(4, n, dtype="float64"), n=n), ValueError, "one dtype")
    yield Call(f"dtype of bias, N={n}", forward(bias=t(n, dtype="float16"), n=n), ValueError, "one dtype")
    yield Call(f"half and float, N={n}", forward(x=t(8, 4, dtype="bfloat16"), n=n), ValueError, "one dtype")
    yield Call(
        f"integers, N={n}",
        forward(*(t(*s, dtype="int32") for s in ((8, 4), (4, n), (n,)))),
        (RuntimeError, ValueError),
        "int32|float32",
    )
    yield Call(
        f"array for x, N={n}", forward(x=np.zeros((8, 4), np.float32), n=n), ValueError, "must be Tensor"
    )
    yield Call(
        f"array for y, N={n}", forward(y=np.zeros((4, n), np.float32), n=n), ValueError, "must be Tensor"
    )
    yield Call(f"transpose is a word, N={n}", forward(trans_x="yes", n=n), TypeError, "must be bool")
    yield Call(f"activation, N={n}", forward(activation="swish", n=n), ValueError, "swish")
    yield Call(f"activation of fge, N={n}", forward(activation="silu", n=n), ValueError, "silu")
    yield Call(f"activation is a number, N={n}", forward(activation=3, n=n), TypeError, "must be str")


def _arguments():
    x, y, bias = t(8, 4), t(4, 128), t(128)
    yield Call(
        "no bias", lambda: _C_ops.fused_gemm_epilogue(x, y, None, False, False, "relu"), ValueError, "bias"
    )
    yield Call("too few", lambda: _C_ops.fused_gemm_epilogue(x, y, bias), TypeError, "argument")
    yield Call(
        "too many",
        lambda: _C_ops.fused_gemm_epilogue(x, y, bias, False, False, "none", 1),
        TypeError,
        "argument",
    )
    yield Call("none at all", lambda: _C_ops.fused_gemm_epilogue(), TypeError, "argument")
    yield Call("gradient: too few", lambda: _C_ops.fused_gemm_epilogue_grad(x, y), TypeError, "argument")
    yield Call("no memory", forward(x=paddle.Tensor()), ValueError, "InvalidArgument")
    yield Call(
        "legacy: unknown attribute",
        lambda: _legacy_C_ops.fused_gemm_epilogue(x, y, bias, "trans_z", True),
        ValueError,
        "trans_z",
    )
    yield Call(
        "legacy: no value",
        lambda: _legacy_C_ops.fused_gemm_epilogue(x, y, bias, "trans_x"),
        ValueError,
        "pairs",
    )
    yield Call(
        "function: activation",
        lambda: fused_linear_activation(x, y, bias, activation="tanh"),
        ValueError,
        "tanh",
    )
    yield Call("function: dtype", lambda: fused_linear(x, y.astype("float64"), bias), ValueError, "one dtype")


def _gradients():
    yield Call("gradient: K", backward(x=t(8, 5)), ValueError, "K = 5")
    yield Call("gradient: rows", backward(out_grad=t(9, 128)), ValueError, "InvalidArgument")
    yield Call("gradient: columns", backward(out_grad=t(8, 127)), ValueError, "InvalidArgument")
    yield Call("gradient: rank", backward(x=t(2, 4, 4)), ValueError, "InvalidArgument")
    yield Call("gradient: dtype", backward(out_grad=t(8, 128, dtype="float64")), ValueError, "one dtype")
    yield Call("gradient: dtype of y", backward(y=t(4, 128, dtype="bfloat16")), ValueError, "one dtype")
    yield Call(
        "gradient: activation",
        backward(activation_grad="tanh_grad", reserve=t(8, 4)),
        ValueError,
        "tanh_grad",
    )
    for name in ("relu", "gelu", "relu_grad", "gelu_grad"):
        yield Call(
            f"{name}: no reserve",
            backward(activation_grad=name),
            ValueError,
            "ReserveSpace should not be empty",
        )
        wrong = {
            "short": t(3),
            "of no elements": t(0),
            "without memory": paddle.Tensor(),
            "of float64": t(8, 128, dtype="float64"),
            "of x's rows, other columns": t(8, 5),
            "uint8, short": t(8, 15, dtype="uint8"),
            "bool, short": t(7, 4, dtype="bool"),
        }
        for what, reserve in wrong.items():
            yield Call(
                f"{name}: reserve {what}",
                backward(activation_grad=name, reserve=reserve),
                ValueError,
                "reserve_space",
            )


CALLS = [*_shapes(128), *_shapes(7), *_shapes(24), *_arguments(), *_gradients()]


def _use(run):
    """Runs a call and differentiates what it returns."""
    out, reserve = run()
    if not out.stop_gradient:
        out.sum().backward()
    return str(out), str(reserve)


def _odd():
    """Calls with a meaning, at the edges of it."""
    for n in (128, 24, 7, 1, 0):
        for activation in ("none", "relu", "gelu"):
            name = f"{activation}, N={n}: "
            yield Call(name + "rank 5", forward(x=t(2, 1, 2, 3, 4), n=n, activation=activation))
            yield Call(name + "rank 9", forward(x=t(1, 1, 1, 1, 2, 1, 2, 3, 4), n=n, activation=activation))
            yield Call(
                name + "rank 5, transposed",
                forward(x=t(2, 1, 2, 4, 3), trans_x=True, n=n, activation=activation),
            )
            yield Call(name + "no rows", forward(x=t(0, 4), n=n, activation=activation))
            yield Call(name + "an empty batch", forward(x=t(2, 0, 3, 4), n=n, activation=activation))
            yield Call(
                name + "empty and transposed",
                forward(x=t(0, 2, 4, 3), trans_x=True, n=n, activation=activation),
            )
            yield Call(name + "empty sums", forward(x=t(8, 0), y=t(0, n), n=n, activation=activation))
            yield Call(
                name + "views",
                forward(t(4, 8).t(), t(n, 8)[:, ::2].t(), t(2 * n)[::2], n=n, activation=activation),
            )
            yield Call(
                name + "expanded",
                forward(t(1, 4).expand([8, 4]), t(4, 1).expand([4, n]), n=n, activation=activation),
            )


ODD_CALLS = [Call(call.name, lambda run=call.run: _use(run)) for call in _odd()]
