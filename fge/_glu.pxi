# The gated unit on numpy arrays. Part of _kernels.pyx, whose checks and helpers it uses.

cdef cnp.ndarray _weight(object w, str name, cnp.ndarray x, int64_t n, int64_t k, bint trans_w):
    """w_up, of the shape that w_gate has, or either of any n (n < 0) that fits k."""
    cdef cnp.ndarray array = _array(w, name)
    _check_same_dtype(x, array, name)
    if cnp.PyArray_NDIM(array) != 2:
        raise ValueError(f"{name} has shape {_shape(array)}; it must have rank 2, " + ("[N, K]" if trans_w else "[K, N]"))
    cdef int64_t own_k = cnp.PyArray_DIM(array, 1 if trans_w else 0), own_n = cnp.PyArray_DIM(array, 0 if trans_w else 1)
    if own_k != k or (n >= 0 and own_n != n):
        wanted = (own_n if n < 0 else n, k)
        raise ValueError(f"{name} has shape {_shape(array)}; it must have shape {'[N, K]' if trans_w else '[K, N]'} = "
                         f"{wanted if trans_w else wanted[::-1]} to match x of shape {_shape(x)}"
                         + (" and w_gate" if n >= 0 else ""))
    return array


cdef cnp.ndarray _bias(object bias, str name, cnp.ndarray x, int64_t n):
    cdef cnp.ndarray array
    if bias is None:
        return None
    array = _array(bias, name)
    if _dtype_code(array) != _dtype_code(x) and not (_dtype_code(array) == FGE_FLOAT32 and cnp.PyArray_ITEMSIZE(x) == 2):
        raise TypeError(f"{name} has dtype {array.dtype} and x has dtype {x.dtype}; it must have x's dtype"
                        + (" or float32" if cnp.PyArray_ITEMSIZE(x) == 2 else ""))
    _check_shape(array, name, (n,), "(N,)")
    return array


cdef _check_rank(cnp.ndarray x):
    if cnp.PyArray_NDIM(x) < 2:
        raise ValueError(f"x has shape {_shape(x)}; it must have rank 2 or more, [.., M, K]")


def fused_glu(x, w_gate, w_up, b_gate=None, b_up=None, activation="silu", *, trans_w=False, save_reserve=True, out=None):
    """out = act(x @ w_gate + b_gate) * (x @ w_up + b_up), in one pass over x: SwiGLU, GeGLU and their like.

    (N. Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202.)

    Parameters
    ----------
    x : array [.., M, K]; rank 2 or more, leading axes are batch rows
    w_gate, w_up : arrays [K, N], or [N, K] with trans_w=True
    b_gate, b_up : arrays [N], or None
    activation : as in `fused_gemm_epilogue`
    save_reserve : False returns reserve=None and writes nothing extra
    out : array [.., M, N] to write to, or None for a new one

    Dtypes, strides and rounding are those of `fused_gemm_epilogue`: both factors are summed, activated and multiplied in the
    accumulator's type, and rounded once.

    Returns
    -------
    out : array [.., M, N] of x's dtype
    reserve : (z_gate, z_up), the two pre-activations, each of out's dtype and shape; or None

    Raises
    ------
    TypeError, ValueError, MemoryError : as `fused_gemm_epilogue`; nothing was written
    """
    cdef cnp.ndarray xa = _array(x, "x"), ga, ua, bg, bu, oa, target, zg = None, zu = None
    cdef bint tw = trans_w, in_place = True
    cdef fge_glu_forward_args args
    memset(&args, 0, sizeof(args))
    args.activation = activation_checked(activation, "activation")
    _check_rank(xa)
    cdef tuple shape = _shape(xa)
    args.k = cnp.PyArray_DIM(xa, cnp.PyArray_NDIM(xa) - 1)
    args.m = _product(shape[:-1])
    ga = _weight(w_gate, "w_gate", xa, -1, args.k, tw)
    args.n = cnp.PyArray_DIM(ga, 0 if tw else 1)
    ua = _weight(w_up, "w_up", xa, args.n, args.k, tw)
    bg, bu = _bias(b_gate, "b_gate", xa, args.n), _bias(b_up, "b_up", xa, args.n)
    cdef cnp.dtype descr = _dtype(xa)
    args.dtype = _dtype_code(xa)
    shape = shape[:-1] + (args.n,)
    if out is None:
        oa = np.empty(shape, descr)
        target = oa.reshape(args.m, args.n)
    else:
        oa = _array(out, "out")
        _check_same_dtype(xa, oa, "out")
        _check_shape(oa, "out", shape, "[.., M, N]")
        _check_written(oa, "out", (("x", xa), ("w_gate", ga), ("w_up", ua), ("b_gate", bg), ("b_up", bu)))
        target = _rows_in_place(oa, args.m, args.n)
        if target is None:
            in_place = False
            target = np.empty((args.m, args.n), descr)
    if save_reserve:
        zg, zu = np.empty(shape, descr), np.empty(shape, descr)
        args.z_gate, args.z_up = cnp.PyArray_DATA(zg), cnp.PyArray_DATA(zu)
    xa, ga, ua = _rows(_readable(xa), False), _readable(ga), _readable(ua)
    args.x, args.w_gate, args.w_up = _matrix(xa, False), _matrix(ga, tw), _matrix(ua, tw)
    if bg is not None:
        bg = _readable(bg)
        args.b_gate, args.b_gate_dtype = cnp.PyArray_DATA(bg), _dtype_code(bg)
        args.b_gate_stride = cnp.PyArray_STRIDE(bg, 0) // cnp.PyArray_ITEMSIZE(bg)
    if bu is not None:
        bu = _readable(bu)
        args.b_up, args.b_up_dtype = cnp.PyArray_DATA(bu), _dtype_code(bu)
        args.b_up_stride = cnp.PyArray_STRIDE(bu, 0) // cnp.PyArray_ITEMSIZE(bu)
    args.out = cnp.PyArray_DATA(target)
    args.out_row_stride = cnp.PyArray_STRIDE(target, 0) // descr.itemsize
    cdef fge_status status
    with nogil:
        status = fge_glu_forward(&args)
    if status != FGE_OK:
        _raise_status(status)
    if not in_place:
        np.copyto(oa, (<object>target).reshape(shape))
    return oa, (zg, zu) if save_reserve else None


def fused_glu_grad(x, w_gate, w_up, reserve, out_grad, activation="silu", *, trans_w=False, needs=(True,) * 5):
    """Gradients of `fused_glu(x, w_gate, w_up, b_gate, b_up, activation)`:

        dZ_up = out_grad * act(z_gate);  dZ_gate = out_grad * z_up * act'(z_gate), each rounded to x's dtype
        x_grad = dZ_gate @ w_gate^T + dZ_up @ w_up^T;  w_gate_grad = x^T @ dZ_gate;  b_gate_grad = sum of dZ_gate over rows;
        and those of w_up and b_up alike

    Parameters
    ----------
    x, w_gate, w_up, activation, trans_w : as in the forward
    reserve : (z_gate, z_up) as the forward returned it
    out_grad : array of out's shape and dtype, any strides
    needs : which of the five gradients to compute; the others are None

    Returns
    -------
    (x_grad, w_gate_grad, w_up_grad, b_gate_grad, b_up_grad), each in the layout of its input

    Raises
    ------
    TypeError, ValueError, MemoryError : as in the forward; ValueError where the reserve is missing
    """
    cdef cnp.ndarray xa = _array(x, "x"), ga, ua, da = _array(out_grad, "out_grad"), zg, zu
    cdef bint tw = trans_w
    cdef fge_glu_backward_args args
    memset(&args, 0, sizeof(args))
    args.activation = activation_checked(activation, "activation")
    _check_rank(xa)
    _check_same_dtype(xa, da, "out_grad")
    cdef tuple x_shape = _shape(xa), shape
    args.k = cnp.PyArray_DIM(xa, cnp.PyArray_NDIM(xa) - 1)
    args.m = _product(x_shape[:-1])
    ga = _weight(w_gate, "w_gate", xa, -1, args.k, tw)
    args.n = cnp.PyArray_DIM(ga, 0 if tw else 1)
    ua = _weight(w_up, "w_up", xa, args.n, args.k, tw)
    cdef cnp.dtype descr = _dtype(xa)
    args.dtype = _dtype_code(xa)
    shape = x_shape[:-1] + (args.n,)
    _check_shape(da, "out_grad", shape, "out's")
    if reserve is None:
        raise ValueError("fused_glu_grad needs the reserve that the forward returned; got None (was it called with "
                         "save_reserve=False?)")
    if not isinstance(reserve, (tuple, list)) or len(reserve) != 2:
        raise TypeError(f"reserve is a {type(reserve).__name__}; it must be the pair (z_gate, z_up) that the forward returned")
    pair = []
    for name, z in zip(("reserve[0]", "reserve[1]"), reserve):
        array = _array(z, name)
        _check_same_dtype(xa, array, name)
        _check_shape(array, name, shape, "out's")
        pair.append(np.ascontiguousarray(_readable(array)))
    zg, zu = pair
    wanted = _values(needs, "needs", 5, 5)
    xa, ga, ua = _rows(_readable(xa), False), _readable(ga), _readable(ua)
    da = _rows(_readable(da), False)
    args.x, args.w_gate, args.w_up, args.out_grad = _matrix(xa, False), _matrix(ga, tw), _matrix(ua, tw), _matrix(da, False)
    args.z_gate, args.z_up = cnp.PyArray_DATA(zg), cnp.PyArray_DATA(zu)
    cdef cnp.ndarray gate_grad = np.empty((args.m, args.n), descr), up_grad = np.empty((args.m, args.n), descr)
    args.gate_grad, args.up_grad = cnp.PyArray_DATA(gate_grad), cnp.PyArray_DATA(up_grad)
    args.w_grads_transposed = tw
    shapes = (x_shape, _shape(ga), _shape(ua), (args.n,), (args.n,))
    grads = [np.empty(of, descr) if need else None for of, need in zip(shapes, wanted)]
    args.x_grad = _packed_gradient(grads[0], args.k)
    args.w_gate_grad = _packed_gradient(grads[1], args.k if tw else args.n)
    args.w_up_grad = _packed_gradient(grads[2], args.k if tw else args.n)
    args.b_gate_grad, args.b_up_grad = _packed_gradient(grads[3], 1), _packed_gradient(grads[4], 1)
    cdef fge_status status
    with nogil:
        status = fge_glu_backward(&args)
    if status != FGE_OK:
        _raise_status(status)
    return tuple(grads)


cdef fge_out _packed_gradient(object grad, int64_t row_stride) except *:
    cdef fge_out result
    memset(&result, 0, sizeof(result))
    if grad is not None:
        result.data = cnp.PyArray_DATA(<cnp.ndarray>grad)
        result.row_stride = row_stride
        result.dtype = _dtype_code(<cnp.ndarray>grad)
    return result
