"""numpy arrays as Paddle tensors and back, bfloat16 included, and the names of the operator's dtypes in
Paddle.
"""

import ml_dtypes
import numpy as np
import paddle

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPE_NAMES = ("float32", "float64", "float16", "bfloat16")


def tensor(array, needs_grad=False):
    """A tensor that holds a copy of `array`. Paddle takes bfloat16 as its bits."""
    array = np.ascontiguousarray(array)
    if array.dtype == BFLOAT16:
        made = paddle.to_tensor(array.view(np.uint16), dtype="bfloat16")
    else:
        made = paddle.to_tensor(array)
    made.stop_gradient = not needs_grad
    return made


def array(tensor):
    """A copy of a tensor's values in the numpy dtype of the same name."""
    values = tensor.numpy()
    return values.view(BFLOAT16) if tensor.dtype == paddle.bfloat16 else values
