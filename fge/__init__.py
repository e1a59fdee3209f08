"""fge: out = act(x @ y + bias) in one pass on CPUs, with the reserve that its backward needs.

out, reserve = fge.fused_gemm_epilogue(x, y, bias, activation="gelu")
x_grad, y_grad, bias_grad = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, activation="gelu")
"""

from fge import _blas  # noqa: F401  (hands scipy's BLAS to the core)
from fge._arrays import bfloat16_from_uint16, bfloat16_to_uint16, unpack_relu_bits
from fge._kernels import (
    activations,
    fused_gemm_epilogue,
    fused_gemm_epilogue_grad,
    fused_glu,
    fused_glu_grad,
    get_num_threads,
    relu_bits_shape,
    reserve_kind,
    set_num_threads,
)
from fge._mlp import fused_mlp, fused_mlp_grad
from fge._settings import config, engine, engines, isa, isas, show_config, threads
from fge._version import __version__

__all__ = [
    "__version__",
    "activations",
    "bfloat16_from_uint16",
    "bfloat16_to_uint16",
    "config",
    "engine",
    "engines",
    "fused_gemm_epilogue",
    "fused_gemm_epilogue_grad",
    "fused_glu",
    "fused_glu_grad",
    "fused_mlp",
    "fused_mlp_grad",
    "get_num_threads",
    "isa",
    "isas",
    "relu_bits_shape",
    "reserve_kind",
    "set_num_threads",
    "show_config",
    "threads",
    "unpack_relu_bits",
]
