"""float16 and bfloat16: exact conversions, sums in float32, one rounding at the end."""

import ml_dtypes
import numpy as np
import pytest
from activation_table import ACTIVATIONS
from reference import (
    BFLOAT16,
    FLOAT32,
    HALVES,
    PRECISION,
    assert_same_bits,
    bits_of,
    flushed_subnormals,
    make_reserve,
    random,
    random_operands,
    rng_for,
)

import fge

pytestmark = pytest.mark.usefixtures("path")


@pytest.fixture(params=HALVES, ids=str)
def half(request):
    return request.param


def every_value(half):
    """All 2^16 bit patterns."""
    return np.arange(2**16, dtype=np.uint16).view(half)


def assert_same_numbers(actual, expected):
    """Equal bits, except that any NaN answers for any other; and no NaN has become infinite, or the reverse."""
    assert actual.dtype == expected.dtype
    nan = np.isnan(expected.astype(np.float32))
    assert np.array_equal(np.isnan(actual.astype(np.float32)), nan)
    assert_same_bits(actual[~nan], expected[~nan])


def rounded_by_the_epilogue(values, half, rows, k):
    """Round float32 `values` to `half`: as the bias of a product that is zero."""
    x, y = np.zeros((rows, k), half), np.zeros((k, values.size), half)
    out, _ = fge.fused_gemm_epilogue(x, y, values)
    return out


def near_boundaries(half):
    """The float32 values where roundings change: every half value, every midpoint, and their float32 neighbours."""
    values = every_value(half).astype(FLOAT32)
    values = np.sort(values[np.isfinite(values)])
    middles = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(FLOAT32)
    largest = float(values[-1])
    beyond = np.asarray([largest * (1 + 2.0 ** -PRECISION[half]), np.finfo(FLOAT32).max], FLOAT32)
    points = np.concatenate([values, middles, beyond, -beyond])
    with np.errstate(over="ignore"):
        neighbours = [np.nextafter(points, FLOAT32.type(limit)) for limit in (np.inf, -np.inf)]
    return np.concatenate([points, *neighbours])


def without_minus_zero(values):
    """A sum that starts from +0 may lose the sign of a zero, or not; here it doesn't matter."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.where(values == 0, values.dtype.type(0), values)


@pytest.mark.parametrize("rows, k", ((1, 1), (3, 1), (17, 2), (2, 0)))
def test_rounding_at_every_boundary(half, rows, k):
    """To nearest even, subnormals and the overflow threshold included, as numpy and ml_dtypes round."""
    values = near_boundaries(half)
    with np.errstate(over="ignore"):
        expected = values.astype(half)
    for row in rounded_by_the_epilogue(values, half, rows, k):
        assert_same_numbers(without_minus_zero(row), without_minus_zero(expected))


def test_rounding_of_nan_and_infinity(half):
    """Every payload stays a NaN: one in the low bits only must not turn into an infinity."""
    payloads = np.concatenate([2 ** np.arange(23, dtype=np.uint32), [0x7FFFFF, 0x400001, 0x3FFFFF]]).astype(
        np.uint32
    )
    nans = np.concatenate([payloads | 0x7F800000, payloads | 0xFF800000]).astype(np.uint32).view(FLOAT32)
    infinities = np.asarray([np.inf, -np.inf] * 5, FLOAT32)
    values = np.concatenate([nans, infinities])
    for rows in (1, 3):
        for row in rounded_by_the_epilogue(values, half, rows, 1):
            assert_same_numbers(row, np.concatenate([np.full(nans.size, np.nan), infinities]).astype(half))
    # A signalling NaN comes back quiet.
    assert (bits_of(row[: nans.size]) & (1 << (PRECISION[half] - 2))).all()


def test_widening_of_every_value(half):
    """Seen in a float32 accumulator: x_grad is out_grad times one, added to zero."""
    values = every_value(half)
    values = values[~flushed_subnormals(values)]
    one = np.ones((1, 1), half)
    into = np.zeros((values.size, 1), FLOAT32)
    x = np.ones((values.size, 1), half)
    options = dict(needs=(True, False, False), accumulate_into=(into, None, None))
    fge.fused_gemm_epilogue_grad(x, one, None, values[:, None], **options)
    assert_same_numbers(into.ravel(), without_minus_zero(values.astype(FLOAT32)))


@pytest.mark.parametrize("way", ("x", "y", "bias"))
def test_every_value_passes_through_unchanged(half, way):
    """Widened and rounded again, from each operand."""
    values = every_value(half)
    values = values[~flushed_subnormals(values)]
    one = np.ones((1, 1), half)
    if way == "x":
        out, _ = fge.fused_gemm_epilogue(values[:, None], one)
    elif way == "y":
        out, _ = fge.fused_gemm_epilogue(one, values[None])
    else:
        out, _ = fge.fused_gemm_epilogue(np.zeros((1, 1), half), np.zeros((1, values.size), half), values)
    assert_same_numbers(without_minus_zero(out.ravel()), without_minus_zero(values))


@pytest.mark.parametrize("m, n", ((1, 1), (1, 40), (40, 1), (33, 35)))
@pytest.mark.parametrize("k", (1600, 4096))
def test_sums_of_ones_do_not_stall(half, m, k, n):
    """A float16 sum stalls at 2048, a bfloat16 sum at 256."""
    out, _ = fge.fused_gemm_epilogue(np.ones((m, k), half), np.ones((k, n), half))
    assert (out == np.asarray(k).astype(half)).all()
    ones = np.ones((k, n), half)
    x_grad, y_grad, bias_grad = fge.fused_gemm_epilogue_grad(
        np.ones((k, m), half), np.ones((m, n), half), None, ones
    )
    assert (bias_grad == np.asarray(k).astype(half)).all()
    assert (y_grad == np.asarray(k).astype(half)).all()
    assert (x_grad == np.asarray(n).astype(half)).all()


def test_wide_sums_do_not_stall_either(half):
    ones = np.ones((3, 4096), half)
    x_grad, _, _ = fge.fused_gemm_epilogue_grad(np.ones((3, 5), half), np.ones((5, 4096), half), None, ones)
    assert (x_grad == 4096).all()


def test_bias_is_added_once_in_float32(half):
    """round(sum + bias), not round(round(sum) + bias): the two differ in this very example."""
    step = 2.0 ** (1 - PRECISION[half])  # 1 + step is the neighbour of 1
    # The product is 1 + step / 2, a tie that rounds down to 1 when stored early; a bias of step / 2 then vanishes.
    x, y = np.ones((3, 2), half), np.tile(np.asarray([[1], [step / 2]]).astype(half), (1, 40))
    bias = np.full(40, step / 2).astype(half)
    out, _ = fge.fused_gemm_epilogue(x, y, bias)
    assert (out == np.asarray(1 + step).astype(half)).all()
    assert float((np.ones(1, half) + bias[:1])[0]) == 1, "the example doesn't tell the two apart"


def rounds_alike_nearby(exact, half):
    """Where float32's error in `exact` can't decide how it rounds."""
    nearby = 1e-5 * np.maximum(np.abs(exact), 0.1)
    return (exact - nearby).astype(half) == (exact + nearby).astype(half)


def test_bias_of_a_long_product(half):
    rng = rng_for("long product")
    weights, bias = random(rng, (100, 300), half), random(rng, (300,), half)
    out, _ = fge.fused_gemm_epilogue(np.ones((1, 100), half), weights, bias)
    product = weights.astype(np.float64).sum(axis=0)
    exact = product + bias.astype(np.float64)
    certain = rounds_alike_nearby(exact, half)
    rounded_twice = product.astype(half) + bias
    assert (rounded_twice != exact.astype(half))[certain].any(), "the example doesn't tell the two apart"
    assert_same_bits(out[0, certain], exact.astype(half)[certain])


@pytest.mark.parametrize("m, k, n", ((1, 20, 40), (33, 20, 40), (40, 20, 1)))
def test_float32_bias_keeps_its_precision(half, m, k, n):
    """A bias that the half type can't hold decides how the sum rounds."""
    x, y = np.zeros((m, k), half), np.zeros((k, n), half)
    x[:, 0] = 1
    y[0] = 1
    step = 2.0 ** (1 - PRECISION[half])
    tie, above = FLOAT32.type(step / 2), FLOAT32.type(step / 2 * (1 + 2.0**-10))
    assert (fge.fused_gemm_epilogue(x, y, np.full(n, tie, FLOAT32))[0] == 1).all()
    assert (
        fge.fused_gemm_epilogue(x, y, np.full(n, above, FLOAT32))[0] == np.asarray(1 + step).astype(half)
    ).all()


def test_without_a_bias(half):
    x, y, _ = random_operands(rng_for("no bias"), 5, 100, 33, half)
    zero = np.zeros(33, half)
    assert_same_bits(fge.fused_gemm_epilogue(x, y)[0], fge.fused_gemm_epilogue(x, y, zero)[0])


@pytest.mark.parametrize("activation", ("gelu", "gelu_erf", "silu"))
def test_the_activation_sees_the_unrounded_sum(half, activation):
    """It is taken of the float32 sum, not of the reserve, which is rounded for the backward only."""
    rng = rng_for("unrounded")
    x, y = np.ones((2, 8), half), random(rng, (8, 300), half)
    z = y.astype(np.float64).sum(axis=0)
    entry = ACTIVATIONS[activation]
    exact = entry.forward(z)
    certain = rounds_alike_nearby(exact, half)
    of_rounded = entry.forward(z.astype(half)).astype(half)
    assert (of_rounded != exact.astype(half))[certain].any(), "the example doesn't tell the two apart"
    out, _ = fge.fused_gemm_epilogue(x, y, activation=activation)
    for row in out:
        assert_same_bits(row[certain], exact.astype(half)[certain])


def test_dz_is_rounded_once_and_bias_grad_is_summed_before_it(half):
    """dZ = out_grad * slope has more bits than the half type: its GEMMs see it rounded, the bias gradient doesn't."""
    rng = rng_for("dz")
    m, k, n = 64, 3, 40
    x, y = np.ones((m, k), half), np.ones((k, n), half)
    out_grad = random(rng, (m, n), half)
    reserve = make_reserve("sigmoid", rng.uniform(-2, 2, (m, n)), half)
    out = reserve.astype(np.float64)
    dz = out_grad.astype(np.float64) * (out * (1 - out))  # exact to float32's precision
    into = (None, np.zeros((k, n), FLOAT32), np.zeros(n, FLOAT32))
    options = dict(activation="sigmoid", needs=(False, True, True), accumulate_into=into)
    _, y_grad, bias_grad = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, **options)
    of_rounded = dz.astype(half).astype(np.float64).sum(axis=0)
    of_exact = dz.sum(axis=0)
    tolerance = 1e-5
    assert np.abs(of_rounded - of_exact).max() > 10 * tolerance, "the example doesn't tell the two apart"
    np.testing.assert_allclose(bias_grad, of_exact, rtol=0, atol=tolerance)
    np.testing.assert_allclose(y_grad, np.tile(of_rounded, (k, 1)), rtol=0, atol=10 * tolerance)


def test_uint16_form_of_bfloat16():
    """Paddle hands bfloat16 tensors to numpy as uint16: a view each way, never a guess."""
    values = every_value(BFLOAT16)
    integers = values.view(np.uint16)
    seen = fge.bfloat16_from_uint16(integers)
    assert seen.dtype == ml_dtypes.bfloat16
    assert np.shares_memory(seen, integers)
    back = fge.bfloat16_to_uint16(seen)
    assert back.dtype == np.uint16
    assert np.shares_memory(back, integers)
    assert np.array_equal(back, integers)
    strided = integers.reshape(256, 256)[::3, ::-2]
    assert_same_bits(fge.bfloat16_from_uint16(strided), values.reshape(256, 256)[::3, ::-2])
