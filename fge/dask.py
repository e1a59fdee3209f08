"""The operator on dask arrays: chunks of rows (and of columns) go through it one by one, on any scheduler.

    import fge.dask
    out, reserve = fge.dask.fused_gemm_epilogue(x, y, bias, activation="gelu")

x is cut along its rows, y and bias, where they are dask arrays, along N. Nothing is computed until it is asked for.
dask schedules, retries and ships the chunks; a task is one call of the operator, which uses as many threads as it
does elsewhere: `FGE_NUM_THREADS`, or `OMP_NUM_THREADS`, which dask.distributed sets to 1 in the processes of its
workers. With several threads in one process (the threaded scheduler, ``threads_per_worker``) set
`FGE_NUM_THREADS=1` unless chunks are few.
"""

from functools import partial

import numpy as np

import fge

try:
    import dask.array as da
    from dask import delayed
except ImportError as error:
    raise ImportError(
        f"fge.dask needs dask, which can't be imported ({error}): pip install dask[array]"
    ) from error

__all__ = ["fused_gemm_epilogue", "fused_gemm_epilogue_grad"]

_SUMMED_AT_ONCE = 4  # partial sums that meet in one task of the tree


def fused_gemm_epilogue(
    x, y, bias=None, trans_x=False, trans_y=False, activation="none", *, save_reserve=True
):
    """out = act(op(x) @ op(y) + bias), lazily, one task for each chunk of out.

    Parameters
    ----------
    x : dask array [M, K], or [K, M] with trans_x=True, cut along M. Chunks along K are put together first
    y : dask or numpy array [K, N], or [N, K] with trans_y=True; out is cut along N as y is
    bias : dask or numpy array [N], or None
    activation, save_reserve : as in `fge.fused_gemm_epilogue`

    Returns
    -------
    out : dask array [M, N] of x's dtype
    reserve : dask array with a block for each of out, for `fused_gemm_epilogue_grad`; None where nothing is kept.
        For activations that reserve bits a block is uint8 [rows, 16 * ceil(columns / 128)]: where chunks of N are
        multiples of 128, the whole is the reserve that `fge.fused_gemm_epilogue` makes of the whole

    Raises
    ------
    TypeError, ValueError : where x isn't a dask array, and for ranks, shapes, dtypes and activations, at once; the
        errors of `fge.fused_gemm_epilogue` when a chunk is computed
    """
    problem = _Problem(x, y, bias, trans_x, trans_y)
    kind = fge.reserve_kind(activation)
    keep = save_reserve and kind in ("z", "bits")
    call = delayed(
        partial(_forward, trans_x=trans_x, trans_y=trans_y, activation=activation, keep=keep),
        pure=True,
        nout=2,
    )
    results = [
        [call(rows, columns, part) for columns, part in zip(problem.y_blocks, problem.bias_blocks)]
        for rows in problem.x_blocks
    ]
    out = _assembled([[one[0] for one in row] for row in results], problem.out_shapes, x.dtype)
    if not save_reserve or kind == "none":
        return out, None
    if kind == "out":
        return out, out
    if kind == "z":
        shapes, dtype = problem.out_shapes, x.dtype
    else:
        shapes = [[fge.relu_bits_shape(*shape) for shape in row] for row in problem.out_shapes]
        dtype = np.dtype(np.uint8)
    return out, _assembled([[one[1] for one in row] for row in results], shapes, dtype)


def fused_gemm_epilogue_grad(
    x, y, reserve, out_grad, trans_x=False, trans_y=False, activation="none", *, needs=(True, True, True)
):
    """Gradients of `fused_gemm_epilogue`: (x_grad, y_grad, bias_grad), lazily; None for those that `needs` leaves out.

    y_grad and bias_grad are sums over the chunks of rows, and x_grad over those of columns: partial sums meet in a
    tree, in an order that depends on the chunks alone, in float32 for half types, and are rounded once.

    Parameters
    ----------
    x, y, trans_x, trans_y, activation : as in the forward, cut in the same way
    reserve : what the forward returned
    out_grad : dask array [M, N], cut as out is (other chunks are cut anew)

    Raises
    ------
    TypeError, ValueError : as in the forward, and where the reserve is missing or has other blocks than out
    """
    problem = _Problem(x, y, None, trans_x, trans_y)
    kind = fge.reserve_kind(activation)
    _check_dask(out_grad, "out_grad")
    if out_grad.shape != problem.out_shape:
        raise ValueError(
            f"out_grad has shape {out_grad.shape}; it must have out's, {problem.out_shape}, to match x of shape "
            f"{x.shape} and y of shape {y.shape}"
        )
    needs = tuple(bool(need) for need in needs)
    if len(needs) != 3:
        raise ValueError(f"needs has {len(needs)} values; it must have three, for x, y and bias")
    grads = out_grad.rechunk(problem.out_chunks).to_delayed()
    if kind == "none":
        reserves = [[None] * grads.shape[1]] * grads.shape[0]
    elif reserve is None:
        raise ValueError(
            f"activation {activation!r} needs the reserve that the forward returned; got None (was it called with "
            "save_reserve=False?)"
        )
    else:
        _check_dask(reserve, "reserve")
        if reserve.numblocks != grads.shape:
            raise ValueError(
                f"reserve has {reserve.numblocks} blocks; it must have those of out, {grads.shape}: x and y must be "
                "cut as they were in the forward"
            )
        reserves = reserve.to_delayed()
    call = delayed(
        partial(_backward, trans_x=trans_x, trans_y=trans_y, activation=activation, needs=needs),
        pure=True,
        nout=3,
    )
    parts = [
        [call(rows, columns, reserves[i][j], grads[i][j]) for j, columns in enumerate(problem.y_blocks)]
        for i, rows in enumerate(problem.x_blocks)
    ]
    x_grad = y_grad = bias_grad = None
    if needs[0]:
        shapes = [(m, problem.k) for m in problem.out_chunks[0]]
        blocks = [_tree_sum([one[0] for one in row], x.dtype) for row in parts]
        blocks, shapes = (
            ([blocks], [[s[::-1] for s in shapes]])
            if trans_x
            else ([[b] for b in blocks], [[s] for s in shapes])
        )
        x_grad = _assembled(blocks, shapes, x.dtype)
    columns = list(zip(*parts))
    if needs[1]:
        shapes = [(problem.k, n) for n in problem.out_chunks[1]]
        blocks = [_tree_sum([one[1] for one in column], x.dtype) for column in columns]
        blocks, shapes = (
            ([[b] for b in blocks], [[s[::-1]] for s in shapes]) if trans_y else ([blocks], [shapes])
        )
        y_grad = _assembled(blocks, shapes, x.dtype)
    if needs[2]:
        blocks = [_tree_sum([one[2] for one in column], x.dtype) for column in columns]
        bias_grad = da.concatenate(
            [da.from_delayed(block, (n,), x.dtype) for block, n in zip(blocks, problem.out_chunks[1])]
        )
    return x_grad, y_grad, bias_grad


# ---- What a task does ----------------------------------------------------------------------------------------------


def _forward(x, y, bias, *, trans_x, trans_y, activation, keep):
    return fge.fused_gemm_epilogue(x, y, bias, trans_x, trans_y, activation, save_reserve=keep)


def _backward(x, y, reserve, out_grad, *, trans_x, trans_y, activation, needs):
    """The block's part of each gradient; of half types in float32, to be rounded after the sum."""
    into = (None, None, None)
    if x.dtype.itemsize == 2:
        shapes = (x.shape, y.shape, (out_grad.shape[1],))
        into = tuple(np.zeros(shape, np.float32) if need else None for shape, need in zip(shapes, needs))
    return fge.fused_gemm_epilogue_grad(
        x, y, reserve, out_grad, trans_x, trans_y, activation, needs=needs, accumulate_into=into
    )


def _sum(parts):
    total = parts[0] + parts[1] if len(parts) > 1 else parts[0]
    for part in parts[2:]:
        total += part
    return total


def _tree_sum(parts, dtype):
    while len(parts) > 1:
        groups = [parts[i : i + _SUMMED_AT_ONCE] for i in range(0, len(parts), _SUMMED_AT_ONCE)]
        parts = [delayed(_sum, pure=True)(group) for group in groups]
    return delayed(np.ndarray.astype, pure=True)(parts[0], dtype, copy=False)


# ---- Chunks --------------------------------------------------------------------------------------------------------


def _check_dask(array, name):
    if not isinstance(array, da.Array):
        raise TypeError(f"{name} is a {type(array).__name__}; it must be a dask array")


def _assembled(blocks, shapes, dtype):
    """A dask array of delayed blocks in rows and columns."""
    return da.block(
        [[da.from_delayed(block, shape, dtype) for block, shape in zip(*row)] for row in zip(blocks, shapes)]
    )


class _Problem:
    """The checked shapes of x, y and bias, and their blocks as delayed objects."""

    def __init__(self, x, y, bias, trans_x, trans_y):
        _check_dask(x, "x")
        for name, operand, rank in (("x", x, 2), ("y", y, 2), ("bias", bias, 1)):
            if operand is None:
                continue
            if not isinstance(operand, (da.Array, np.ndarray)):
                raise TypeError(f"{name} is a {type(operand).__name__}; it must be a dask or numpy array")
            if operand.ndim != rank:
                hint = f": x.reshape(-1, {x.shape[-1]})" if name == "x" and x.ndim > 2 else ""
                raise ValueError(f"{name} has shape {operand.shape}; it must have rank {rank}{hint}")
            if np.isnan(np.sum([np.nan if s is None else s for s in operand.shape])):
                raise ValueError(f"{name} has chunks of unknown size: {name}.compute_chunk_sizes()")
        # What a chunk would be refused for is refused here, by the operator itself, with no rows and columns.
        probe = [np.empty((0, 0), x.dtype), np.empty((0, 0), y.dtype)]
        fge.fused_gemm_epilogue(*probe, None if bias is None else np.empty(0, bias.dtype))
        rows, k = x.shape[::-1] if trans_x else x.shape
        k_of_y, columns = y.shape[::-1] if trans_y else y.shape
        if k != k_of_y:
            raise ValueError(
                f"x has shape {x.shape} and y has shape {y.shape}: K is {k} in x and {k_of_y} in y"
            )
        if bias is not None and bias.shape != (columns,):
            raise ValueError(
                f"bias has shape {bias.shape}; it must have shape (N,) = ({columns},) to match y of shape {y.shape}"
            )
        self.k, self.out_shape = k, (rows, columns)
        x = x.rechunk({0 if trans_x else 1: -1})
        self.x_blocks = list(x.to_delayed().ravel())
        along_n = 0 if trans_y else 1
        if isinstance(y, da.Array):
            y = y.rechunk({1 - along_n: -1})
            chunks_of_n, self.y_blocks = y.chunks[along_n], list(y.to_delayed().ravel())
        else:
            chunks_of_n, self.y_blocks = (columns,), [delayed(y, pure=True)]
        self.bias_blocks = [None] * len(chunks_of_n)
        if isinstance(bias, da.Array):
            self.bias_blocks = list(bias.rechunk((chunks_of_n,)).to_delayed())
        elif bias is not None:
            ends = np.cumsum(chunks_of_n)
            self.bias_blocks = [bias[end - n : end] for end, n in zip(ends, chunks_of_n)]
        self.out_chunks = (x.chunks[1 if trans_x else 0], chunks_of_n)
        self.out_shapes = [[(m, n) for n in chunks_of_n] for m in self.out_chunks[0]]
