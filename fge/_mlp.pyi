from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

_Real = TypeVar("_Real", bound=np.generic)
_Array: TypeAlias = NDArray[Any]
_Reserve: TypeAlias = Sequence[_Array | None]

def check_checkpoint_lvl(checkpoint_lvl: int) -> None: ...
def naming(where: str) -> AbstractContextManager[None]: ...
def keeps(activation: str, checkpoint_lvl: int) -> tuple[bool, bool]: ...
def fused_mlp(
    x: NDArray[_Real],
    w1: NDArray[_Real],
    b1: _Array | None,
    w2: NDArray[_Real],
    b2: _Array | None,
    activation: str = "gelu",
    *,
    trans_w: bool = False,
    checkpoint_lvl: int = 0,
    save_reserve: bool = True,
    out: NDArray[_Real] | None = None,
) -> tuple[NDArray[_Real], tuple[_Array | None, _Array | None] | None]: ...
def fused_mlp_grad(
    x: NDArray[_Real],
    w1: NDArray[_Real],
    b1: _Array | None,
    w2: NDArray[_Real],
    reserve: _Reserve | None,
    out_grad: NDArray[_Real],
    activation: str = "gelu",
    *,
    trans_w: bool = False,
    checkpoint_lvl: int = 0,
    needs: Sequence[bool] = (True, True, True, True, True),
) -> tuple[_Array | None, ...]: ...
def activate(z: NDArray[_Real], activation: str) -> NDArray[_Real]: ...
