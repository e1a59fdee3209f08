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


cdef class _GluOperands:
    """The checked operands of a gated unit: their sizes and, once `describe` was called, how the core reads them."""
    cdef fge_activation activation
    cdef int dtype
    cdef int64_t m, n, k
    cdef bint trans_w
    cdef cnp.ndarray x, w_gate, w_up
    cdef tuple out_shape
    cdef fge_in x_in, gate_in, up_in

    def __cinit__(self, x, w_gate, w_up, activation, trans_w):
        self.x, self.trans_w = _array(x, "x"), trans_w
        self.activation = activation_checked(activation, "activation")
        _check_rank(self.x, False)
        self.dtype = _dtype_code(self.x)
        self.k = cnp.PyArray_DIM(self.x, cnp.PyArray_NDIM(self.x) - 1)
        self.m = _product(_shape(self.x)[:-1])
        self.w_gate = _weight(w_gate, "w_gate", self.x, -1, self.k, self.trans_w)
        self.n = cnp.PyArray_DIM(self.w_gate, 0 if self.trans_w else 1)
        self.w_up = _weight(w_up, "w_up", self.x, self.n, self.k, self.trans_w)
        self.out_shape = _shape(self.x)[:-1] + (self.n,)

    cdef describe(self):
        self.x = _rows(_readable(self.x), False)
        self.w_gate, self.w_up = _readable(self.w_gate), _readable(self.w_up)
        self.x_in = _matrix(self.x, False)
        self.gate_in, self.up_in = _matrix(self.w_gate, self.trans_w), _matrix(self.w_up, self.trans_w)


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
    cdef _GluOperands of = _GluOperands(x, w_gate, w_up, activation, trans_w)
    cdef cnp.dtype descr = _dtype(of.x)
    cdef cnp.ndarray bg = _bias(b_gate, "b_gate", of.x), bu = _bias(b_up, "b_up", of.x), zg = None, zu = None
    cdef str to_match = "to match w_gate"
    _check_bias_shape(bg, "b_gate", of.n, to_match)
    _check_bias_shape(bu, "b_up", of.n, to_match)
    cdef cnp.ndarray oa, target
    if out is None:
        oa = np.empty(of.out_shape, descr)
        target = oa.reshape(of.m, of.n)
    else:
        oa = _given_out(out, of.x, of.out_shape,
                        (("x", of.x), ("w_gate", of.w_gate), ("w_up", of.w_up), ("b_gate", bg), ("b_up", bu)))
        target = _rows_in_place(oa, of.m, of.n)
    cdef bint in_place = target is not None
    if not in_place:
        target = np.empty((of.m, of.n), descr)
    cdef fge_glu_forward_args args
    memset(&args, 0, sizeof(args))
    if save_reserve:
        zg, zu = np.empty(of.out_shape, descr), np.empty(of.out_shape, descr)
        args.z_gate, args.z_up = cnp.PyArray_DATA(zg), cnp.PyArray_DATA(zu)
    of.describe()
    args.activation, args.dtype, args.m, args.n, args.k = of.activation, of.dtype, of.m, of.n, of.k
    args.x, args.w_gate, args.w_up = of.x_in, of.gate_in, of.up_in
    bg = _describe_bias(bg, &args.b_gate, &args.b_gate_dtype, &args.b_gate_stride)
    bu = _describe_bias(bu, &args.b_up, &args.b_up_dtype, &args.b_up_stride)
    args.out = cnp.PyArray_DATA(target)
    args.out_row_stride = cnp.PyArray_STRIDE(target, 0) // descr.itemsize
    cdef fge_status status
    with nogil:
        status = fge_glu_forward(&args)
    if status != FGE_OK:
        _raise_status(status)
    if not in_place:
        np.copyto(oa, (<object>target).reshape(of.out_shape))
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
    cdef _GluOperands of = _GluOperands(x, w_gate, w_up, activation, trans_w)
    cdef cnp.dtype descr = _dtype(of.x)
    cdef cnp.ndarray da = _array(out_grad, "out_grad"), zg, zu
    _check_same_dtype(of.x, da, "out_grad")
    _check_shape(da, "out_grad", of.out_shape, "out's")
    if reserve is None:
        raise ValueError("fused_glu_grad needs the reserve that the forward returned; got None (was it called with "
                         "save_reserve=False?)")
    if not isinstance(reserve, (tuple, list)) or len(reserve) != 2:
        raise TypeError(f"reserve is a {type(reserve).__name__}; it must be the pair (z_gate, z_up) that the forward returned")
    pair = []
    for name, z in zip(("reserve[0]", "reserve[1]"), reserve):
        array = _array(z, name)
        _check_same_dtype(of.x, array, name)
        _check_shape(array, name, of.out_shape, "out's")
        pair.append(np.ascontiguousarray(_readable(array)))
    zg, zu = pair
    wanted = _values(needs, "needs", 5, 5)
    cdef tuple shapes = (_shape(of.x), _shape(of.w_gate), _shape(of.w_up), (of.n,), (of.n,))
    of.describe()
    da = _rows(_readable(da), False)
    cdef fge_glu_backward_args args
    memset(&args, 0, sizeof(args))
    args.activation, args.dtype, args.m, args.n, args.k = of.activation, of.dtype, of.m, of.n, of.k
    args.x, args.w_gate, args.w_up, args.out_grad = of.x_in, of.gate_in, of.up_in, _matrix(da, False)
    args.z_gate, args.z_up = cnp.PyArray_DATA(zg), cnp.PyArray_DATA(zu)
    cdef cnp.ndarray gate_grad = np.empty((of.m, of.n), descr), up_grad = np.empty((of.m, of.n), descr)
    args.gate_grad, args.up_grad = cnp.PyArray_DATA(gate_grad), cnp.PyArray_DATA(up_grad)
    args.w_grads_transposed = of.trans_w
    grads = [np.empty(shape, descr) if need else None for shape, need in zip(shapes, wanted)]
    args.x_grad = _packed_gradient(grads[0], of.k)
    args.w_gate_grad = _packed_gradient(grads[1], of.k if of.trans_w else of.n)
    args.w_up_grad = _packed_gradient(grads[2], of.k if of.trans_w else of.n)
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
