"""Each activation within 4 ulp and its derivative within 8 ulp or 4e-7, over the whole range of float32 and float64.

A value reaches the activation through K = 1: as a column (N = 1), as a row (M = 1) and in a full tile, because each
may take a path of its own. The derivative is seen in the same three ways through x_grad, where out_grad is one.
"""

import functools

import ml_dtypes
import numpy as np
import pytest
from activation_table import ACTIVATIONS, CURVED, ROUNDED
from reference import (
    ACTIVATION_ULPS,
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    HALVES,
    Bounded,
    accumulator,
    assert_within,
    flushed_subnormals,
    rng_for,
    rounding_error,
    slope_error,
    ulp,
)

import fge

pytestmark = pytest.mark.usefixtures("path")

TILE_ROWS = 48


def all_binades(rng, dtype, per_binade):
    """Positive and negative values with every exponent of the type, its subnormals included."""
    info = np.finfo(dtype)
    exponents = np.arange(info.minexp - info.nmant, info.maxexp)
    mantissas = np.concatenate([[1.0, 2 - float(info.eps)], rng.uniform(1, 2, per_binade - 2)])
    magnitudes = np.ldexp(mantissas, exponents[:, None]).astype(dtype).ravel()
    return np.concatenate([magnitudes, -magnitudes])


def float32_samples():
    rng = rng_for("float32 samples")
    return np.concatenate(
        [
            all_binades(rng, FLOAT32, 12),
            np.linspace(-20, 20, 20001, dtype=FLOAT32),
            rng.uniform(-110, 90, 20000).astype(FLOAT32),
        ]
    )


def float64_samples():
    rng = rng_for("float64 samples")
    return np.concatenate(
        [
            all_binades(rng, FLOAT64, 3)[::7],
            rng.uniform(-25, 25, 600),
            rng.uniform(-745, 710, 100),
            rng.normal(size=300),
        ]
    )


def half_samples(dtype):
    """Every finite value of the type."""
    values = np.arange(2**16, dtype=np.uint16).view(dtype)
    return values[np.isfinite(values.astype(np.float32))]


def in_tiles(values, dtype):
    """The values as rows of a matrix, the last row filled up with ones."""
    padded = np.ones(-(-values.size // TILE_ROWS) * TILE_ROWS, dtype)
    padded[: values.size] = values
    return padded.reshape(TILE_ROWS, -1)


def forward_as_column(values, activation):
    return fge.fused_gemm_epilogue(values[:, None], np.ones((1, 1), values.dtype), activation=activation)[
        0
    ].ravel()


def forward_as_row(values, activation):
    return fge.fused_gemm_epilogue(np.ones((1, 1), values.dtype), values[None], activation=activation)[
        0
    ].ravel()


def forward_in_tiles(values, activation):
    # The product with an identity is exact, as the values are finite.
    identity = np.eye(TILE_ROWS).astype(values.dtype)
    out, _ = fge.fused_gemm_epilogue(identity, in_tiles(values, values.dtype), activation=activation)
    return out.ravel()[: values.size]


FORWARDS = {"column": forward_as_column, "row": forward_as_row, "tiles": forward_in_tiles}


def ones(shape, dtype):
    return np.ones(shape, dtype)


def slope_as_column(reserve, activation):
    size, dtype = reserve.size, reserve.dtype
    x, y, grad = ones((size, 1), dtype), ones((1, 1), dtype), ones((size, 1), dtype)
    return fge.fused_gemm_epilogue_grad(x, y, reserve[:, None], grad, activation=activation)[0].ravel()


def slope_as_row(reserve, activation):
    """Seen in y_grad: with M = K = 1 it is dZ itself."""
    size, dtype = reserve.size, reserve.dtype
    x, y, grad = ones((1, 1), dtype), ones((1, size), dtype), ones((1, size), dtype)
    return fge.fused_gemm_epilogue_grad(x, y, reserve[None], grad, activation=activation)[1].ravel()


def slope_in_tiles(reserve, activation):
    """Seen in y_grad too, through an identity in place of x."""
    tiles = in_tiles(reserve, reserve.dtype)
    identity, grad = np.eye(TILE_ROWS).astype(reserve.dtype), ones(tiles.shape, reserve.dtype)
    y_grad = fge.fused_gemm_epilogue_grad(
        identity, grad, tiles, grad, activation=activation, needs=(False, True, False)
    )
    return y_grad[1].ravel()[: reserve.size]


def slope_as_x_activation(reserve, activation):
    """The other place where a derivative is applied: the epilogue of x_grad."""
    size, dtype = reserve.size, reserve.dtype
    x, y, grad = ones((size, 1), dtype), ones((1, 1), dtype), ones((size, 1), dtype)
    options = dict(x_activation=activation, x_reserve=reserve[:, None], needs=(True, False, False))
    return fge.fused_gemm_epilogue_grad(x, y, None, grad, **options)[0].ravel()


SLOPES = {
    "column": slope_as_column,
    "row": slope_as_row,
    "tiles": slope_in_tiles,
    "x_grad": slope_as_x_activation,
}


def reserves_for(activation, samples):
    """What a reserve may hold: any z, or the outputs of all of them."""
    entry = ACTIVATIONS[activation]
    return samples if entry.reserve == "z" else np.unique(entry.forward(samples).astype(samples.dtype))


def forward_bounds(values, activation):
    """The accuracy asked for: of the accumulator's type, then one rounding to the values' own. The activation may be that
    of zero where the product takes a value for zero."""
    expected = ACTIVATIONS[activation].forward(values)
    bound = ACTIVATION_ULPS * ulp(expected, accumulator(values.dtype))
    if values.dtype in HALVES:
        bound = bound + rounding_error(expected, values.dtype)
    flushed = np.where(flushed_subnormals(values), np.abs(expected - ACTIVATIONS[activation].forward(values * 0)), 0)
    return Bounded(expected, bound + flushed)


def slope_bounds(reserve, activation):
    expected = ACTIVATIONS[activation].slope(reserve)
    bound = slope_error(expected, reserve.dtype)
    if reserve.dtype in HALVES:
        bound = bound + rounding_error(expected, reserve.dtype)
    return Bounded(expected, bound)


def samples_for(dtype):
    return float32_samples() if dtype == FLOAT32 else half_samples(dtype)


def in_range(values, activation):
    """Those whose activation, and its derivative, is no overflow."""
    largest = float(ml_dtypes.finfo(values.dtype).max)
    near = ACTIVATIONS[activation].forward(values) < 0.999 * largest
    return (
        values[near & (np.abs(values.astype(np.float64)) < largest / 2)]
        if not ACTIVATIONS[activation].saturates
        else values
    )


def test_the_table_knows_every_activation():
    """A new activation can't go untested: all parametrisations here run over the table."""
    assert set(fge.activations()) == {name.partition("(")[0] for name in ACTIVATIONS}
    assert set(fge.activations()) <= set(ACTIVATIONS)


@pytest.mark.parametrize("dtype", (FLOAT32, FLOAT16, BFLOAT16), ids=str)
@pytest.mark.parametrize("way", FORWARDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_forward(activation, way, dtype):
    values = in_range(samples_for(dtype), activation)
    assert_within(
        FORWARDS[way](values, activation), forward_bounds(values, activation), f"{activation} of {dtype}"
    )


@pytest.mark.parametrize("dtype", (FLOAT32, FLOAT16, BFLOAT16), ids=str)
@pytest.mark.parametrize("way", SLOPES)
@pytest.mark.parametrize("activation", CURVED)
def test_derivative(activation, way, dtype):
    reserve = reserves_for(activation, in_range(samples_for(dtype), activation))
    assert_within(
        SLOPES[way](reserve, activation), slope_bounds(reserve, activation), f"{activation}' of {dtype}"
    )


@functools.cache
def exact_forward(activation):
    """Samples, their exact activations and bounds; once for all paths, as mpmath takes its time."""
    values = in_range(float64_samples(), activation)
    exact = [ACTIVATIONS[activation].forward_exact(float(value)) for value in values]
    return values, exact, ACTIVATION_ULPS * ulp([float(value) for value in exact], FLOAT64)


@functools.cache
def exact_slope(activation):
    reserve = reserves_for(activation, in_range(float64_samples(), activation))
    exact = [ACTIVATIONS[activation].slope_exact(float(value)) for value in reserve]
    return reserve, exact, slope_error(np.asarray([float(value) for value in exact]), FLOAT64)


def assert_near_exact(actual, exact, bounds, inputs, what):
    """The difference is taken in mpmath: in float64 it would be rounded to whole ulps."""
    errors = np.asarray([float(abs(float(one) - other)) for one, other in zip(actual, exact)])
    excess = errors / bounds
    worst = int(np.argmax(excess))  # the first NaN, where there is one
    assert excess[worst] <= 1, (
        f"{what} of {inputs[worst]!r}: got {actual[worst]!r}, expected {float(exact[worst])!r}"
    )


@pytest.mark.parametrize("way", FORWARDS)
@pytest.mark.parametrize("activation", ROUNDED)
def test_float64_forward(activation, way):
    values, exact, bounds = exact_forward(activation)
    assert_near_exact(FORWARDS[way](values, activation), exact, bounds, values, activation)


@pytest.mark.parametrize("way", SLOPES)
@pytest.mark.parametrize("activation", CURVED)
def test_float64_derivative(activation, way):
    reserve, exact, bounds = exact_slope(activation)
    assert_near_exact(SLOPES[way](reserve, activation), exact, bounds, reserve, f"{activation}'")
