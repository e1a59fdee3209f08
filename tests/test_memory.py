"""Peak memory is that of the outputs and a few tiles: the M*N of a step in between never exists.

Measured in processes of their own at M = 8192, K = 64, N = 4096, by the resident peak, which sees scratch that
Python doesn't, and by tracemalloc, which sees arrays of numpy that are never touched.
"""

import os

import pytest
from processes import run_child
from reference import DTYPES

import fge

DEFAULT_FLAGS = "NN"


pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the resident peak can't be reset here"
)


@pytest.fixture(params=fge.engines())
def engine(request):
    return {"FGE_ENGINE": request.param, "FGE_NUM_THREADS": "2"}


@pytest.mark.parametrize("activation, save_reserve", (("relu", "True"), ("gelu", "True"), ("gelu", "False")))
@pytest.mark.parametrize("dtype", [str(dtype) for dtype in DTYPES])
def test_forward(dtype, activation, save_reserve, engine):
    run_child("forward_peak", dtype, activation, DEFAULT_FLAGS, save_reserve, env=engine)


@pytest.mark.parametrize("flags", ("NT", "TN", "TT"))
def test_forward_of_transposed_operands(flags, engine):
    run_child("forward_peak", "float32", "gelu", flags, "True", env=engine)


@pytest.mark.parametrize("activation", ("none", "relu", "gelu"))
@pytest.mark.parametrize("dtype", [str(dtype) for dtype in DTYPES])
def test_backward(dtype, activation, engine):
    run_child("backward_peak", dtype, activation, DEFAULT_FLAGS, "111", env=engine)


@pytest.mark.parametrize("flags", ("NT", "TN", "TT"))
def test_backward_of_transposed_operands(flags, engine):
    run_child("backward_peak", "float32", "gelu", flags, "111", env=engine)


@pytest.mark.parametrize("needs", ("100", "010", "001"))
def test_backward_of_one_gradient(needs, engine):
    run_child("backward_peak", "bfloat16", "gelu", DEFAULT_FLAGS, needs, env=engine)


def test_memory_stays_flat(engine):
    run_child("memory_stays_flat", env=engine)


@pytest.mark.large
@pytest.mark.parametrize("activation", ("none", "relu"))
def test_result_past_two_gigabytes(activation, engine):
    run_child("result_past_two_gigabytes", activation, env=engine, timeout=1200)


def test_rows_far_apart(engine):
    run_child("far_apart_rows", env=engine)


@pytest.mark.large
@pytest.mark.parametrize("dtype, k", (("float32", 2**29 + 9), ("float16", 2**31 + 9)))
def test_rows_past_two_gigabytes(dtype, k, engine):
    run_child("rows_past_two_gigabytes", dtype, k, env=engine, timeout=1200)
