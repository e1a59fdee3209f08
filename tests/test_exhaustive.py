"""All 2^32 float32 patterns: rounding to the half types, and every activation with its derivative.

Deselected by default (`-m exhaustive` selects it). The references are computed once per chunk and compared with
every engine and instruction set.
"""

import numpy as np
import pytest
from activation_table import ACTIVATIONS, CURVED
from conftest import PATHS
from reference import FLOAT32, HALVES, assert_within
from test_activation_accuracy import forward_as_row, forward_bounds, in_range, slope_as_row, slope_bounds
from test_halves import assert_same_numbers

import fge
from fge import _kernels

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(0)]

CHUNK = 1 << 22


def all_float32():
    """Every float32, a chunk at a time."""
    for start in range(0, 1 << 32, CHUNK):
        yield np.arange(start, start + CHUNK, dtype=np.uint64).astype(np.uint32).view(FLOAT32)


def every_path():
    """Each engine and instruction set in turn, forced while the loop's body runs."""
    for engine, isa in PATHS:
        with fge.engine(engine), fge.isa(isa):
            yield f"{engine}-{isa}"


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_rounding(half):
    """The conversion that stores results, and the one that loads operands."""
    rounded, widened = np.empty(CHUNK, half), np.empty(1 << 16, FLOAT32)
    patterns = np.arange(1 << 16, dtype=np.uint16).view(half)
    for isa in fge.isas():
        with fge.isa(isa):
            _kernels.convert(patterns, widened)
        assert_same_numbers(widened, patterns.astype(FLOAT32))
    for values in all_float32():
        with np.errstate(over="ignore", invalid="ignore"):
            expected = values.astype(half)
        for isa in fge.isas():
            with fge.isa(isa):
                _kernels.convert(values, rounded)
            differ = rounded.view(np.uint16) != expected.view(np.uint16)
            assert_same_numbers(rounded[differ], expected[differ])  # NaNs may


def finite(values):
    return values[np.isfinite(values)]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_forward(activation):
    for values in map(finite, all_float32()):
        values = in_range(values, activation)
        if not values.size:
            continue
        expected = forward_bounds(values, activation)
        for path in every_path():
            assert_within(forward_as_row(values, activation), expected, f"{activation} on {path}")


@pytest.mark.parametrize("activation", CURVED)
def test_derivative(activation):
    entry = ACTIVATIONS[activation]
    for reserve in map(finite, all_float32()):
        if entry.reserve == "out":  # only what the activation can return is ever reserved
            reserve = reserve[(reserve >= entry.below) & (reserve <= entry.above)]
        reserve = in_range(reserve, activation)
        if not reserve.size:
            continue
        expected = slope_bounds(reserve, activation)
        for path in every_path():
            assert_within(slope_as_row(reserve, activation), expected, f"{activation}' on {path}")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan(activation):
    """Every payload stays a NaN."""
    for values in all_float32():
        nans = values[np.isnan(values)]
        for path in every_path():
            assert np.isnan(forward_as_row(nans, activation)).all(), f"{activation} on {path}"
