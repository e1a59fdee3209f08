"""The three gradients against their float64 reference, central differences and another implementation."""

import itertools

import numpy as np
import pytest
from activation_table import ACTIVATIONS
from designs import CASES, LARGE_CASES, TRANSPOSITIONS
from reference import (
    BFLOAT16,
    FLOAT32,
    FLOAT64,
    HALVES,
    accumulator,
    assert_all_same_bits,
    assert_same_bits,
    assert_within,
    backward,
    make_reserve,
    matrix_shape,
    operand_shapes,
    out_shape,
    random,
    random_operands,
    rng_for,
)

import fge

pytestmark = pytest.mark.usefixtures("path")

GRADIENTS = ("x_grad", "y_grad", "bias_grad")


def problem(rng, m, k, n, dtype, trans_x, trans_y, activation):
    """x, y, reserve and out_grad of a forward; z spread over the curved part of the activations."""
    x, y, _ = random_operands(rng, m, k, n, dtype, trans_x, trans_y)
    reserve = make_reserve(activation, rng.uniform(-6, 6, (m, n)).astype(dtype), dtype)
    return x, y, reserve, random(rng, (m, n), dtype)


def check_backward(x, y, reserve, out_grad, trans_x, trans_y, activation, **options):
    """Run the backward and compare; returns the gradients."""
    expected = backward(
        x,
        y,
        reserve,
        out_grad,
        trans_x,
        trans_y,
        activation,
        x_activation=options.get("x_activation", "none"),
        x_reserve=options.get("x_reserve"),
        initial=[
            None if array is None else array.copy() for array in options.get("accumulate_into", (None,) * 3)
        ],
    )
    grads = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, trans_x, trans_y, activation, **options)
    for name, grad, reference in zip(GRADIENTS, grads, expected):
        assert_within(grad, reference, name)
    return grads


@pytest.mark.parametrize("case", CASES + LARGE_CASES, ids=str)
def test_against_the_reference(case, dtype):
    rng = rng_for(case, dtype)
    flags = case.trans_x, case.trans_y
    inputs = problem(rng, case.m, case.k, case.n, dtype, *flags, case.activation)
    grads = check_backward(*inputs, *flags, case.activation)
    assert [grad.dtype for grad in grads] == [dtype] * 3


@pytest.mark.parametrize("trans_x", (False, True))
@pytest.mark.parametrize("batch", ((2, 3), (3, 1, 2), (0, 4)), ids=str)
@pytest.mark.parametrize("activation", ("relu", "gelu", "sigmoid"))
def test_leading_axes_are_rows(batch, trans_x, activation, dtype):
    rng = rng_for(batch, trans_x, dtype)
    x_shape, y_shape = operand_shapes(5, 9, 13, trans_x, False)
    x, y = random(rng, (*batch, *x_shape), dtype), random(rng, y_shape, dtype)
    out, reserve = fge.fused_gemm_epilogue(x, y, None, trans_x, False, activation)
    check_backward(x, y, reserve, random(rng, out.shape, dtype), trans_x, False, activation)


@pytest.mark.parametrize("flags", TRANSPOSITIONS, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_central_differences(flags, activation):
    """The gradients are those of the function that the forward computes."""
    rng = rng_for("central differences", activation)
    inputs = list(random_operands(rng, 5, 4, 7, FLOAT64, *flags))
    out, reserve = fge.fused_gemm_epilogue(*inputs, *flags, activation)
    if activation == "relu":
        z, _ = fge.fused_gemm_epilogue(*inputs, *flags)
        assert np.abs(z).min() > 1e-4, "choose other inputs: a difference quotient would straddle the kink"
    out_grad = random(rng, out.shape, FLOAT64)
    grads = fge.fused_gemm_epilogue_grad(inputs[0], inputs[1], reserve, out_grad, *flags, activation)

    step = 1e-5
    for name, array, grad in zip(GRADIENTS, inputs, grads):
        numeric = np.empty_like(array)
        for index in np.ndindex(array.shape):
            kept = array[index]
            values = []
            for moved in (kept + step, kept - step):
                array[index] = moved
                values.append((fge.fused_gemm_epilogue(*inputs, *flags, activation)[0] * out_grad).sum())
            array[index] = kept
            numeric[index] = (values[0] - values[1]) / (2 * step)
        # The quotient's own errors: step^2 by a third derivative of order one, and rounding / step; both near 1e-10.
        np.testing.assert_allclose(grad, numeric, rtol=1e-6, atol=1e-9, err_msg=name)


TORCH_ACTIVATIONS = {
    "none": lambda functional, z: z,
    "relu": lambda functional, z: functional.relu(z),
    "gelu": lambda functional, z: functional.gelu(z, approximate="tanh"),
    "gelu_erf": lambda functional, z: functional.gelu(z),
    "silu": lambda functional, z: functional.silu(z),
    "sigmoid": lambda functional, z: functional.sigmoid(z),
    "tanh": lambda functional, z: functional.tanh(z),
}


@pytest.mark.parametrize("dtype, tolerance", ((FLOAT32, 2e-5), (FLOAT64, 1e-12)), ids=str)
@pytest.mark.parametrize("flags", TRANSPOSITIONS, ids=str)
@pytest.mark.parametrize("activation", TORCH_ACTIVATIONS)
def test_agrees_with_autograd(activation, flags, dtype, tolerance):
    torch = pytest.importorskip("torch")
    rng = rng_for("autograd", activation)
    x, y, bias = random_operands(rng, 33, 20, 47, dtype, *flags)
    tensors = [torch.tensor(array, requires_grad=True) for array in (x, y, bias)]
    rows = tensors[0].T if flags[0] else tensors[0]
    columns = tensors[1].T if flags[1] else tensors[1]
    expected = TORCH_ACTIVATIONS[activation](torch.nn.functional, rows @ columns + tensors[2])
    out_grad = random(rng, (33, 47), dtype)
    expected.backward(torch.tensor(out_grad))

    out, reserve = fge.fused_gemm_epilogue(x, y, bias, *flags, activation)
    np.testing.assert_allclose(out, expected.detach().numpy(), rtol=tolerance, atol=tolerance)
    grads = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, *flags, activation)
    for name, grad, tensor in zip(GRADIENTS, grads, tensors):
        np.testing.assert_allclose(grad, tensor.grad.numpy(), rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("needs", list(itertools.product((False, True), repeat=3)), ids=str)
@pytest.mark.parametrize("m, k, n", ((17, 33, 40), (1, 33, 40), (200, 300, 260)))
def test_needs_selects_gradients_and_changes_none(needs, m, k, n, dtype):
    inputs = problem(rng_for(m, k, n), m, k, n, dtype, False, False, "gelu")
    everything = fge.fused_gemm_epilogue_grad(*inputs, activation="gelu")
    chosen = fge.fused_gemm_epilogue_grad(*inputs, activation="gelu", needs=needs)
    assert_all_same_bits(chosen, [grad if need else None for grad, need in zip(everything, needs)])


def test_the_bias_gradient_sums_masked_gradients():
    rng = rng_for("masked")
    positive = rng.uniform(size=(24, 12)) > 0.5
    x, y = np.ones((24, 3), np.float32), np.ones((3, 12), np.float32)
    reserve = make_reserve("relu", np.where(positive, 1.0, -1.0), FLOAT32)
    _, _, bias_grad = fge.fused_gemm_epilogue_grad(
        x, y, reserve, np.ones((24, 12), np.float32), activation="relu"
    )
    assert bias_grad.tolist() == positive.sum(axis=0).tolist()


@pytest.mark.parametrize("x_activation", ACTIVATIONS)
@pytest.mark.parametrize("flags", TRANSPOSITIONS, ids=str)
@pytest.mark.parametrize("m, k, n", ((9, 31, 20), (1, 129, 40), (150, 270, 33)))
def test_x_activation_multiplies_x_grad(x_activation, flags, m, k, n, dtype):
    rng = rng_for(x_activation, flags, dtype)
    inputs = problem(rng, m, k, n, dtype, *flags, "silu")
    x_reserve = make_reserve(x_activation, rng.uniform(-6, 6, inputs[0].shape).astype(dtype), dtype)
    options = dict(x_activation=x_activation, x_reserve=x_reserve)
    grads = check_backward(*inputs, *flags, "silu", **options)
    plain = fge.fused_gemm_epilogue_grad(*inputs, *flags, "silu")
    assert_all_same_bits(grads[1:], plain[1:], "gradients that x_activation doesn't concern")


@pytest.mark.parametrize("x_activation", ("relu", "gelu_erf", "tanh"))
@pytest.mark.parametrize("trans_x", (False, True))
def test_x_activation_with_leading_axes(x_activation, trans_x, dtype):
    rng = rng_for(x_activation, trans_x)
    matrix, y_shape = operand_shapes(4, 18, 11, trans_x, False)
    x, y = random(rng, (2, 3, *matrix), dtype), random(rng, y_shape, dtype)
    z = rng.uniform(-3, 3, matrix_shape(x)).astype(dtype)
    x_reserve = make_reserve(x_activation, z, dtype)
    if x_activation != "relu":
        x_reserve = x_reserve.reshape(x.shape)
    out_grad = random(rng, out_shape(x, y, trans_x), dtype)
    check_backward(
        x, y, None, out_grad, trans_x, False, "none", x_activation=x_activation, x_reserve=x_reserve
    )


@pytest.mark.parametrize("flags", TRANSPOSITIONS, ids=str)
@pytest.mark.parametrize("activation", ("none", "relu", "gelu"))
@pytest.mark.parametrize("m, k, n", ((13, 17, 33), (1, 64, 40), (40, 64, 1), (129, 260, 190)))
@pytest.mark.parametrize("in_accumulator", (False, True), ids=("same dtype", "accumulator dtype"))
def test_accumulate_into_adds(flags, activation, m, k, n, in_accumulator, dtype):
    rng = rng_for(flags, activation, m)
    inputs = problem(rng, m, k, n, dtype, *flags, activation)
    kept_in = accumulator(dtype) if in_accumulator else dtype
    into = tuple(random(rng, shape, kept_in) for shape in (inputs[0].shape, inputs[1].shape, (n,)))
    grads = check_backward(*inputs, *flags, activation, accumulate_into=into)
    assert all(grad is array for grad, array in zip(grads, into))


def test_accumulate_into_some(dtype):
    inputs = problem(rng_for("some"), 20, 30, 40, dtype, False, False, "gelu")
    y_into = np.ones((30, 40), dtype)
    grads = check_backward(*inputs, False, False, "gelu", accumulate_into=(None, y_into, None))
    assert grads[1] is y_into
    fresh = fge.fused_gemm_epilogue_grad(*inputs, activation="gelu")
    assert_same_bits(grads[0], fresh[0], "x_grad")
    assert_same_bits(grads[2], fresh[2], "bias_grad")


def test_accumulate_into_with_x_activation_scales_the_new_part_only(dtype):
    rng = rng_for("scaled")
    inputs = problem(rng, 20, 30, 40, dtype, False, False, "relu")
    x_reserve = make_reserve("gelu", rng.uniform(-3, 3, (20, 30)).astype(dtype), dtype)
    into = (random(rng, (20, 30), dtype), None, None)
    check_backward(
        *inputs, False, False, "relu", x_activation="gelu", x_reserve=x_reserve, accumulate_into=into
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_float32_accumulators_keep_what_halves_lose(dtype):
    """256 + 1 is 257 in float32; bfloat16 has no such number."""
    one = np.ones((1, 1), dtype)
    into = tuple(np.full(shape, 256, np.float32) for shape in ((1, 1), (1, 1), (1,)))
    grads = fge.fused_gemm_epilogue_grad(one, one, None, one, accumulate_into=into)
    assert [float(grad.ravel()[0]) for grad in grads] == [257.0] * 3


def test_half_accumulators_round_once():
    into = tuple(np.full(shape, 256).astype(BFLOAT16) for shape in ((1, 1), (1, 1), (1,)))
    one = np.ones((1, 1), BFLOAT16)
    grads = fge.fused_gemm_epilogue_grad(one, one, None, one, accumulate_into=into)
    assert [float(grad.ravel()[0]) for grad in grads] == [256.0] * 3


@pytest.mark.parametrize("m, k, n", ((0, 4, 5), (3, 0, 5), (3, 4, 0), (0, 0, 0)))
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_an_empty_sum(m, k, n, activation, dtype):
    """They are zeros where they are fresh and leave an accumulator as it was."""
    inputs = problem(rng_for(m, k, n), m, k, n, dtype, False, False, activation)
    check_backward(*inputs, False, False, activation)
    into = tuple(np.full(shape, 3).astype(dtype) for shape in ((m, k), (k, n), (n,)))
    check_backward(*inputs, False, False, activation, accumulate_into=into)


@pytest.mark.parametrize("activation", ("relu", "gelu"))
def test_one_inner_dimension(activation, dtype):
    rng = rng_for("K = 1", activation)
    x, y = random(rng, (5, 1), dtype), random(rng, (1, 6), dtype)
    _, reserve = fge.fused_gemm_epilogue(x, y, activation=activation)
    check_backward(x, y, reserve, random(rng, (5, 6), dtype), False, False, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_inputs_are_never_written(activation, dtype):
    inputs = problem(rng_for(activation), 33, 40, 65, dtype, False, False, activation)
    copies = [None if array is None else array.copy() for array in inputs]
    fge.fused_gemm_epilogue_grad(*inputs, activation=activation)
    assert_all_same_bits(inputs, copies, "inputs")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_two_layer_chain_is_the_gradient_of_the_whole(activation):
    """The second layer's backward with x_activation gives dZ of the first, which then needs no activation."""
    rng = rng_for("chain", activation)
    x, w1, b1 = random_operands(rng, 12, 9, 15, FLOAT64)
    w2 = random(rng, (15, 4), FLOAT64)
    hidden, reserve = fge.fused_gemm_epilogue(x, w1, b1, activation=activation)
    out_grad = random(rng, (12, 4), FLOAT64)
    hidden_grad, _, _ = fge.fused_gemm_epilogue_grad(hidden, w2, None, out_grad)
    separate = fge.fused_gemm_epilogue_grad(x, w1, reserve, hidden_grad, activation=activation)
    z_grad, _, _ = fge.fused_gemm_epilogue_grad(
        hidden, w2, None, out_grad, x_activation=activation, x_reserve=reserve
    )
    joined = fge.fused_gemm_epilogue_grad(x, w1, None, z_grad)
    for name, one, other in zip(GRADIENTS, joined, separate):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13, err_msg=name)
