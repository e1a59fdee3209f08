"""What the forward keeps for the backward: kind, layout, exact contents."""

import numpy as np
import pytest
from activation_table import ACTIVATIONS
from reference import (
    FLOAT16,
    FLOAT32,
    assert_same_bits,
    pack_relu_bits,
    random_operands,
    relu_bits_width,
    reserve_layout,
    rng_for,
)

import fge

pytestmark = pytest.mark.usefixtures("path")

WIDTHS = (0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 127, 128, 129, 255, 256, 257, 530)


def whole_numbers(rng, shape, dtype):
    """Small integers: every product and sum is exact in every type, zeros and both signs included."""
    return rng.integers(-2, 3, shape).astype(dtype)


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("m", (1, 2, 17, 40))
def test_relu_bits_are_exactly_z_above_zero(m, n, dtype):
    rng = rng_for(m, n)
    x, y = whole_numbers(rng, (m, 6), dtype), whole_numbers(rng, (6, n), dtype)
    bias = whole_numbers(rng, (n,), dtype)
    z = x.astype(np.float64) @ y.astype(np.float64) + bias.astype(np.float64)
    _, bits = fge.fused_gemm_epilogue(x, y, bias, activation="relu")
    assert bits.flags.c_contiguous
    assert_same_bits(bits, pack_relu_bits(z > 0), "reserve")
    assert bits.shape == fge.relu_bits_shape(m, n)
    unpacked = fge.unpack_relu_bits(bits, n)
    assert unpacked.dtype == np.bool_
    assert np.array_equal(unpacked, z > 0)


@pytest.mark.parametrize("activation", [name for name, entry in ACTIVATIONS.items() if entry.reserve == "z"])
@pytest.mark.parametrize("m, k, n", ((1, 20, 129), (17, 33, 1), (33, 40, 127), (130, 300, 257)))
def test_reserved_z_is_the_output_of_none(activation, m, k, n, dtype):
    x, y, bias = random_operands(rng_for(m, k, n), m, k, n, dtype)
    z, nothing = fge.fused_gemm_epilogue(x, y, bias)
    assert nothing is None
    _, reserve = fge.fused_gemm_epilogue(x, y, bias, activation=activation)
    assert_same_bits(reserve, z, "reserve")


@pytest.mark.parametrize(
    "activation", [name for name, entry in ACTIVATIONS.items() if entry.reserve == "out"]
)
def test_out_is_its_own_reserve(activation, dtype):
    x, y, bias = random_operands(rng_for(activation), 9, 8, 33, dtype)
    out, reserve = fge.fused_gemm_epilogue(x, y, bias, activation=activation)
    assert reserve is out


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("batch", ((), (2, 3), (0,)), ids=str)
def test_shape_and_dtype(activation, batch, dtype):
    x, y = np.ones((*batch, 4, 3), dtype), np.ones((3, 130), dtype)
    out, reserve = fge.fused_gemm_epilogue(x, y, activation=activation)
    layout = reserve_layout(activation, out.shape, dtype)
    assert (None if reserve is None else (reserve.shape, reserve.dtype)) == layout


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_none_without_save_reserve(activation, dtype):
    x, y, bias = random_operands(rng_for(activation), 5, 6, 7, dtype)
    out = np.zeros((5, 7), dtype)
    assert fge.fused_gemm_epilogue(x, y, bias, activation=activation, save_reserve=False)[1] is None
    assert fge.fused_gemm_epilogue(x, y, bias, activation=activation, save_reserve=False, out=out)[1] is None


def test_the_bit_is_of_the_biased_value(dtype):
    """Order of the steps: bias, then activation and mask. The bias is -z plus less than nothing, or more."""
    rng = rng_for("order")
    x, y = whole_numbers(rng, (1, 6), dtype), whole_numbers(rng, (6, 150), dtype)
    z = x.astype(np.float64) @ y.astype(np.float64)
    nudge = np.resize([0.25, -0.25, 0.0], 150)
    out, bits = fge.fused_gemm_epilogue(x, y, (nudge - z[0]).astype(dtype), activation="relu")
    assert np.array_equal(fge.unpack_relu_bits(bits, 150)[0], nudge > 0)
    assert_same_bits(out, np.maximum(nudge, 0).astype(dtype).reshape(1, 150))


def test_a_value_that_rounds_to_zero_has_its_bit():
    """The bit belongs to the sum in float32, not to its float16 rounding."""
    tiny = np.full((1, 1), 2.0**-14, FLOAT16)
    out, bits = fge.fused_gemm_epilogue(tiny, tiny, activation="relu")
    assert out[0, 0] == 0
    assert bits[0, 0] == 1


@pytest.mark.parametrize("rows", (1, 3, 33))
def test_stale_memory_never_reaches_the_padding(rows, dtype):
    """The allocator hands out the pages of what was freed just before: fill them with ones."""
    n = 129
    for _ in range(20):
        stale = np.full((rows, relu_bits_width(n)), 0xFF, np.uint8)
        del stale
        _, bits = fge.fused_gemm_epilogue(
            np.zeros((rows, 1), dtype), np.zeros((1, n), dtype), activation="relu"
        )
        assert not bits.any()


def test_a_reserve_made_elsewhere_serves_the_backward():
    """The layout is a documented format: bits packed by numpy are as good as the forward's."""
    rng = rng_for("elsewhere")
    z = rng.uniform(-1, 1, (6, 130))
    x, y = np.ones((6, 2), np.float32), np.ones((2, 130), np.float32)
    reserve = pack_relu_bits(z > 0)
    _, _, bias_grad = fge.fused_gemm_epilogue_grad(
        x, y, reserve, np.ones((6, 130), np.float32), activation="relu"
    )
    assert_same_bits(bias_grad, (z > 0).sum(axis=0).astype(FLOAT32))


def test_padding_bits_of_a_given_reserve_are_ignored():
    x, y = np.ones((3, 2), np.float32), np.ones((2, 5), np.float32)
    reserve = np.full((3, 16), 0xFF, np.uint8)
    grads = fge.fused_gemm_epilogue_grad(x, y, reserve, np.ones((3, 5), np.float32), activation="relu")
    for grad, value in zip(grads, (5, 3, 3)):
        assert (grad == value).all()
