"""The operator in float64, with the error that an implementation may make, derived and not tuned.

For Z = X Y + bias with K terms, accumulated in a type of machine epsilon eps and rounded once to the output type:

    |Z - R| <= 2 K eps (|X| |Y| + |bias|) + u_out |R| + half the smallest subnormal

Everything else follows: an activation passes an error on with its largest slope and adds ACTIVATION_ULPS of its
own, a derivative adds SLOPE_ULPS or an absolute SLOPE_ABSOLUTE, dZ of a half type is rounded once before its GEMMs.
"""

import zlib
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from activation_table import ACTIVATIONS
from activation_table import FLOAT64 as FLOAT64_FUNCTIONS

import fge

FLOAT16 = np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
DTYPES = (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)
HALVES = (FLOAT16, BFLOAT16)

PRECISION = {FLOAT16: 11, BFLOAT16: 8, FLOAT32: 24, FLOAT64: 53}
SMALLEST_SUBNORMAL_EXPONENT = {FLOAT16: -24, BFLOAT16: -133, FLOAT32: -149, FLOAT64: -1074}

SUM_FACTOR = 2
ACTIVATION_ULPS = 4
SLOPE_ULPS = 8
SLOPE_ABSOLUTE_IN_EPSILONS = 4e-7 / 2.0**-23


def accumulator(dtype):
    """The type in which products of `dtype` are summed and the epilogue computes."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def epsilon(dtype):
    return 2.0 ** (1 - PRECISION[dtype])


def ulp(value, dtype):
    """Distance of neighbouring numbers of `dtype` at `value`; that of the subnormals below the normal range."""
    _, exponent = np.frexp(np.abs(np.asarray(value, np.float64)))
    return np.ldexp(1.0, np.maximum(exponent - PRECISION[dtype], SMALLEST_SUBNORMAL_EXPONENT[dtype]))


def ulp_distance(actual, expected, dtype):
    """|actual - expected| in units of the last place at `expected` (float64, finite)."""
    return np.abs(actual.astype(np.float64) - expected) / ulp(expected, dtype)


def rounding_error(value, dtype):
    """The most by which rounding once to `dtype` moves `value`."""
    return epsilon(dtype) / 2 * np.abs(value) + 2.0 ** (SMALLEST_SUBNORMAL_EXPONENT[dtype] - 1)


def slope_error(slope, dtype):
    """The most by which a derivative computed in the accumulator of `dtype` may be wrong."""
    acc = accumulator(dtype)
    return np.maximum(SLOPE_ULPS * ulp(slope, acc), SLOPE_ABSOLUTE_IN_EPSILONS * epsilon(acc))


@dataclass
class Bounded:
    """An expected value and how far from it a result may be, elementwise."""

    value: np.ndarray
    bound: np.ndarray


def assert_within(actual, expected, what="result"):
    """`actual` is of the expected shape and nowhere outside its bound (a NaN always is)."""
    assert actual.shape == expected.value.shape, (
        f"{what}: shape {actual.shape}, expected {expected.value.shape}"
    )
    error = np.abs(actual.astype(np.float64) - expected.value)
    wrong = ~(error <= expected.bound)
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        pytest.fail(
            f"{what}: {np.count_nonzero(wrong)} of {wrong.size} elements outside the bound, first at {where}: "
            f"got {float(actual[where])!r}, expected {expected.value[where]!r} +- {expected.bound[where]:.3g}"
        )


def bits_of(array):
    """The elements as unsigned integers, so that NaN, -0.0 and the last bit count."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def assert_same_bits(actual, expected, what="result"):
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    different = bits_of(actual) != bits_of(expected)
    if different.any():
        where = tuple(int(i) for i in np.argwhere(different)[0])
        pytest.fail(
            f"{what}: {np.count_nonzero(different)} of {different.size} elements differ, first at {where}: "
            f"{actual[where]!r} and {expected[where]!r}"
        )


def assert_all_same_bits(actual, expected, what="results"):
    """The same for tuples of arrays, in which None must meet None."""
    assert len(actual) == len(expected)
    for position, (one, other) in enumerate(zip(actual, expected)):
        if other is None:
            assert one is None, f"{what}[{position}]: expected None"
        else:
            assert_same_bits(one, other, f"{what}[{position}]")


def random(rng, shape, dtype):
    """Values in [-1, 1) of full precision in `dtype`."""
    return np.asarray(rng.uniform(-1, 1, shape)).astype(dtype)


def rng_for(*parts):
    """A generator of its own for each test case, the same in every run and process."""
    return np.random.default_rng(zlib.crc32(repr([str(part) for part in parts]).encode()))


def operand_shapes(m, k, n, trans_x, trans_y):
    """The shapes of x and y as stored."""
    return ((k, m) if trans_x else (m, k)), ((n, k) if trans_y else (k, n))


def random_operands(rng, m, k, n, dtype, trans_x=False, trans_y=False):
    """x, y, bias as stored."""
    x_shape, y_shape = operand_shapes(m, k, n, trans_x, trans_y)
    return random(rng, x_shape, dtype), random(rng, y_shape, dtype), random(rng, (n,), dtype)


def as_rows(x, trans_x):
    """op(X) as a matrix: the last two axes swapped where asked, leading axes flattened into the rows."""
    x = x.swapaxes(-1, -2) if trans_x else x
    rows = int(np.prod(x.shape[:-1], dtype=np.int64))
    return x.reshape((rows, x.shape[-1]))


def from_rows(rows, x_shape, trans_x):
    """The inverse of as_rows: a matrix of op(X)'s rows in the layout of x."""
    if not trans_x:
        return rows.reshape(x_shape)
    *batch, k, m = x_shape
    return rows.reshape((*batch, m, k)).swapaxes(-1, -2)


def out_shape(x, y, trans_x=False, trans_y=False):
    rows = x.swapaxes(-1, -2) if trans_x else x
    return (*rows.shape[:-1], y.shape[0] if trans_y else y.shape[1])


def relu_bits_width(n):
    return 16 * -(-n // 128)


def pack_relu_bits(positive):
    """The documented layout: element n of a row is bit n % 8 of byte n // 8, rows padded to 16 bytes per 128."""
    m, n = positive.shape
    packed = np.zeros((m, relu_bits_width(n)), np.uint8)
    packed[:, : -(-n // 8)] = np.packbits(positive, axis=1, bitorder="little")
    return packed


def reserve_layout(activation, shape, dtype):
    """(shape, dtype) of the reserve of an output of `shape`; None where nothing is reserved."""
    kind = ACTIVATIONS[activation].reserve
    if kind == "none":
        return None
    if kind == "bits":
        rows = int(np.prod(shape[:-1], dtype=np.int64))
        return (rows, relu_bits_width(shape[-1])), np.dtype(np.uint8)
    return tuple(shape), dtype


def make_reserve(activation, z, dtype):
    """The reserve that a forward with pre-activation `z` (a matrix) would have left."""
    entry = ACTIVATIONS[activation]
    if entry.reserve == "none":
        return None
    reserved = entry.reserved(z.astype(np.float64))
    return pack_relu_bits(reserved) if entry.reserve == "bits" else reserved.astype(dtype)


def flushes_bfloat16():
    """The instructions that multiply pairs of bfloat16 take subnormals for zeros."""
    forced = fge.config()["forced"]["FGE_ISA"]
    return (fge.isas()[0] if forced == "auto" else forced) in ("amx", "avx512_bf16")


SMALLEST_NORMAL_BFLOAT16 = 2.0**-126


def flushed_in_products(dtype, terms, left, right):
    """What that may cost a sum of `terms` products."""
    if dtype != BFLOAT16 or not flushes_bfloat16() or left.size == 0 or right.size == 0:
        return 0.0
    return terms * SMALLEST_NORMAL_BFLOAT16 * (np.abs(left).max() + np.abs(right).max())


def flushed_subnormals(values):
    """Which of the values are taken for zeros."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        magnitude = np.abs(values.astype(np.float64))
    flushed = values.dtype == BFLOAT16 and flushes_bfloat16()
    return flushed & (magnitude > 0) & (magnitude < SMALLEST_NORMAL_BFLOAT16)


def product(left, right, added, dtype, terms):
    """left @ right + added, and the bound of its accumulation. `added` is a number or an array, or None."""
    value = left @ right
    magnitude = np.abs(left) @ np.abs(right)
    if added is not None:
        value = value + added
        magnitude = magnitude + np.abs(added)
    bound = SUM_FACTOR * terms * epsilon(accumulator(dtype)) * magnitude
    subnormal = (
        terms * 2.0 ** SMALLEST_SUBNORMAL_EXPONENT[accumulator(dtype)]
    )  # each sum may be rounded there
    return Bounded(value, bound + subnormal + flushed_in_products(dtype, terms, left, right))


def stored(exact, dtype):
    """The bound after one rounding to `dtype`."""
    return Bounded(exact.value, exact.bound + rounding_error(exact.value, dtype))


@dataclass
class Forward:
    out: Bounded
    z: Bounded  # not yet rounded to the output type


def forward(x, y, bias=None, trans_x=False, trans_y=False, activation="none"):
    dtype = x.dtype
    entry = ACTIVATIONS[activation]
    rows = as_rows(x, trans_x).astype(np.float64)
    columns = (y.T if trans_y else y).astype(np.float64)
    z = product(rows, columns, None if bias is None else bias.astype(np.float64), dtype, rows.shape[1])
    value = entry.forward(z.value)
    bound = entry.spread(z.value, z.bound)
    if not entry.exact:
        bound = bound + ACTIVATION_ULPS * ulp(value, accumulator(dtype))
    shape = out_shape(x, y, trans_x, trans_y)
    out = stored(Bounded(value, bound), dtype)
    return Forward(Bounded(out.value.reshape(shape), out.bound.reshape(shape)), z)


def check_reserve(reserve, out, expected, activation):
    """The reserve of a forward that returned `out` has the documented kind, layout and values."""
    kind = ACTIVATIONS[activation].reserve
    layout = reserve_layout(activation, out.shape, out.dtype)
    if layout is None:
        assert reserve is None
        return
    assert (reserve.shape, reserve.dtype) == layout
    if kind == "out":
        assert reserve is out
    elif kind == "z":
        z = stored(expected.z, out.dtype)
        assert_within(reserve, Bounded(z.value.reshape(out.shape), z.bound.reshape(out.shape)), "reserved z")
    else:
        check_bits(reserve, out, expected.z, ACTIVATIONS[activation])


def check_bits(reserve, out, z, entry):
    n = out.shape[-1]
    bits = np.unpackbits(reserve, axis=1, bitorder="little").astype(bool)
    assert not bits[:, n:].any(), "padding bits are set"
    bits = bits[:, :n]
    certain = np.logical_and.reduce([np.abs(z.value - edge) > z.bound for edge in entry.edges])
    assert (bits[certain] == entry.bit(z.value)[certain]).all(), (
        f"a bit that isn't {entry.edges[0]} < z < {entry.edges[1]}"
    )
    if entry.name != "relu":
        return
    positive = out.reshape(bits.shape).astype(np.float64) > 0
    # Only a value that the output type rounds to zero may have its bit set over an output of zero.
    disagree = bits != positive
    assert not (disagree & positive).any(), "an output above zero without its bit"
    largest_rounded_to_zero = 2.0 ** (SMALLEST_SUBNORMAL_EXPONENT[out.dtype] - 1)
    assert (z.value[disagree] <= z.bound[disagree] + largest_rounded_to_zero).all(), (
        "a bit over an output of zero"
    )


def slope_from_reserve(activation, reserve, shape, dtype):
    """The derivative, as a matrix of `shape`, and its error."""
    entry = ACTIVATIONS[activation]
    if entry.reserve == "none":
        return Bounded(np.ones(shape), np.zeros(shape))
    if entry.reserve == "bits":
        bits = np.unpackbits(reserve, axis=1, bitorder="little")[:, : shape[1]]
        slope = entry.slope_formula(FLOAT64_FUNCTIONS, bits.astype(np.float64))
        return Bounded(slope, np.zeros(shape) if entry.exact else slope_error(slope, dtype))
    slope = entry.slope(reserve.astype(np.float64)).reshape(shape)
    return Bounded(slope, np.zeros(shape) if entry.exact else slope_error(slope, dtype))


@dataclass
class Backward:
    x_grad: Bounded
    y_grad: Bounded
    bias_grad: Bounded

    def __iter__(self):
        return iter((self.x_grad, self.y_grad, self.bias_grad))


def backward(
    x,
    y,
    reserve,
    out_grad,
    trans_x=False,
    trans_y=False,
    activation="none",
    x_activation="none",
    x_reserve=None,
    initial=(None, None, None),
):
    """The three gradients in the layouts of the inputs, added to `initial` where that isn't None."""
    dtype = x.dtype
    rows = as_rows(x, trans_x).astype(np.float64)
    columns = (y.T if trans_y else y).astype(np.float64)
    m, n = rows.shape[0], columns.shape[1]
    start = [None if array is None else array.astype(np.float64) for array in initial]
    kept_in = [dtype if array is None else array.dtype for array in initial]

    slope = slope_from_reserve(activation, reserve, (m, n), dtype)
    grad = out_grad.reshape((m, n)).astype(np.float64)
    dz = grad * slope.value
    exact_dz = ACTIVATIONS[activation].exact  # then out_grad times 0 or 1
    dz_error = np.abs(grad) * slope.bound + (0 if exact_dz else rounding_error(dz, accumulator(dtype)))
    bias_start = 0.0 if start[2] is None else start[2]
    bias_grad = Bounded(
        dz.sum(axis=0) + bias_start,
        SUM_FACTOR * m * epsilon(accumulator(dtype)) * (np.abs(dz).sum(axis=0) + np.abs(bias_start))
        + dz_error.sum(axis=0),
    )
    if dtype in HALVES and not exact_dz:
        dz_error = dz_error + rounding_error(dz, dtype)

    x_slope = slope_from_reserve(x_activation, x_reserve, matrix_shape(x), dtype)
    x_product = product(dz, columns.T, None, dtype, n)
    x_product.bound = x_product.bound + dz_error @ np.abs(columns.T)
    x_grad = Bounded(
        from_rows(x_product.value, x.shape, trans_x), from_rows(x_product.bound, x.shape, trans_x)
    )
    x_grad = times(x_grad, Bounded(x_slope.value.reshape(x.shape), x_slope.bound.reshape(x.shape)), dtype)
    x_grad = plus(x_grad, start[0], dtype)

    y_product = product(rows.T, dz, None, dtype, m)
    y_product.bound = y_product.bound + np.abs(rows.T) @ dz_error
    y_grad = Bounded(y_product.value.T, y_product.bound.T) if trans_y else y_product
    y_grad = plus(y_grad, start[1], dtype)

    return Backward(stored(x_grad, kept_in[0]), stored(y_grad, kept_in[1]), stored(bias_grad, kept_in[2]))


def matrix_shape(array):
    return int(np.prod(array.shape[:-1], dtype=np.int64)), array.shape[-1]


def times(left, right, dtype):
    value = left.value * right.value
    bound = left.bound * (np.abs(right.value) + right.bound) + np.abs(left.value) * right.bound
    return Bounded(value, bound + rounding_error(value, accumulator(dtype)))


def plus(left, added, dtype):
    if added is None:
        return left
    value = left.value + added
    return Bounded(value, left.bound + epsilon(accumulator(dtype)) * (np.abs(left.value) + np.abs(added)))
