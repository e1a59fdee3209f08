"""The forward against its float64 reference."""

import numpy as np
import pytest
from activation_table import ACTIVATIONS
from designs import CASES, LARGE_CASES
from reference import (
    FLOAT32,
    FLOAT64,
    assert_same_bits,
    assert_within,
    check_reserve,
    forward,
    operand_shapes,
    out_shape,
    random,
    random_operands,
    rng_for,
)

import fge

pytestmark = pytest.mark.usefixtures("path")


def check_forward(x, y, bias, trans_x, trans_y, activation):
    out, reserve = fge.fused_gemm_epilogue(x, y, bias, trans_x, trans_y, activation)
    expected = forward(x, y, bias, trans_x, trans_y, activation)
    assert out.dtype == x.dtype
    assert_within(out, expected.out, "out")
    check_reserve(reserve, out, expected, activation)

    inference, nothing = fge.fused_gemm_epilogue(x, y, bias, trans_x, trans_y, activation, save_reserve=False)
    assert nothing is None
    assert_same_bits(inference, out, "out without a reserve")


@pytest.mark.parametrize("case", CASES + LARGE_CASES, ids=str)
def test_against_the_reference(case, dtype):
    rng = rng_for(case, dtype)
    x, y, bias = random_operands(rng, case.m, case.k, case.n, dtype, case.trans_x, case.trans_y)
    check_forward(x, y, bias if case.has_bias else None, case.trans_x, case.trans_y, case.activation)


@pytest.mark.parametrize("trans_x", (False, True))
@pytest.mark.parametrize("batch", ((2, 3), (3, 1, 2), (1, 1, 1, 5), (0, 4), (4, 0)), ids=str)
@pytest.mark.parametrize("activation", ("relu", "gelu"))
def test_leading_axes_are_rows(batch, trans_x, activation, dtype):
    rng = rng_for(batch, trans_x, dtype)
    matrix_shape, y_shape = operand_shapes(5, 9, 13, trans_x, False)
    x, y, bias = (
        random(rng, (*batch, *matrix_shape), dtype),
        random(rng, y_shape, dtype),
        random(rng, (13,), dtype),
    )
    check_forward(x, y, bias, trans_x, False, activation)


@pytest.mark.parametrize("dtype, tolerance", ((FLOAT32, 1e-6), (FLOAT64, 1e-12)), ids=str)
@pytest.mark.parametrize("activation", ("none", "relu", "gelu"))
def test_the_small_example_to_a_fixed_tolerance(activation, dtype, tolerance):
    rng = rng_for(activation)
    x, y, bias = (rng.uniform(-0.5, 0.5, shape).astype(dtype) for shape in ((8, 4), (4, 128), (128,)))
    out, _ = fge.fused_gemm_epilogue(x, y, bias, activation=activation)
    expected = forward(x, y, bias, activation=activation).out.value
    np.testing.assert_allclose(out, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("m, k, n", ((7, 5, 33), (1, 40, 129), (60, 3, 1)))
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_writes_to_out_and_returns_it(m, k, n, activation, dtype):
    x, y, bias = random_operands(rng_for(m, activation), m, k, n, dtype)
    fresh, fresh_reserve = fge.fused_gemm_epilogue(x, y, bias, activation=activation)
    out = np.full((m, n), np.nan, dtype)
    returned, reserve = fge.fused_gemm_epilogue(x, y, bias, activation=activation, out=out)
    assert returned is out
    assert_same_bits(out, fresh, "out")
    if ACTIVATIONS[activation].reserve == "out":
        assert reserve is out
    elif reserve is not None:
        assert_same_bits(reserve, fresh_reserve, "reserve")


@pytest.mark.parametrize("flags", ((0, 1), (np.bool_(True), np.bool_(False)), (1, 1)), ids=str)
def test_flags_may_be_any_boolean(flags, dtype):
    trans_x, trans_y = flags
    x, y, bias = random_operands(rng_for(flags), 6, 5, 4, dtype, bool(trans_x), bool(trans_y))
    out, _ = fge.fused_gemm_epilogue(x, y, bias, trans_x, trans_y)
    assert_same_bits(out, fge.fused_gemm_epilogue(x, y, bias, bool(trans_x), bool(trans_y))[0])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_inputs_are_never_written(activation, dtype):
    inputs = random_operands(rng_for(activation), 33, 40, 65, dtype)
    copies = [array.copy() for array in inputs]
    fge.fused_gemm_epilogue(*inputs, activation=activation)
    for array, copy in zip(inputs, copies):
        assert_same_bits(array, copy, "an input")


@pytest.mark.parametrize("k", (0, 1, 5))
def test_bias_runs_along_the_columns(k, dtype):
    """A square problem with distinct biases: the wrong axis would pass every check of shapes."""
    bias = np.arange(5).astype(dtype)
    out, _ = fge.fused_gemm_epilogue(np.zeros((5, k), dtype), np.zeros((k, 5), dtype), bias)
    assert_same_bits(out, np.tile(bias, (5, 1)))


@pytest.mark.parametrize("m, n", ((0, 5), (5, 0), (0, 0), (3, 5)))
@pytest.mark.parametrize("k", (0, 4))
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_empty_problems(m, k, n, activation, dtype):
    x, y, bias = random_operands(rng_for(m, k, n), m, k, n, dtype)
    check_forward(x, y, bias, False, False, activation)
    check_forward(x, y, None, False, False, activation)


def test_no_inner_dimension_gives_the_activation_of_the_bias(dtype):
    x, y = np.zeros((3, 0), dtype), np.zeros((0, 5), dtype)
    assert out_shape(x, y) == (3, 5)
    bias = np.asarray([-2, -1, 0, 1, 2]).astype(dtype)
    out, bits = fge.fused_gemm_epilogue(x, y, bias, activation="relu")
    assert_same_bits(out, np.tile(np.maximum(bias, 0), (3, 1)).astype(dtype))
    assert fge.unpack_relu_bits(bits, 5).tolist() == [[False, False, False, True, True]] * 3


def test_stale_contents_of_out_are_never_read(dtype):
    """beta = 0 must not become 0 * NaN, in full tiles and at the edges alike."""
    for size_m in (1, 15, 16, 17, 33):
        for size_n in (1, 15, 16, 17, 33):
            x, y, bias = random_operands(rng_for(size_m, size_n), size_m, 20, size_n, dtype)
            expected, _ = fge.fused_gemm_epilogue(x, y, bias)
            for stale in (np.nan, np.inf):
                out = np.full((size_m, size_n), stale, dtype)
                fge.fused_gemm_epilogue(x, y, bias, out=out)
                assert_same_bits(out, expected, f"{size_m}x{size_n} over {stale}")


def test_rows_do_not_depend_on_the_batch(dtype):
    """Row 5 of 64 against the same row alone, which may take a path of its own."""
    x, y, bias = random_operands(rng_for(dtype), 64, 300, 129, dtype)
    batch, _ = fge.fused_gemm_epilogue(x, y, bias, activation="gelu")
    alone, _ = fge.fused_gemm_epilogue(x[5:6], y, bias, activation="gelu")
    expected = forward(x[5:6], y, bias, activation="gelu").out
    assert_within(alone, expected, "the row alone")
    assert_within(batch[5:6], expected, "the row in its batch")


@pytest.mark.parametrize("m, k, n", ((1752, 584, 4720),))
def test_last_rows_of_a_tall_problem(m, k, n, dtype):
    """M is no multiple of a tile; only the last rows and a few others are compared, to spare the reference."""
    x, y, bias = random_operands(rng_for(m, k, n), m, k, n, dtype)
    out, reserve = fge.fused_gemm_epilogue(x, y, bias, activation="relu")
    rows = np.r_[0, 15, 16, m // 2, m - 20 : m]
    expected = forward(x[rows], y, bias, activation="relu")
    assert_within(out[rows], expected.out, "out")
    check_reserve(reserve[rows], out[rows], expected, "relu")
