"""Paddle's operator on a CPU in eager mode: values, reserve and gradients against the float64 reference."""

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

import processes
import reference
from paddle import _C_ops, _legacy_C_ops
from paddle_bridge import array, tensor

import fge
import fge.paddle

ACTIVATIONS = ("none", "relu", "gelu")
TRANSPOSES = ((False, False), (True, False), (False, True), (True, True))

# The tolerances of Paddle's own tests of the operator, which are absolute.
PADDLE_ATOL = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-6}

# Shapes of x: a matrix, and the ranks that the operator takes. m and k stand in the order of trans_x = False.
SHAPES_OF_X = ((8, 4), (2, 2, 8, 4), (3, 1, 2, 5, 4), (1, 4), (5, 1), (33, 17))

# Multiples of 128, of 8, and what Paddle's shape inference turns away.
COLUMNS = (128, 256, 8, 24, 1, 7, 127, 129)


def operands(rng, x_shape, n, dtype, trans_x=False, trans_y=False):
    """x, y, bias and out_grad as stored; x_shape is that of the product."""
    *batch, m, k = x_shape
    x = reference.random(rng, (*batch, k, m) if trans_x else x_shape, dtype)
    y = reference.random(rng, (n, k) if trans_y else (k, n), dtype)
    return x, y, reference.random(rng, (n,), dtype), reference.random(rng, (*batch, m, n), dtype)


def check_forward(x, y, bias, trans_x, trans_y, activation):
    out, reserve = _C_ops.fused_gemm_epilogue(
        tensor(x), tensor(y), tensor(bias), trans_x, trans_y, activation
    )
    expected = reference.forward(x, y, bias, trans_x, trans_y, activation)
    reference.assert_within(array(out), expected.out, "out")
    if activation != "none":
        reference.check_reserve(array(reserve), array(out), expected, activation)
    return out, reserve


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("trans_x, trans_y", TRANSPOSES)
@pytest.mark.parametrize("x_shape", ((8, 4), (2, 2, 8, 4)), ids=str)
@pytest.mark.parametrize("name", PADDLE_ATOL)
def test_cases_of_paddles_forward_tests(name, x_shape, trans_x, trans_y, activation):
    dtype = np.dtype(name)
    rng = reference.rng_for("paddle's forward", name, x_shape, trans_x, trans_y, activation)
    x, y, bias, _ = (a * dtype.type(0.5) for a in operands(rng, x_shape, 128, dtype, trans_x, trans_y))
    out, _ = check_forward(x, y, bias, trans_x, trans_y, activation)
    expected = reference.forward(x, y, bias, trans_x, trans_y, activation).out.value
    np.testing.assert_allclose(array(out).astype(np.float64), expected, rtol=0, atol=PADDLE_ATOL[name])


@pytest.mark.parametrize("wanted", ("x y bias", "y bias", "y", "x y"))
@pytest.mark.parametrize("name", PADDLE_ATOL)
def test_cases_of_paddles_gradient_tests(name, wanted):
    dtype = np.dtype(name)
    rng = reference.rng_for("paddle's gradient", name)
    x, y, bias, out_grad = (a * dtype.type(0.5) for a in operands(rng, (8, 4), 128, dtype))
    expected = reference.backward(x, y, None, out_grad)
    tensors = [tensor(a, n in wanted.split()) for a, n in zip((x, y, bias), ("x", "y", "bias"))]
    out, _ = _C_ops.fused_gemm_epilogue(*tensors, False, False, "none")
    out.backward(tensor(out_grad))
    explicit = _C_ops.fused_gemm_epilogue_grad(
        tensor(x), tensor(y), None, tensor(out_grad), False, False, "none"
    )
    for one, direct, bounded in zip(tensors, explicit, expected):
        assert (one.grad is None) == one.stop_gradient
        reference.assert_within(array(direct), bounded)
        if one.grad is not None:
            reference.assert_same_bits(array(one.grad), array(direct))
            np.testing.assert_allclose(
                array(one.grad).astype(np.float64), bounded.value, rtol=0, atol=PADDLE_ATOL[name]
            )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n", COLUMNS)
@pytest.mark.parametrize("x_shape", SHAPES_OF_X, ids=str)
def test_forward_and_matched_gradients(x_shape, n, activation, dtype):
    """`.backward()` gives the gradients of the function that was computed."""
    trans_x, trans_y = TRANSPOSES[(n + len(x_shape)) % 4]
    rng = reference.rng_for("matched", x_shape, n, activation, dtype)
    x, y, bias, out_grad = operands(rng, x_shape, n, dtype, trans_x, trans_y)
    check_forward(x, y, bias, trans_x, trans_y, activation)

    x_, y_, bias_ = (tensor(a, needs_grad=True) for a in (x, y, bias))
    out, reserve = _C_ops.fused_gemm_epilogue(x_, y_, bias_, trans_x, trans_y, activation)
    out.backward(tensor(out_grad))
    kept = None if activation == "none" else array(reserve)
    expected = reference.backward(x, y, kept, out_grad, trans_x, trans_y, activation)
    for name, one, bounded in zip(("x", "y", "bias"), (x_, y_, bias_), expected):
        reference.assert_within(array(one.grad), bounded, f"gradient of {name}")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n", (128, 8, 7))
@pytest.mark.parametrize("trans_x, trans_y", TRANSPOSES)
def test_the_bits_are_those_of_the_numpy_operator(trans_x, trans_y, n, activation, dtype):
    rng = reference.rng_for("same bits", trans_x, trans_y, n, activation, dtype)
    x, y, bias, out_grad = operands(rng, (33, 17), n, dtype, trans_x, trans_y)
    out, reserve = fge.fused_gemm_epilogue(x, y, bias, trans_x, trans_y, activation)
    grads = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, trans_x, trans_y, activation)
    x_, y_, bias_ = (tensor(a, needs_grad=True) for a in (x, y, bias))
    out_, reserve_ = _C_ops.fused_gemm_epilogue(x_, y_, bias_, trans_x, trans_y, activation)
    out_.backward(tensor(out_grad))
    reference.assert_same_bits(array(out_), out)
    if reserve is not None:
        reference.assert_same_bits(array(reserve_), reserve)
    for one, grad in zip((x_, y_, bias_), grads):
        reference.assert_same_bits(array(one.grad), grad)


@pytest.mark.parametrize("activation", ("relu", "gelu"))
@pytest.mark.parametrize("k", (128, 16, 5))
@pytest.mark.parametrize("trans_x, trans_y", TRANSPOSES)
@pytest.mark.parametrize("batch", ((), (2, 3)), ids=str)
def test_activation_grad_is_that_of_what_produced_x(batch, trans_x, trans_y, k, activation, dtype):
    """As on a GPU: the derivative goes to x_grad, from a reserve of x's shape; bias_grad is out_grad's column
    sum.
    """
    rng = reference.rng_for("activation_grad", batch, trans_x, trans_y, k, activation, dtype)
    x, y, _, out_grad = operands(rng, (*batch, 6, k), 9, dtype, trans_x, trans_y)
    z = reference.random(rng, x.shape, dtype)
    kept = reference.make_reserve(activation, z.reshape(-1, z.shape[-1]), dtype)
    kept = kept if activation == "relu" else kept.reshape(z.shape)
    expected = reference.backward(
        x, y, None, out_grad, trans_x, trans_y, x_activation=activation, x_reserve=kept
    )
    grads = _C_ops.fused_gemm_epilogue_grad(
        tensor(x), tensor(y), tensor(kept), tensor(out_grad), trans_x, trans_y, activation + "_grad"
    )
    for name, grad, bounded in zip(("x", "y", "bias"), grads, expected):
        reference.assert_within(array(grad), bounded, f"gradient of {name}")
    if activation == "relu":  # a mask with one element per value serves as well
        masked = _C_ops.fused_gemm_epilogue_grad(
            tensor(x), tensor(y), tensor(z > 0), tensor(out_grad), trans_x, trans_y, "relu_grad"
        )
        for grad, other in zip(grads, masked):
            reference.assert_same_bits(array(grad), array(other))


@pytest.mark.parametrize("activation", ("relu", "gelu"))
@pytest.mark.parametrize("width", (128, 8, 7))
def test_reserve_of_one_layer_serves_the_next(width, activation, dtype):
    """Two layers differentiated by hand as a GPU program does it equal autograd through both."""
    rng = reference.rng_for("two layers", width, activation, dtype)
    x, w1, b1, _ = operands(rng, (6, 4), width, dtype)
    _, w2, b2, out_grad = operands(rng, (6, width), 9, dtype)
    x_, w1_, b1_, w2_, b2_ = (tensor(a, needs_grad=True) for a in (x, w1, b1, w2, b2))
    hidden, reserve = _C_ops.fused_gemm_epilogue(x_, w1_, b1_, False, False, activation)
    out, _ = _C_ops.fused_gemm_epilogue(hidden, w2_, b2_, False, False, "none")
    out.backward(tensor(out_grad))

    z_grad, _, _ = _C_ops.fused_gemm_epilogue_grad(
        hidden.detach(), w2_.detach(), reserve, tensor(out_grad), False, False, activation + "_grad"
    )
    by_hand = _C_ops.fused_gemm_epilogue_grad(x_.detach(), w1_.detach(), None, z_grad, False, False, "none")
    eps = reference.epsilon(dtype)
    for one, grad in zip((x_, w1_, b1_), by_hand):  # z_grad was rounded once more on the way
        largest = np.abs(array(grad).astype(np.float64)).max()
        np.testing.assert_allclose(
            array(one.grad).astype(np.float64),
            array(grad).astype(np.float64),
            rtol=0,
            atol=8 * 6 * width * eps * largest,
        )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n", (128, 8, 7))
def test_explicit_matched_gradients_equal_autograd(n, activation, dtype):
    rng = reference.rng_for("explicit", n, activation, dtype)
    x, y, bias, out_grad = operands(rng, (6, 5), n, dtype)
    x_, y_, bias_ = (tensor(a, needs_grad=True) for a in (x, y, bias))
    out, reserve = _C_ops.fused_gemm_epilogue(x_, y_, bias_, False, False, activation)
    out.backward(tensor(out_grad))
    explicit = _C_ops.fused_gemm_epilogue_grad(
        tensor(x),
        tensor(y),
        None if activation == "none" else reserve,
        tensor(out_grad),
        False,
        False,
        activation,
    )
    for one, grad in zip((x_, y_, bias_), explicit):
        reference.assert_same_bits(array(one.grad), array(grad))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n", (128, 8, 7))
@pytest.mark.parametrize("trans_x, trans_y", TRANSPOSES)
def test_gradients_against_finite_differences(trans_x, trans_y, n, activation):
    rng = reference.rng_for("differences", trans_x, trans_y, n, activation)
    x, y, bias, out_grad = operands(rng, (3, 2), n, np.dtype(np.float64), trans_x, trans_y)
    step = 1e-5

    def loss(*arrays):
        out, _ = _C_ops.fused_gemm_epilogue(*map(tensor, arrays), trans_x, trans_y, activation)
        return float((array(out) * out_grad).sum())

    tensors = [tensor(a, needs_grad=True) for a in (x, y, bias)]
    _C_ops.fused_gemm_epilogue(*tensors, trans_x, trans_y, activation)[0].backward(tensor(out_grad))
    for position, one in enumerate(tensors):
        grad = array(one.grad)
        for index in list(np.ndindex(grad.shape))[:: max(1, grad.size // 12)]:
            shifted = [[a.copy() for a in (x, y, bias)] for _ in range(2)]
            shifted[0][position][index] += step
            shifted[1][position][index] -= step
            slope = (loss(*shifted[0]) - loss(*shifted[1])) / (2 * step)
            assert abs(grad[index] - slope) <= 1e-7 * max(1.0, abs(slope)), (position, index)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n", (128, 7, 0))
@pytest.mark.parametrize("x_shape", ((0, 4), (8, 0), (0, 0), (2, 0, 4), (0, 3, 4)), ids=str)
def test_empty(x_shape, n, activation, dtype):
    """No rows, no columns, or empty sums: act(bias), and gradients that are zeros or sums of out_grad."""
    rng = reference.rng_for("empty", x_shape, n, activation, dtype)
    x, y, bias, out_grad = operands(rng, x_shape, n, dtype)
    x_, y_, bias_ = (tensor(a, needs_grad=True) for a in (x, y, bias))
    out, reserve = _C_ops.fused_gemm_epilogue(x_, y_, bias_, False, False, activation)
    reference.assert_within(array(out), reference.forward(x, y, bias, activation=activation).out)
    out.backward(tensor(out_grad))
    kept = None if activation == "none" else array(reserve)
    if activation == "relu":
        assert kept.shape == (np.prod(x_shape[:-1]), reference.relu_bits_width(n))
    expected = reference.backward(x, y, kept, out_grad, activation=activation)
    for one, bounded in zip((x_, y_, bias_), expected):
        reference.assert_within(array(one.grad), bounded)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n", (128, 8, 7))
def test_strided_views(n, activation, dtype):
    """Transposed, sliced, expanded and reversed operands equal contiguous copies bit for bit."""
    rng = reference.rng_for("views", n, activation, dtype)
    base = tensor(reference.random(rng, (10, 12), dtype))
    wide = tensor(reference.random(rng, (n, 20), dtype))
    row = tensor(reference.random(rng, (2 * n,), dtype))
    views = (base.t()[2:8], wide[:, ::2].t(), row[::2])
    grad = tensor(reference.random(rng, (n, 6), dtype)).t()
    results = []
    for arguments, out_grad in ((views, grad), ([v.contiguous() for v in views], grad.contiguous())):
        leaves = [a.detach() for a in arguments]
        for leaf in leaves:
            leaf.stop_gradient = False
        out, _ = _C_ops.fused_gemm_epilogue(*leaves, False, False, activation)
        out.backward(out_grad)
        results.append([array(t) for t in (out, *(leaf.grad for leaf in leaves))])
    for one, other in zip(*results):
        reference.assert_same_bits(one, other)


def test_operands_are_not_copied():
    """An operand of 256 MiB adds nothing near its size to the peak of memory, in either direction."""
    processes.run_python(processes.TESTS / "paddle_children.py", "operands_are_not_copied")


def test_special_values_pass():
    """NaN goes through, and relu's bit is 0 for it; gelu's limits are exact."""
    x = np.array([[np.nan], [np.inf], [-np.inf], [-6.0], [0.0]], np.float32)
    y, bias = np.ones((1, 8), np.float32), np.zeros(8, np.float32)
    relu, bits = (
        array(t) for t in _C_ops.fused_gemm_epilogue(tensor(x), tensor(y), tensor(bias), False, False, "relu")
    )
    assert np.isnan(relu[0]).all() and np.isinf(relu[1]).all() and (relu[2:] == 0).all()
    assert list(bits[:, 0]) == [0, 255, 0, 0, 0]
    gelu = array(_C_ops.fused_gemm_epilogue(tensor(x), tensor(y), tensor(bias), False, False, "gelu")[0])
    assert np.isnan(gelu[0]).all() and np.isinf(gelu[1]).all() and (gelu[2] == 0).all()
    assert (np.abs(gelu[3] / -8.4e-11 - 1) < 0.01).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n", (128, 8, 7))
def test_legacy_name(n, activation, dtype):
    rng = reference.rng_for("legacy", n, activation, dtype)
    x, y, bias, _ = (tensor(a) for a in operands(rng, (6, 5), n, dtype, trans_x=True))
    expected, _ = _C_ops.fused_gemm_epilogue(x, y, bias, True, False, activation)
    out = _legacy_C_ops.fused_gemm_epilogue(x, y, bias, "trans_x", True, "activation", activation)
    reference.assert_same_bits(array(out), array(expected))


def test_legacy_name_without_attributes():
    """As fleet's layers call it."""
    x, y, bias = paddle.ones([3, 4]), paddle.ones([4, 5]), paddle.ones([5])
    assert np.array_equal(
        array(_legacy_C_ops.fused_gemm_epilogue(x, y, bias)), np.full((3, 5), 5, np.float32)
    )


@pytest.mark.parametrize("activation", tuple(reference.ACTIVATIONS))
@pytest.mark.parametrize("with_bias", (True, False))
def test_linear_act(with_bias, activation, dtype):
    """Every activation, with and without bias, in value and gradients."""
    rng = reference.rng_for("linear_act", with_bias, activation, dtype)
    x, y, bias, out_grad = operands(rng, (3, 5, 6), 7, dtype)
    bias = bias if with_bias else None
    tensors = [None if a is None else tensor(a, needs_grad=True) for a in (x, y, bias)]
    out = fge.paddle.linear_act(*tensors, activation=activation)
    reference.assert_within(array(out), reference.forward(x, y, bias, activation=activation).out)
    out.backward(tensor(out_grad))
    _, reserve = fge.fused_gemm_epilogue(x, y, bias, activation=activation)
    for one, bounded in zip(tensors, reference.backward(x, y, reserve, out_grad, activation=activation)):
        if one is not None:
            reference.assert_within(array(one.grad), bounded)


def test_linear_act_lists_the_activations():
    with pytest.raises(ValueError, match="gelu_erf"):
        fge.paddle.linear_act(paddle.ones([2, 2]), paddle.ones([2, 2]), activation="swish")
