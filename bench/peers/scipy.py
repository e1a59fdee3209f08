"""scipy's BLAS: the bare GEMM, without a copy."""

from __future__ import annotations

from functools import partial

from scipy.linalg import blas

from bench.inputs import Inputs
from bench.peers.libraries import blas_of
from bench.peers.work import Unavailable, Work
from bench.task import Task

DISTRIBUTION = "scipy"

_GEMM = {"float32": blas.sgemm, "float64": blas.dgemm}


def about() -> str:
    """The BLAS of its own."""
    return blas_of("scipy")


def prepare(task: Task, inputs: Inputs) -> Work:
    """out^T = y^T @ x^T: the transpose of a row-major array is the column-major one that BLAS takes."""
    if task.operation != "gemm":
        raise Unavailable("has the bare GEMM only")
    if task.dtype not in _GEMM:
        raise Unavailable(f"its BLAS has no {task.dtype} GEMM")
    return Work(partial(_GEMM[task.dtype], 1.0, inputs.y.T, inputs.x.T), lambda out: (out.T,))
