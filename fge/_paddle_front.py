"""The functions that stand under Paddle's names of the operator, in front of the registered kernels.

Paddle's own entry points run wherever they can. Handled here is what they turn away, or crash on: missing
arguments (they read past the argument list), widths that cuBLASLt's epilogues don't have (a multiple of 128
columns for relu and of 8 for gelu), gradients of relu and gelu in a static graph, and the operator's name in
the legacy namespace.
"""

import functools

import paddle
from paddle import _C_ops, _legacy_C_ops
from paddle.base import core

from fge import _paddle
from fge._kernels import activation_parts

# Paddle's entry points, before `install` puts ours in front. The forward serves eager mode and static graphs.
_forward = _C_ops.fused_gemm_epilogue
_backward = _C_ops.fused_gemm_epilogue_grad

# Activations of Paddle's operator, with the number that its shape inference wants N to be a multiple of.
_MULTIPLE_OF_N = {"none": 1, "relu": 128, "gelu": 8}
_ACTIVATION_GRADS = ("none", "relu", "gelu", "relu_grad", "gelu_grad")

# Every activation as an operator of Paddle's own. Those with numbers take them behind z.
_ACTIVATIONS = {
    "none": lambda z: z,
    "relu": paddle.nn.functional.relu,
    "gelu": functools.partial(paddle.nn.functional.gelu, approximate=True),
    "gelu_erf": paddle.nn.functional.gelu,
    "silu": paddle.nn.functional.silu,
    "sigmoid": paddle.nn.functional.sigmoid,
    "tanh": paddle.tanh,
    "leaky_relu": paddle.nn.functional.leaky_relu,
    "relu6": paddle.nn.functional.relu6,
    "clamp": paddle.clip,
    "sqrelu": lambda z: paddle.square(paddle.nn.functional.relu(z)),
    "hardswish": paddle.nn.functional.hardswish,
}

# Whether this build of Paddle has no other device than the CPU.
_CPU_ONLY = not (
    paddle.is_compiled_with_cuda()
    or paddle.is_compiled_with_xpu()
    or paddle.device.get_all_custom_device_type()
)


def fused_gemm_epilogue(x, y, bias, trans_x, trans_y, activation):
    """(act(x . y + bias), reserve_space), in eager mode and in a static graph.

    x [.., M, K], or [.., K, M] with `trans_x`; y [K, N], or [N, K] with `trans_y`; bias [N]; all of one
    dtype, out of float32, float64, float16 and bfloat16. `activation`: "none", "relu" or "gelu" (the tanh
    form).

    reserve_space is what the derivative needs: for relu the bits of z > 0, uint8 [rows of out, 16 * ceil(N /
    128)]; for gelu z, in the dtype and number of elements of out; a tensor without memory for none, and in a
    static graph that asks for gradients.

    ValueError for shapes, dtypes and activations that don't fit, TypeError for attributes of another type.
    """
    if not isinstance(activation, str):
        return _forward(x, y, bias, trans_x, trans_y, activation)  # raises
    multiple = _MULTIPLE_OF_N.get(activation)
    if multiple is None:
        raise ValueError(
            "(InvalidArgument) The activation attribute of fused_gemm_epilogue op should be one of "
            f'{{"none", "relu", "gelu"}}, but received "{activation}".'
        )
    if activation != "none" and not paddle.in_dynamic_mode():
        if not (_fits(multiple, y, trans_y) and _wants_no_gradient(x, y, bias)):
            return _unfused(x, y, bias, trans_x, trans_y, activation)
    elif not _fits(multiple, y, trans_y) and _is_well_typed(x, y, bias, trans_x, trans_y):
        if activation != "relu" or not _fits(8, y, trans_y):
            call = _Call(trans_x, trans_y, activation)
            return _FusedLayer.apply(x, y, bias, call), call.reserve
        activation = _paddle.RELU_OF_8_COLUMNS
    return _run(_forward, x, y, bias, trans_x, trans_y, activation)


def fused_gemm_epilogue_grad(x, y, reserve_space, out_grad, trans_x, trans_y, activation_grad):
    """(x_grad, y_grad, bias_grad), each in the shape and dtype of its input. Eager mode.

    `activation_grad` "relu_grad" and "gelu_grad" mean what they mean on a GPU: x was made by that activation
    and reserve_space is the reserve of that call; x_grad is multiplied by the derivative, and bias_grad is
    the column sum of out_grad itself. For relu a bool tensor of x's shape is taken as well. "relu" and "gelu"
    are the gradients of the forward with that activation, and reserve_space is what it returned. "none" needs
    none.

    ValueError for shapes, dtypes and a reserve_space that don't fit, TypeError for attributes of another
    type.
    """
    if isinstance(activation_grad, str) and activation_grad not in _ACTIVATION_GRADS:
        raise ValueError(
            "(InvalidArgument) The activation_grad attribute of fused_gemm_epilogue_grad op should be one of "
            f'{{"none", "relu_grad", "gelu_grad"}}, but received "{activation_grad}".'
        )
    return _run(_backward, x, y, reserve_space, out_grad, trans_x, trans_y, activation_grad)


def legacy_fused_gemm_epilogue(x, y, bias, *attributes):
    """out alone, with attributes as the legacy namespace takes them: 'trans_x', True, 'activation', 'relu',
    ..
    """
    values = {"trans_x": False, "trans_y": False, "activation": "none"}
    names = attributes[::2]
    if len(attributes) % 2 or not set(names) <= values.keys():
        raise ValueError(
            "(InvalidArgument) fused_gemm_epilogue takes pairs of a name and a value after three tensors, "
            f"with names out of {', '.join(values)}; got {attributes}."
        )
    values.update(zip(names, attributes[1::2]))
    return fused_gemm_epilogue(x, y, bias, **values)[0]


def linear_act(x, weight, bias=None, activation="none"):
    """act(x . weight + bias) for every activation of `fge`, with its gradients.

    x [.., M, K], weight [K, N], bias [N] or None, of one dtype; the result is [.., M, N]. In a static graph
    the activation is an operator of its own. ValueError for shapes, dtypes and activations that don't fit.
    """
    activation_parts(activation)  # raises where there is none of that name
    if paddle.in_dynamic_mode():
        require_tensors(x=x, weight=weight, bias=bias)
        return _FusedLayer.apply(x, weight, bias, _Call(False, False, activation))
    if bias is None:
        return _activate(paddle.matmul(x, weight), activation)
    return _unfused(x, weight, bias, False, False, activation)[0]


def install():
    """Puts the functions above under Paddle's names. Users of those look them up when they call."""
    for namespace in (_C_ops, core.eager.ops, core.pir.ops):
        namespace.fused_gemm_epilogue = fused_gemm_epilogue
    for namespace in (_C_ops, core.eager.ops):
        namespace.fused_gemm_epilogue_grad = fused_gemm_epilogue_grad
    for namespace in (_legacy_C_ops, core.eager.ops.legacy):
        namespace.fused_gemm_epilogue = legacy_fused_gemm_epilogue


def _run(function, *arguments):
    """Calls an entry point of Paddle's. Where our kernel refused the call, its reason replaces Paddle's
    words.
    """
    try:
        results = function(*arguments)
    except RuntimeError as error:
        reason = _paddle.take_error() if "PreconditionNotMet" in str(error) else None
        if reason is None:
            raise
        raise ValueError(f"(InvalidArgument) {reason}") from None
    if not paddle.in_dynamic_mode():
        _check_operands(results[0])
    return results


def _check_operands(out):
    """The dtypes of an operator's operands in a static graph, after auto_cast. Paddle compares none."""
    dtypes = [operand.dtype for operand in out.get_defining_op().operands_source()]
    if len(set(dtypes)) > 1:
        raise ValueError(f"(InvalidArgument) x, y and bias are of {dtypes}; they must be of one dtype")


def _fits(multiple, y, trans_y):
    """Whether N is a multiple that Paddle's shape inference takes. True as well where it will refuse y
    itself.
    """
    if multiple == 1:
        return True
    shape = getattr(y, "shape", ())
    if len(shape) != 2:
        return True
    n = shape[0 if trans_y else 1]
    return n >= 0 and n % multiple == 0


def _wants_no_gradient(*values):
    return all(getattr(value, "stop_gradient", True) for value in values)


def _is_well_typed(x, y, bias, trans_x, trans_y):
    """Whether a call is for a CPU and has arguments of the right types. Others are left to Paddle's entry
    point.
    """
    return (
        isinstance(trans_x, bool)
        and isinstance(trans_y, bool)
        and all(isinstance(tensor, paddle.Tensor) for tensor in (x, y, bias))
        and (_CPU_ONLY or all(tensor.place.is_cpu_place() for tensor in (x, y, bias)))
    )


def require_tensors(**operands):
    """TypeError where an operand isn't a tensor (a bias may be None), ValueError where it isn't on the CPU."""
    for name, operand in operands.items():
        if operand is None and name.startswith("b"):
            continue
        if not isinstance(operand, paddle.Tensor):
            raise TypeError(
                f"(InvalidType) {name} is of type {type(operand).__name__}; it must be a paddle.Tensor"
            )
        if not (_CPU_ONLY or operand.place.is_cpu_place()):
            raise ValueError(f"(InvalidArgument) {name} is on {operand.place}; it must be on the CPU")


def save(ctx, read, described=()):
    """Saves tensors for a PyLayer's backward: those whose values it reads, and those of which it needs the
    shape alone.
    """
    ctx.save_for_backward(*read, *described)
    ctx.versions = _versions(read)


def saved(ctx):
    """The tensors of `save`, if the backward can be computed from them."""
    if paddle.is_grad_enabled():
        raise NotImplementedError("the fused operator has no second derivatives (create_graph=True)")
    tensors = ctx.saved_tensor()
    if ctx.versions != _versions(tensors[: len(ctx.versions)]):
        raise RuntimeError(
            "(PermissionDenied) A tensor used in gradient computation has been modified by an inplace operation."
        )
    return tensors


def _versions(tensors):
    return [None if tensor is None else tensor.inplace_version for tensor in tensors]


def contiguous(*tensors):
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def needs_of(*tensors):
    """Which operands want a gradient; None for those that aren't there."""
    return [None if tensor is None else not tensor.stop_gradient for tensor in tensors]


def empty_like(tensor):
    return _C_ops.empty(tensor.shape, tensor.dtype, tensor.place)


def empty_grads(tensors, needs):
    return [empty_like(tensor) if need else None for tensor, need in zip(tensors, needs)]


def of_operands(grads, needs):
    """What a PyLayer's backward returns: a gradient, or None, for each operand that is there."""
    return tuple(grad for grad, need in zip(grads, needs) if need is not None)


def forward_into_new(x, y, bias, trans_x, trans_y, activation):
    """(out, reserve) of contiguous tensors; the reserve is None where the activation has none or keeps out."""
    shape = list(x.shape[:-2] + x.shape[-1:] if trans_x else x.shape[:-1])
    shape.extend(y.shape[:1] if trans_y else y.shape[-1:])
    out, reserve = _C_ops.empty(shape, x.dtype, x.place), None
    shape, is_bits = _paddle.reserve_shape(activation, shape)
    if shape is not None:
        reserve = _C_ops.empty(shape, paddle.uint8 if is_bits else x.dtype, x.place)
    _paddle.forward(x, y, bias, trans_x, trans_y, activation, out, reserve)
    return out, reserve


def _unfused(x, y, bias, trans_x, trans_y, activation):
    """Product and bias by the operator, activation by Paddle: differentiable everywhere."""
    z, reserve_space = _run(_forward, x, y, bias, trans_x, trans_y, "none")
    return _activate(z, activation), reserve_space


def _activate(z, activation):
    """An activation by Paddle's operator; by way of float32 for float16, which those lack on a CPU."""
    name, *numbers = activation_parts(activation)
    if z.dtype == paddle.float16:
        return _ACTIVATIONS[name](z.astype("float32"), *numbers).astype("float16")
    return _ACTIVATIONS[name](z, *numbers)


class _Call:
    """The attributes of one call of _FusedLayer, and the reserve that its forward leaves.

    The reserve is no output of the layer: Paddle 3.3.0 and older crash in paddle.grad on a second output of
    another dtype.
    """

    __slots__ = ("attributes", "reserve")

    def __init__(self, trans_x, trans_y, activation):
        self.attributes = trans_x, trans_y, activation
        self.reserve = None


class _FusedLayer(paddle.autograd.PyLayer):
    """The operator on the core, past Paddle's shape inference. Eager mode, tensors on a CPU."""

    @staticmethod
    def forward(ctx, x, y, bias, call):
        ctx.call, ctx.needs = call, needs_of(x, y, bias)
        x, y, bias = contiguous(x, y, bias)
        out, call.reserve = forward_into_new(x, y, bias, *call.attributes)
        save(ctx, (x, y, out if call.reserve is None else call.reserve), (bias,))
        return out

    @staticmethod
    def backward(ctx, out_grad):
        x, y, reserve, bias = saved(ctx)
        grads = empty_grads((x, y, bias), ctx.needs)
        _paddle.backward(x, y, reserve, out_grad.contiguous(), *ctx.call.attributes, *grads)
        return of_operands(grads, ctx.needs)
