"""NaN, infinities, zeros with signs, subnormals, the largest numbers: where a fused kernel likes to go wrong."""

import numpy as np
import pytest
from activation_table import ACTIVATIONS, CURVED, IDENTITY
from reference import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    Bounded,
    assert_same_bits,
    assert_within,
    flushes_bfloat16,
    make_reserve,
    random_operands,
    rng_for,
    ulp_distance,
)

import fge

pytestmark = pytest.mark.usefixtures("path")

WITH_RESERVED_Z = tuple(name for name in CURVED if ACTIVATIONS[name].reserve == "z")
WITH_SLOPE_LIMITS = tuple(name for name in WITH_RESERVED_Z if ACTIVATIONS[name].saturates)


def apply(values, activation, dtype):
    """act of each value, through K = 1 and y = 1."""
    column = np.asarray(values, dtype).reshape(-1, 1)
    return fge.fused_gemm_epilogue(column, np.ones((1, 1), dtype), activation=activation)[0].ravel()


def slope_at(reserve, activation, dtype):
    """The derivative for each reserved value, through an out_grad of one."""
    column = np.asarray(reserve, dtype).reshape(-1, 1)
    one, ones = np.ones((1, 1), dtype), np.ones(column.shape, dtype)
    return fge.fused_gemm_epilogue_grad(ones, one, column, ones, activation=activation)[0].ravel()


@pytest.mark.parametrize("m, k, n", ((5, 7, 9), (40, 130, 129), (4, 3, 1)))
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_marks_its_row_and_no_other(m, k, n, activation, dtype):
    x, y, bias = random_operands(rng_for(m, k, n), m, k, n, dtype)
    clean, clean_reserve = fge.fused_gemm_epilogue(x, y, bias, activation=activation)
    x[2, k // 2] = np.nan
    out, reserve = fge.fused_gemm_epilogue(x, y, bias, activation=activation)
    others = np.arange(m) != 2
    assert np.isnan(out[2].astype(np.float32)).all()
    assert_same_bits(out[others], clean[others], "other rows")
    kind = ACTIVATIONS[activation].reserve
    if kind == "bits":
        assert not reserve[2].any()
        assert_same_bits(reserve[others], clean_reserve[others], "bits of other rows")
    elif kind == "z":
        assert np.isnan(reserve[2].astype(np.float32)).all()


@pytest.mark.parametrize("m, k, n", ((5, 7, 9), (40, 130, 129), (1, 20, 33)))
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_in_y_marks_its_column_and_no_other(m, k, n, activation, dtype):
    x, y, bias = random_operands(rng_for(m, k, n), m, k, n, dtype)
    clean, _ = fge.fused_gemm_epilogue(x, y, bias, activation=activation)
    y[k // 2, n // 2] = np.nan
    out, _ = fge.fused_gemm_epilogue(x, y, bias, activation=activation)
    others = np.arange(n) != n // 2
    assert np.isnan(out[:, n // 2].astype(np.float32)).all()
    assert_same_bits(out[:, others], clean[:, others], "other columns")


def test_padding_never_meets_infinity(dtype):
    """inf * 0 of a padded lane would be a NaN where infinity is right; zeros of the user's own do give NaN."""
    for n in (1, 2, 15, 17, 33):
        x = np.asarray([[np.inf, 0]], dtype)
        out, _ = fge.fused_gemm_epilogue(x, np.full((2, n), 2, dtype))
        assert np.array_equal(out.astype(np.float32), np.full((1, n), np.inf)), f"N = {n}"
        y = np.ones((2, n), dtype)
        y[0, 0] = 0
        out, _ = fge.fused_gemm_epilogue(x, y)
        assert np.isnan(float(out[0, 0]))
        assert np.isinf(out[0, 1:].astype(np.float32)).all()


@pytest.mark.parametrize("m, k, n", ((3, 5, 7), (17, 129, 33)))
def test_infinity_in_a_row_stays_in_its_row(m, k, n, dtype):
    x, y = np.ones((m, k), dtype), np.ones((k, n), dtype)
    x[1, k - 1] = np.inf
    out, _ = fge.fused_gemm_epilogue(x, y)
    expected = np.full((m, n), k, dtype)
    expected[1] = np.inf
    assert_same_bits(out, expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_limits_at_infinity_in_every_lane(activation, dtype):
    """In full vectors and in remainders alike, as a column and as a row; the neighbours stay what they were."""
    entry = ACTIVATIONS[activation]
    at_zero = float(entry.forward(0.0))
    one = np.ones((1, 1), dtype)
    for value, limit in ((np.inf, entry.above), (-np.inf, entry.below)):
        expected = np.asarray(value if limit is IDENTITY else limit).astype(dtype)
        for length in (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 40):
            for lane in range(length):
                row = np.zeros((1, length), dtype)
                row[0, lane] = value
                as_row, _ = fge.fused_gemm_epilogue(one, row, activation=activation)
                as_column, _ = fge.fused_gemm_epilogue(row.T, one, activation=activation)
                for out in (as_row.ravel(), as_column.ravel()):
                    assert out[lane] == expected
                    if activation != "relu":  # whose zero may have either sign
                        assert np.signbit(out[lane]) == np.signbit(expected)
                    assert np.count_nonzero(out.astype(np.float64) == at_zero) >= length - 1


@pytest.mark.parametrize("activation", WITH_SLOPE_LIMITS)
def test_slope_limits_at_infinity(activation, dtype):
    assert slope_at([np.inf, -np.inf], activation, dtype).tolist() == [1, 0]


@pytest.mark.parametrize("activation", WITH_SLOPE_LIMITS)
def test_slopes_far_out_are_exactly_one_and_zero(activation, dtype):
    largest = float(np.finfo(np.float16).max) if dtype == FLOAT16 else 1e30
    far = np.concatenate([np.geomspace(41, largest, 300), [largest]])
    if activation == "silu":  # decays as z exp(-z): is below the accuracy promised from here on
        far = far[far > 750]
    assert (slope_at(far, activation, dtype) == 1).all()
    assert (slope_at(-far, activation, dtype) == 0).all()


@pytest.mark.parametrize("activation", CURVED)
def test_slopes_are_finite_for_every_finite_reserve(activation, dtype):
    entry = ACTIVATIONS[activation]
    largest = float(np.finfo(dtype).max) if dtype in (FLOAT16, FLOAT32, FLOAT64) else 3e38
    if not entry.saturates:  # the derivative itself leaves the type's range
        largest /= 2.1
    values = np.concatenate([[0.0, largest], np.geomspace(1e-7, largest, 500)])
    z = np.concatenate([values, -values])
    slopes = slope_at(entry.reserved(z), activation, dtype)
    assert np.isfinite(slopes.astype(np.float64)).all()


@pytest.mark.parametrize("activation", WITH_RESERVED_Z)
def test_nan_in_a_reserve_reaches_the_gradient(activation, dtype):
    slopes = slope_at([1.0, np.nan, -1.0], activation, dtype)
    assert np.isnan(slopes.astype(np.float64)).tolist() == [False, True, False]


def test_a_masked_gradient_is_zero_even_where_out_grad_is_ordinary(dtype):
    """dZ is out_grad times a bit; the masked elements leave no trace in any gradient."""
    x, y = np.ones((4, 3), dtype), np.ones((3, 20), dtype)
    reserve = make_reserve("relu", -np.ones((4, 20)), dtype)
    for grad in fge.fused_gemm_epilogue_grad(x, y, reserve, np.full((4, 20), 7, dtype), activation="relu"):
        assert not grad.any()


def test_nan_in_out_grad_reaches_what_depends_on_it(dtype):
    x, y, _ = random_operands(rng_for("nan grad"), 5, 4, 6, dtype)
    out_grad = np.ones((5, 6), dtype)
    out_grad[1, 2] = np.nan
    x_grad, y_grad, bias_grad = fge.fused_gemm_epilogue_grad(x, y, None, out_grad)
    assert np.isnan(x_grad.astype(np.float64)).tolist() == [[row == 1] * 4 for row in range(5)]
    assert np.isnan(y_grad.astype(np.float64)).tolist() == [[column == 2 for column in range(6)]] * 4
    assert np.isnan(bias_grad.astype(np.float64)).tolist() == [column == 2 for column in range(6)]


def test_gelu_tail_does_not_cancel():
    """1 + tanh(u) is 0 in float32 from -5.5 or so downwards; gelu(-6) is not."""
    values = np.arange(-4, -13.5, -0.5)
    expected = ACTIVATIONS["gelu"].forward(values)
    assert (ulp_distance(apply(values, "gelu", FLOAT32), expected, FLOAT32) <= 4).all()
    assert apply([-6], "gelu", FLOAT32)[0] == pytest.approx(-8.4e-11, rel=0.01)


def test_gelu_erf_tail_does_not_cancel():
    assert apply([-6], "gelu_erf", FLOAT32)[0] == pytest.approx(-5.9195e-9, rel=1e-4)
    values = np.arange(-4, -14.5, -0.125)
    expected = ACTIVATIONS["gelu_erf"].forward(values)
    assert (ulp_distance(apply(values, "gelu_erf", FLOAT32), expected, FLOAT32) <= 4).all()


@pytest.mark.parametrize("activation", ("gelu", "gelu_erf", "silu"))
def test_nothing_overflows_inside(activation):
    """z^3, exp and their products pass the range of float32 long before z does."""
    values = np.asarray([13.24, 40, 88.8, 104, 500, 1e19, 3e38], FLOAT32)
    expected = ACTIVATIONS[activation].forward(np.concatenate([values, -values]))
    both = np.concatenate([apply(values, activation, FLOAT32), apply(-values, activation, FLOAT32)])
    assert (ulp_distance(both, expected, FLOAT32) <= 4).all()
    slopes = slope_at(np.concatenate([values, -values]), activation, FLOAT32)
    assert_within(
        slopes, Bounded(ACTIVATIONS[activation].slope(np.concatenate([values, -values])), 4e-7 + 0 * expected)
    )


def test_which_gelu():
    assert apply([2.7], "gelu", FLOAT64)[0] == pytest.approx(2.6911124, abs=1e-7)
    assert apply([2.7], "gelu_erf", FLOAT64)[0] == pytest.approx(2.6906392, abs=1e-7)


def test_bfloat16_gelu_of_large_values_is_the_identity():
    values = np.arange(8, 16.5, 0.5).astype(BFLOAT16)
    assert_same_bits(apply(values, "gelu", BFLOAT16), values)


def test_silu_far_below_zero():
    out = apply([-np.inf, -88, -100], "silu", FLOAT32)
    assert out[0] == 0 and np.signbit(out[0])
    assert (ulp_distance(out[1:], ACTIVATIONS["silu"].forward([-88, -100]), FLOAT32) <= 4).all()


def test_float16_overflows_to_infinity_and_not_before():
    big = np.full((1, 1), 60000, FLOAT16)
    assert fge.fused_gemm_epilogue(big, np.full((1, 1), 2, FLOAT16), activation="gelu")[0][0, 0] == np.inf
    # Partial sums reach 9 million, the result is zero: float16 overflows at 65504.
    x, y = np.full((1, 200), 300, FLOAT16), np.full((200, 1), 300, FLOAT16)
    y[100:] *= -1
    assert fge.fused_gemm_epilogue(x, y)[0][0, 0] == 0
    # 65519.99 rounds down to the largest number, 65520 up to infinity.
    edge = np.asarray([65504, 65519, 65520], FLOAT32)
    out, _ = fge.fused_gemm_epilogue(np.zeros((2, 1), FLOAT16), np.zeros((1, 3), FLOAT16), edge)
    assert out.tolist() == [[65504, 65504, np.inf]] * 2


def test_subnormals_are_kept(dtype):
    if dtype == BFLOAT16 and flushes_bfloat16():
        pytest.skip("a matrix unit takes bfloat16 subnormals for zeros, as documented")
    smallest = np.asarray(1, f"u{dtype.itemsize}").view(dtype)
    for value in (smallest, smallest * dtype.type(3)):
        for activation in ("none", "relu"):
            assert apply([value, -value], activation, dtype)[0] == value
            for m, n in ((1, 1), (1, 40), (40, 1), (33, 40)):
                out, _ = fge.fused_gemm_epilogue(
                    np.full((m, 1), value, dtype), np.ones((1, n), dtype), activation=activation
                )
                assert (out == value).all(), f"{m}x{n}"


def test_no_flush_to_zero_is_left_on(dtype):
    """Nothing changes the floating-point environment of the calling thread."""
    x, y, bias = random_operands(rng_for("environment"), 64, 64, 64, dtype)
    out, reserve = fge.fused_gemm_epilogue(x, y, bias, activation="gelu")
    fge.fused_gemm_epilogue_grad(x, y, reserve, out, activation="gelu")
    subnormal = np.full(100, 1e-40, FLOAT32)
    assert (subnormal * np.ones(100, FLOAT32) > 0).all()
    assert (np.full(100, 1e-310) * np.ones(100) > 0).all()


def test_floating_point_flags_raise_no_warnings(dtype):
    """numpy reads the status flags after its own operations only; ours must not surface in them."""
    x = np.asarray([[np.inf, 1e4, np.nan]], dtype)
    with np.errstate(all="raise"):
        fge.fused_gemm_epilogue(x, np.zeros((3, 40), dtype), activation="gelu")
        assert np.ones(3, FLOAT32).sum() == 3


def test_zeros_and_their_signs(dtype):
    zeros = np.asarray([-0.0, 0.0], dtype)
    for activation in ("relu", "none"):
        assert (apply(zeros, activation, dtype) == 0).all()
    bits = fge.fused_gemm_epilogue(zeros[:, None], np.ones((1, 1), dtype), activation="relu")[1]
    assert not bits.any()


@pytest.mark.parametrize("activation", ("gelu", "gelu_erf", "silu"))
def test_curved_activations_keep_the_sign_of_zero(activation, dtype):
    """Whether a sum that starts from +0 can be -0 at all is the engine's affair; what is made of it isn't."""
    minus_zero = np.full(20, -0.0).astype(dtype)
    for k in (0, 1):
        x, y = np.ones((3, k), dtype), np.full((k, 20), -0.0).astype(dtype)
        z, _ = fge.fused_gemm_epilogue(x, y, minus_zero)
        out, _ = fge.fused_gemm_epilogue(x, y, minus_zero, activation=activation)
        assert_same_bits(out, z, f"K = {k}")


def test_the_largest_numbers_pass_unharmed(dtype):
    largest = np.asarray({2: 65504, 4: 3.4e38, 8: 1.7e308}[dtype.itemsize]).astype(dtype)
    assert apply([largest, -largest], "none", dtype).tolist() == [largest, -largest]
    assert apply([largest, -largest], "relu", dtype).tolist() == [largest, 0]
    for activation in ("gelu", "gelu_erf", "silu"):
        assert apply([largest, -largest], activation, dtype).tolist() == [largest, 0]
