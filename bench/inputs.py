"""The operands, the same in every process."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bench.shapes import Shape


class Inputs(NamedTuple):
    """Row-major arrays: x [M, K], y [K, N], bias [N], out_grad [M, N]."""

    x: np.ndarray
    y: np.ndarray
    bias: np.ndarray
    out_grad: np.ndarray


def dtype_of(name: str) -> np.dtype:
    """numpy's dtype of this name; bfloat16 is that of ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


@lru_cache(maxsize=1)  # the tasks of one shape follow one another
def make(shape: Shape, dtype: str) -> Inputs:
    """Normal values, scaled so that x @ y is of order 1: activations are neither linear nor saturated."""
    random = np.random.default_rng(tuple(shape))

    def normal(*size: int, scale: float = 1.0) -> np.ndarray:
        values = random.standard_normal(size, dtype=np.float32)
        values *= np.float32(scale)
        return values.astype(dtype_of(dtype))

    m, k, n = shape
    return Inputs(normal(m, k), normal(k, n, scale=k**-0.5), normal(n), normal(m, n))
