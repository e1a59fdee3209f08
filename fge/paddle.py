"""Paddle's fused_gemm_epilogue on a CPU: `import fge.paddle` is all that a program needs.

The import registers CPU kernels for the operators fused_gemm_epilogue and fused_gemm_epilogue_grad, which
Paddle has for GPUs only. After it these run on a CPU:

    paddle._C_ops.fused_gemm_epilogue, paddle._C_ops.fused_gemm_epilogue_grad
    paddle._legacy_C_ops.fused_gemm_epilogue
    paddle.incubate.nn.functional.fused_linear, fused_matmul_bias, fused_linear_activation
    paddle.incubate.nn.FusedLinear, fleet's ColumnParallelLinear(fuse_matmul_bias=True)

`linear_act` adds what Paddle's operator lacks: no bias, and every activation of `fge`. `fused_mlp` and
`fused_glu` are built from it: two layers with an activation between them, and a gated unit.
"""

import ctypes
import os

# The versions that the tests pass with. Another may pass a kernel other arguments, which no check would
# notice.
OLDEST, NEWEST = "3.0.0", "3.3.1"

try:
    import paddle as _framework
except ImportError as error:
    raise ImportError(
        f"fge.paddle needs Paddle, which can't be imported ({error}): pip install paddlepaddle=={NEWEST}"
    ) from error


def _numbers(version):
    """3.3.1 or 3.3.1.post1+cpu as (3, 3, 1)."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit())


def _require_tested_version():
    version = _framework.__version__
    if not _numbers(OLDEST) <= _numbers(version) <= _numbers(NEWEST):
        raise ImportError(
            f"fge.paddle works with paddlepaddle {OLDEST} to {NEWEST}; {version} is installed: "
            f"pip install paddlepaddle=={NEWEST}"
        )


def _register_kernels():
    """Paddle's C interface is in a library that its Python extension depends on, and has loaded."""
    from fge import _paddle

    extension = ctypes.CDLL(_framework.base.libpaddle.__file__, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    try:
        _paddle.register(extension._handle)
    except LookupError as error:
        raise ImportError(f"fge.paddle can't register its kernels: {error}") from error


_require_tested_version()
_register_kernels()

from fge._paddle_front import install as _install
from fge._paddle_front import linear_act
from fge._paddle_layers import fused_glu, fused_mlp

_install()

__all__ = ["fused_glu", "fused_mlp", "linear_act"]
