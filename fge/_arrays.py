"""Helpers on numpy arrays: RELU bits, and bfloat16 in the form of uint16."""

import numpy as np


def unpack_relu_bits(bits, n):
    """RELU bits [M, 16 * ceil(n / 128)] as bool [M, n]: True where z > 0. TypeError or ValueError for other arrays."""
    from fge._kernels import relu_bits_shape

    if not isinstance(bits, np.ndarray) or bits.dtype != np.uint8:
        raise TypeError(f"bits is {_describe(bits)}; it must be a uint8 array")
    if bits.ndim != 2 or bits.shape[1] != relu_bits_shape(0, n)[1]:
        raise ValueError(
            f"bits has shape {bits.shape}; for n = {n} it must have shape (M, {relu_bits_shape(0, n)[1]})"
        )
    return np.unpackbits(bits, axis=1, count=n, bitorder="little").astype(bool)


def bfloat16_from_uint16(a):
    """View uint16 (the form in which Paddle's numpy arrays carry bfloat16) as ml_dtypes.bfloat16, without a copy.
    TypeError where a isn't a uint16 array; ImportError without ml_dtypes."""
    if not isinstance(a, np.ndarray) or a.dtype != np.uint16:
        raise TypeError(f"a is {_describe(a)}; it must be a uint16 array")
    return a.view(_bfloat16())


def bfloat16_to_uint16(a):
    """View ml_dtypes.bfloat16 as uint16, without a copy. TypeError where a isn't a bfloat16 array."""
    if not isinstance(a, np.ndarray) or a.dtype != _bfloat16():
        raise TypeError(f"a is {_describe(a)}; it must be a bfloat16 array")
    return a.view(np.uint16)


def _bfloat16():
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError("bfloat16 in numpy needs ml_dtypes: pip install ml_dtypes") from error
    return np.dtype(ml_dtypes.bfloat16)


def _describe(a):
    return f"an array of dtype {a.dtype}" if isinstance(a, np.ndarray) else f"a {type(a).__name__}"
