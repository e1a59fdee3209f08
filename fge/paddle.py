"""Paddle's fused_gemm_epilogue on a CPU: `import fge.paddle` is all that a program needs.

The import registers CPU kernels for the operators fused_gemm_epilogue and fused_gemm_epilogue_grad, which Paddle has
for GPUs only. After it these run on a CPU:

    paddle._C_ops.fused_gemm_epilogue, paddle._C_ops.fused_gemm_epilogue_grad, paddle._legacy_C_ops.fused_gemm_epilogue
    paddle.incubate.nn.functional.fused_linear, fused_matmul_bias, fused_linear_activation
    paddle.incubate.nn.FusedLinear, fleet's ColumnParallelLinear(fuse_matmul_bias=True)

`linear_act` adds what Paddle's operator lacks: no bias, and every activation of `fge`.
"""
import ctypes
import os

try:
    import paddle as _paddle_framework
except ImportError as error:
    raise ImportError("fge.paddle needs Paddle, which isn't installed: pip install paddlepaddle==3.3.1") from error

# The versions that the tests pass with. Others may pass the kernels other arguments, which no check would notice.
OLDEST, NEWEST = "3.3.1", "3.3.1"


def _require_tested_version():
    version = _paddle_framework.__version__
    numbers = [tuple(int(part) for part in v.split("+")[0].split(".")[:3] if part.isdigit())
               for v in (OLDEST, version, NEWEST)]
    if not numbers[0] <= numbers[1] <= numbers[2]:
        raise ImportError(
            f"fge.paddle works with paddlepaddle {OLDEST} to {NEWEST}; {version} is installed: "
            f"pip install paddlepaddle=={NEWEST}"
        )


def _register_kernels():
    """Once per process. Paddle's C interface is in a library that its Python extension depends on."""
    from fge import _paddle

    extension = ctypes.CDLL(_paddle_framework.base.libpaddle.__file__, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    try:
        _paddle.register(extension._handle)
    except LookupError as error:
        raise ImportError(f"fge.paddle can't register its kernels: {error}") from error


_require_tested_version()
_register_kernels()

from fge._paddle_front import install as _install  # noqa: E402
from fge._paddle_front import linear_act  # noqa: E402

_install()

__all__ = ["linear_act"]
