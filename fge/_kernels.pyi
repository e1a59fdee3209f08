from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

# float32, float64, float16 or ml_dtypes.bfloat16: what numpy's types can't say, the functions check.
_Real = TypeVar("_Real", bound=np.generic)
_Array: TypeAlias = NDArray[Any]

# --- the operator ----------------------------------------------------------------------------------------

def activations() -> tuple[str, ...]: ...
def activation_parts(activation: str) -> tuple[Any, ...]: ...
def reserve_kind(activation: str) -> Literal["none", "bits", "z", "out"]: ...
def relu_bits_shape(m: int, n: int) -> tuple[int, int]: ...

# bias and the arrays of accumulate_into may be float32 where x is a half type. A reserve is uint8 for "relu" and
# of x's dtype otherwise.
def fused_gemm_epilogue(
    x: NDArray[_Real],
    y: NDArray[_Real],
    bias: _Array | None = None,
    trans_x: bool = False,
    trans_y: bool = False,
    activation: str = "none",
    *,
    save_reserve: bool = True,
    out: NDArray[_Real] | None = None,
    residual: NDArray[_Real] | None = None,
    residual_at: Literal["z", "out"] = "z",
) -> tuple[NDArray[_Real], _Array | None]: ...
@overload
def fused_gemm_epilogue_grad(
    x: NDArray[_Real],
    y: NDArray[_Real],
    reserve: _Array | None,
    out_grad: NDArray[_Real],
    trans_x: bool = False,
    trans_y: bool = False,
    activation: str = "none",
    *,
    x_activation: str = "none",
    x_reserve: _Array | None = None,
    accumulate_into: Sequence[_Array | None] = (None, None, None),
    residual_at: Literal["z", "out"] = "z",
) -> tuple[_Array, _Array, _Array]: ...
@overload
def fused_gemm_epilogue_grad(
    x: NDArray[_Real],
    y: NDArray[_Real],
    reserve: _Array | None,
    out_grad: NDArray[_Real],
    trans_x: bool = False,
    trans_y: bool = False,
    activation: str = "none",
    *,
    needs: tuple[bool, bool, bool],
    x_activation: str = "none",
    x_reserve: _Array | None = None,
    accumulate_into: Sequence[_Array | None] = (None, None, None),
    residual_at: Literal["z", "out"] = "z",
) -> tuple[_Array | None, _Array | None, _Array | None]: ...
@overload
def fused_gemm_epilogue_grad(
    x: NDArray[_Real],
    y: NDArray[_Real],
    reserve: _Array | None,
    out_grad: NDArray[_Real],
    trans_x: bool = False,
    trans_y: bool = False,
    activation: str = "none",
    *,
    needs: tuple[bool, bool, bool, bool],
    x_activation: str = "none",
    x_reserve: _Array | None = None,
    accumulate_into: Sequence[_Array | None] = (None, None, None),
    residual_at: Literal["z", "out"] = "z",
) -> tuple[_Array | None, _Array | None, _Array | None, _Array | None]: ...
@overload
def fused_gemm_epilogue_grad(
    x: NDArray[_Real],
    y: NDArray[_Real],
    reserve: _Array | None,
    out_grad: NDArray[_Real],
    trans_x: bool = False,
    trans_y: bool = False,
    activation: str = "none",
    *,
    needs: Sequence[bool],
    x_activation: str = "none",
    x_reserve: _Array | None = None,
    accumulate_into: Sequence[_Array | None] = (None, None, None),
    residual_at: Literal["z", "out"] = "z",
) -> tuple[_Array | None, ...]: ...

# --- gated unit ------------------------------------------------------------------------------------------

def fused_glu(
    x: NDArray[_Real],
    w_gate: NDArray[_Real],
    w_up: NDArray[_Real],
    b_gate: _Array | None = None,
    b_up: _Array | None = None,
    activation: str = "silu",
    *,
    trans_w: bool = False,
    save_reserve: bool = True,
    out: NDArray[_Real] | None = None,
) -> tuple[NDArray[_Real], tuple[NDArray[_Real], NDArray[_Real]] | None]: ...
def fused_glu_grad(
    x: NDArray[_Real],
    w_gate: NDArray[_Real],
    w_up: NDArray[_Real],
    reserve: Sequence[NDArray[_Real]] | None,
    out_grad: NDArray[_Real],
    activation: str = "silu",
    *,
    trans_w: bool = False,
    needs: Sequence[bool] = (True, True, True, True, True),
) -> tuple[_Array | None, ...]: ...

# --- threads ---------------------------------------------------------------------------------------------

def get_num_threads() -> int: ...
def set_num_threads(n: int | None) -> None: ...
def threads_of_caller(n: int) -> int: ...
def restore_threads_of_caller(before: int) -> None: ...
def set_default_threads(n: int) -> None: ...
def threads_kind() -> str: ...
def share_openmp(address: int) -> None: ...

# --- engines, instruction sets, the machine -----------------------------------------------------------------

def force_engine(name: str) -> bool: ...
def force_isa(name: str) -> bool: ...
def forced() -> tuple[str, str]: ...
def isas() -> list[tuple[str, str | None]]: ...
def explain(dtype_name: str) -> tuple[str, str, str]: ...
def cache_sizes() -> dict[str, int]: ...
def blas_settle() -> tuple[str, str | None]: ...
def blas_use(routines: int, library: str | None) -> None: ...
def measure_peak(dtype_name: str = "float32", seconds: float = 0.2) -> float: ...
def convert(source: _Array, target: _Array) -> None: ...
