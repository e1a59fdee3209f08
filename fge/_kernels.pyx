# cython: language_level=3, freethreading_compatible=True
"""The operator on numpy arrays: checks arguments, allocates, describes the problem to the C core, runs it without the GIL."""
cimport numpy as cnp
from libc.stdint cimport int64_t
from libc.string cimport memset

import numpy as np

cnp.import_array()


cdef extern from "core/fge.h" nogil:
    int fge_activation_count()
    const char *fge_activation_name(int)
    const char *fge_activation_form(int)
    int fge_activation_parameters(int)
    const char *fge_activation_parse(const char *, fge_activation *)
    fge_reserve_kind fge_activation_reserve(int)
    fge_status fge_forward(const fge_forward_args *)
    fge_status fge_backward(const fge_backward_args *)
    fge_status fge_glu_forward(const fge_glu_forward_args *)
    fge_status fge_glu_backward(const fge_glu_backward_args *)
    int fge_get_num_threads()
    void fge_set_num_threads(int)

cdef extern from "numpy/arrayobject.h":
    object PyArray_Empty(int nd, cnp.npy_intp *dims, void *descr, int fortran)
    void *descriptor "PyArray_DESCR"(cnp.ndarray)
    int NPY_HALF, NPY_USERDEF
    bint PyArray_ISNOTSWAPPED(cnp.ndarray)
    bint PyArray_ISALIGNED(cnp.ndarray)
    bint PyArray_ISWRITEABLE(cnp.ndarray)

cdef extern from "Python.h":
    void Py_INCREF(object)


# --- for other extensions --------------------------------------------------------------------------------------------

cdef int forward(const fge_forward_args *args) noexcept nogil:
    return fge_forward(args)

cdef int backward(const fge_backward_args *args) noexcept nogil:
    return fge_backward(args)

cdef int glu_forward(const fge_glu_forward_args *args) noexcept nogil:
    return fge_glu_forward(args)

cdef int glu_backward(const fge_glu_backward_args *args) noexcept nogil:
    return fge_glu_backward(args)

cdef int activation_reserve(int id) noexcept nogil:
    return fge_activation_reserve(id)

cdef fge_activation activation_plain(const char *text) noexcept nogil:
    cdef fge_activation result
    if fge_activation_parse(text, &result) != NULL:
        result.id = -1
    return result


# --- activations -----------------------------------------------------------------------------------------------------

cdef fge_activation[64] _standard  # those of a name alone
cdef dict _activation_ids = {fge_activation_name(i).decode(): i for i in range(fge_activation_count())}
for _name, _id in _activation_ids.items():
    fge_activation_parse(_name.encode(), &_standard[<int>_id])


def activations():
    """The names that `activation=` takes, as a tuple. Some may be followed by numbers: "leaky_relu(0.2)", "clamp(0, 6)"."""
    return tuple(_activation_ids)


cdef fge_activation activation_checked(object text, str argument) except *:
    cdef fge_activation result
    cdef const char *wrong = b""
    found = _activation_ids.get(text) if isinstance(text, str) else None
    if found is not None:
        return _standard[<int>found]
    if isinstance(text, str):
        encoded = (<str>text).replace("\0", "?").encode("utf-8", "replace")
        wrong = fge_activation_parse(encoded, &result)
        if wrong == NULL:
            return result
    if wrong[0]:
        name = text.partition("(")[0]
        form = fge_activation_form(<int>_activation_ids[name]).decode()
        raise ValueError(f"{argument} is {text!r}; {form} {wrong.decode()}")
    forms = ", ".join([repr(fge_activation_form(i).decode()) for i in range(fge_activation_count())])
    raise ValueError(f"{argument} is {text!r}; it must be one of {forms}")


def activation_parts(activation):
    """("clamp", -1.0, 1.0) of "clamp(-1, 1)": the name and its numbers, those that it stands for where it is alone."""
    cdef fge_activation parsed = activation_checked(activation, "activation")
    numbers = [parsed.parameter[i] for i in range(fge_activation_parameters(parsed.id))]
    return (fge_activation_name(parsed.id).decode(), *numbers)


def reserve_kind(activation):
    """What an activation's reserve is: "none", "bits" (uint8, see `relu_bits_shape`; where the slope is 1), "z" (the
    pre-activation, in out's dtype and shape) or "out" (out itself).
    """
    return ("none", "bits", "z", "out")[<int>fge_activation_reserve(activation_checked(activation, "activation").id)]


def relu_bits_shape(m, n):
    """Shape of the RELU bits of an [m, n] output: (m, 16 * ceil(n / 128)), cuBLASLt's RELU_AUX layout.
    TypeError for sizes that aren't ints, ValueError for negative ones."""
    if not isinstance(m, (int, np.integer)) or not isinstance(n, (int, np.integer)):
        raise TypeError(f"m and n are {m!r} and {n!r}; sizes must be ints")
    if m < 0 or n < 0:
        raise ValueError(f"m and n are {m} and {n}; sizes can't be negative")
    return (m, fge_bits_row_bytes(n))


# --- dtypes ----------------------------------------------------------------------------------------------------------

cdef object _bfloat16_type = None  # ml_dtypes.bfloat16 once an array of it was seen: ml_dtypes is optional
cdef tuple _dtype_names = ("float32", "float64", "float16", "bfloat16")


cdef cnp.dtype _dtype(cnp.ndarray a):
    return <cnp.dtype>descriptor(a)


cdef int _dtype_code(cnp.ndarray a) except -2:
    """fge_dtype of an array, -1 for every other dtype."""
    global _bfloat16_type
    cdef int number = cnp.PyArray_TYPE(a)
    if number == cnp.NPY_FLOAT:
        return FGE_FLOAT32
    if number == cnp.NPY_DOUBLE:
        return FGE_FLOAT64
    if number == NPY_HALF:
        return FGE_FLOAT16
    if number >= NPY_USERDEF:
        kind = (<object>_dtype(a)).type
        if kind is _bfloat16_type:
            return FGE_BFLOAT16
        if kind.__name__ == "bfloat16" and cnp.PyArray_ITEMSIZE(a) == 2:
            if _bfloat16_type is None:  # set once: without an interpreter's lock others read it
                _bfloat16_type = kind
            return FGE_BFLOAT16
    return -1


cdef cnp.ndarray _array(object a, str name):
    """`a` as an array of a supported dtype with whole-element strides (a copy where it is misaligned)."""
    if type(a) is not np.ndarray:
        if not isinstance(a, np.ndarray):
            raise TypeError(f"{name} is a {type(a).__name__}; it must be a numpy array")
        if isinstance(a, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array, whose mask would be lost; pass {name}.filled(value)")
    cdef cnp.ndarray array = <cnp.ndarray>a
    if not PyArray_ISNOTSWAPPED(array):
        raise TypeError(f"{name} has dtype {array.dtype.str!r}, which is byte-swapped; it must be in native byte order "
                        f"({name}.astype({array.dtype.newbyteorder('=').name!r}))")
    if _dtype_code(array) < 0:
        raise TypeError(f"{name} has dtype {array.dtype}; it must be float32, float64, float16 or bfloat16")
    return array


cdef cnp.ndarray _readable(cnp.ndarray array):
    """Itself, or a copy where its elements don't lie at multiples of their size."""
    if PyArray_ISALIGNED(array):
        return array
    return np.array(array, order="C", subok=False)


cdef cnp.ndarray _empty(int nd, cnp.npy_intp *dims, cnp.dtype descr):
    Py_INCREF(descr)  # PyArray_Empty takes one
    return PyArray_Empty(nd, dims, <void *>descr, 0)


# --- shapes ----------------------------------------------------------------------------------------------------------

cdef struct Sizes:
    int64_t m, n, k


cdef fge_in _matrix(cnp.ndarray a, bint transposed) noexcept:
    """A rank-2 array as the product sees it, strides in elements."""
    cdef fge_in result
    cdef int64_t size = cnp.PyArray_ITEMSIZE(a)
    result.data = cnp.PyArray_DATA(a)
    result.row_stride = cnp.PyArray_STRIDE(a, 1 if transposed else 0) // size
    result.col_stride = cnp.PyArray_STRIDE(a, 0 if transposed else 1) // size
    return result


cdef tuple _shape(cnp.ndarray a):
    return (<object>a).shape


cdef cnp.ndarray _rows(cnp.ndarray a, bint transposed):
    """[.., M, K] (or [.., K, M] where transposed) as one [rows, K]: a view where the strides allow it."""
    view = a.swapaxes(-1, -2) if transposed else a
    return view.reshape(_product(view.shape[:-1]), view.shape[-1])


cdef _check_same_dtype(cnp.ndarray x, cnp.ndarray other, str name):
    if cnp.PyArray_TYPE(x) != cnp.PyArray_TYPE(other):
        raise TypeError(f"x has dtype {x.dtype} and {name} has dtype {other.dtype}; they must be the same")


cdef _check_rank(cnp.ndarray x, bint trans_x):
    if cnp.PyArray_NDIM(x) < 2:
        raise ValueError(f"x has shape {_shape(x)}; it must have rank 2 or more, [.., M, K]"
                         + (" ([.., K, M] with trans_x=True)" if trans_x else ""))


cdef Sizes _sizes(cnp.ndarray x, cnp.ndarray y, bint trans_x, bint trans_y) except *:
    """m counts all rows. Raises where ranks or K don't fit."""
    cdef Sizes s
    cdef int rank = cnp.PyArray_NDIM(x), axis
    _check_rank(x, trans_x)
    if cnp.PyArray_NDIM(y) != 2:
        raise ValueError(f"y has shape {_shape(y)}; it must have rank 2, "
                         + ("[N, K] with trans_y=True" if trans_y else "[K, N]"))
    s.k = cnp.PyArray_DIM(x, rank - 2 if trans_x else rank - 1)
    s.m = cnp.PyArray_DIM(x, rank - 1 if trans_x else rank - 2)
    for axis in range(rank - 2):
        s.m *= cnp.PyArray_DIM(x, axis)
    s.n = cnp.PyArray_DIM(y, 0 if trans_y else 1)
    cdef int64_t y_k = cnp.PyArray_DIM(y, 1 if trans_y else 0)
    if y_k != s.k:
        raise ValueError(f"x of shape {_shape(x)}{' with trans_x=True' if trans_x else ''} has K = {s.k} and y of shape "
                         f"{_shape(y)}{' with trans_y=True' if trans_y else ''} has K = {y_k}; they must be the same")
    return s


cdef tuple _out_shape(cnp.ndarray x, bint trans_x, int64_t n):
    shape = _shape(x)
    return shape[:-2] + (shape[-1] if trans_x else shape[-2], n)


cdef _check_shape(cnp.ndarray a, str name, tuple wanted, str meaning):
    if _shape(a) != wanted:
        raise ValueError(f"{name} has shape {_shape(a)}; it must have shape {meaning} = {wanted}")


cdef bint _nested(cnp.ndarray a) noexcept:
    """No two elements share memory, by the strides: each axis steps over all that smaller steps span."""
    cdef list axes
    if cnp.PyArray_SIZE(a) <= 1:
        return True
    shape, strides = (<object>a).shape, (<object>a).strides
    axes = sorted((abs(stride), length) for stride, length in zip(strides, shape) if length > 1)
    span = (<object>a).itemsize
    for stride, length in axes:
        if stride < span:
            return False
        span = stride * length
    return True


cdef bint _share(cnp.ndarray a, cnp.ndarray b):
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=100000)
    except np.exceptions.TooHardError:
        return True


cdef _check_written(cnp.ndarray a, str name, tuple others):
    """`a` is about to be written: writable, without overlap in itself or with `others`, pairs of a name and an array."""
    if not PyArray_ISWRITEABLE(a):
        raise ValueError(f"{name} is read-only; it must be writable")
    if not _nested(a):
        raise ValueError(f"{name} overlaps itself (shape {_shape(a)}, strides {(<object>a).strides}); its elements must be "
                         f"apart in memory")
    for other_name, other in others:
        if other is not None and _share(a, other):
            raise ValueError(f"{name} overlaps {other_name}; it must be memory of its own")


cdef cnp.ndarray _given_out(object out, cnp.ndarray x, tuple shape, tuple inputs):
    """The caller's array for the result, checked."""
    cdef cnp.ndarray array = _array(out, "out")
    _check_same_dtype(x, array, "out")
    _check_shape(array, "out", shape, "[.., M, N]")
    _check_written(array, "out", inputs)
    return array


# --- biases ----------------------------------------------------------------------------------------------------------

cdef cnp.ndarray _bias(object bias, str name, cnp.ndarray x):
    """A bias of x's dtype, or float32 beside a half type; None for None."""
    if bias is None:
        return None
    cdef cnp.ndarray array = _array(bias, name)
    cdef bint half = cnp.PyArray_ITEMSIZE(x) == 2
    cdef int dtype = _dtype_code(array)
    if dtype != _dtype_code(x) and not (dtype == FGE_FLOAT32 and half):
        raise TypeError(f"{name} has dtype {array.dtype} and x has dtype {x.dtype}; {name} must have x's dtype"
                        + (" or float32" if half else ""))
    return array


cdef bint _fits_bias(cnp.ndarray bias, int64_t n) noexcept:
    return bias is None or (cnp.PyArray_NDIM(bias) == 1 and cnp.PyArray_DIM(bias, 0) == n)


cdef _check_bias_shape(cnp.ndarray bias, str name, int64_t n, str to_match):
    if not _fits_bias(bias, n):
        raise ValueError(f"{name} has shape {_shape(bias)}; it must have shape (N,) = ({n},) {to_match}")


cdef cnp.ndarray _describe_bias(cnp.ndarray bias, const void **data, int *dtype, int64_t *stride):
    """Fills in how the core reads a bias, if there is one; answers the array that owns the memory."""
    if bias is not None:
        bias = _readable(bias)
        data[0] = cnp.PyArray_DATA(bias)
        dtype[0] = _dtype_code(bias)
        stride[0] = cnp.PyArray_STRIDE(bias, 0) // cnp.PyArray_ITEMSIZE(bias)
    return bias


cdef _raise_status(fge_status status):
    from fge import _settings
    if status == FGE_NO_MEMORY:
        raise MemoryError("fge could not allocate its scratch memory")
    if status == FGE_NO_ENGINE:
        raise RuntimeError(_settings.engine_error())
    raise SystemError(f"fge's core refused arguments that passed its checks (status {<int>status}); please report this")


# --- forward ---------------------------------------------------------------------------------------------------------

def fused_gemm_epilogue(x, y, bias=None, trans_x=False, trans_y=False, activation="none", *, save_reserve=True, out=None,
                        residual=None, residual_at="z"):
    """out = act(op(x) @ op(y) + bias) and the reserve that `fused_gemm_epilogue_grad` needs, in one pass.

    Parameters
    ----------
    x : array [.., M, K], or [.., K, M] with trans_x=True; rank 2 or more, leading axes are batch rows
    y : array [K, N], or [N, K] with trans_y=True
    bias : array [N], or None
    activation : one of `fge.activations()`. "gelu" is the tanh form (as in cuBLASLt and Paddle), "gelu_erf" the exact one
        (PyTorch's default). "leaky_relu(0.2)" and "clamp(0, 6)" carry numbers; the names alone stand for 0.01 and -1, 1
    save_reserve : False returns reserve=None and writes nothing extra
    out : array [.., M, N] to write to, or None for a new one
    residual : array of out's shape and of x's dtype, or None
    residual_at : "z": out = act(op(x) @ op(y) + bias + residual); "out": out = act(op(x) @ op(y) + bias) + residual

    x and y are float32, float64, float16 or bfloat16 (ml_dtypes), and of the same dtype; bias is of that dtype too, or
    float32 where x is a half type. Strides may be anything. float16 and bfloat16 are summed in float32 and rounded once.

    Returns
    -------
    out : array [.., M, N] of x's dtype
    reserve : what `fge.reserve_kind(activation)` names. "none": None. "bits" ("relu" and its like): uint8 [M of all rows,
        16 * ceil(N / 128)], bit n % 8 (least significant first) of byte n // 8 is z > 0, for "relu6" and "clamp" lo < z < hi
        (the layout of cuBLASLt's RELU_AUX). "z" ("gelu" and its like): z itself, in out's dtype and shape, any residual
        at "z" included. "out" ("sigmoid", "tanh"): act(z), which is out itself unless a residual was added to that

    Raises
    ------
    TypeError : an argument is not an array, or of another dtype
    ValueError : shapes don't fit, the activation doesn't exist, `out` can't be written or overlaps an input or itself
    MemoryError : scratch memory could not be allocated; nothing was written
    """
    cdef cnp.ndarray xa = _array(x, "x"), ya = _array(y, "y"), ba = None, oa, target, ra = None
    cdef fge_activation act = activation_checked(activation, "activation")
    cdef bint tx = trans_x, ty = trans_y, in_place = True, at_out = False
    _check_same_dtype(xa, ya, "y")
    cdef cnp.dtype descr = _dtype(xa)
    cdef fge_forward_args args
    memset(&args, 0, sizeof(args))
    args.dtype = _dtype_code(xa)
    args.activation = act
    at_out = _is_at_out(residual_at)
    ba = _bias(bias, "bias", xa)
    cdef Sizes s = _sizes(xa, ya, tx, ty)
    args.m, args.n, args.k = s.m, s.n, s.k
    if not _fits_bias(ba, s.n):
        _check_bias_shape(ba, "bias", s.n, f"to match y of shape {_shape(ya)}" + (" with trans_y=True" if ty else ""))

    cdef cnp.npy_intp dims[2]
    cdef int rank = cnp.PyArray_NDIM(xa)
    cdef cnp.ndarray added = None
    if residual is not None:
        added = _array(residual, "residual")
        _check_same_dtype(xa, added, "residual")
        _check_shape(added, "residual", _out_shape(xa, tx, s.n), "[.., M, N]")
    if out is not None:
        oa = _given_out(out, xa, _out_shape(xa, tx, s.n), (("x", xa), ("y", ya), ("bias", ba), ("residual", added)))
        target = _rows_in_place(oa, s.m, s.n)
        if target is None:
            in_place = False
            target = np.empty((s.m, s.n), descr)
    elif rank == 2:
        dims[0] = s.m
        dims[1] = s.n
        oa = target = _empty(2, dims, descr)
    else:
        oa = np.empty(_out_shape(xa, tx, s.n), descr)
        target = oa.reshape(s.m, s.n)

    cdef fge_reserve_kind kind = fge_activation_reserve(act.id)
    reserve = None
    if save_reserve:
        if kind == FGE_RESERVE_BITS:
            dims[0] = s.m
            dims[1] = fge_bits_row_bytes(s.n)
            reserve = ra = cnp.PyArray_EMPTY(2, dims, cnp.NPY_UINT8, 0)
        elif kind == FGE_RESERVE_Z or (kind == FGE_RESERVE_OUT and added is not None and at_out):
            reserve = ra = np.empty(_shape(oa), descr)
        elif kind == FGE_RESERVE_OUT:
            reserve = oa

    xa = _readable(xa)
    if rank > 2:
        xa = _rows(xa, tx)
        tx = False
    ya = _readable(ya)
    args.x = _matrix(xa, tx)
    args.y = _matrix(ya, ty)
    ba = _describe_bias(ba, &args.bias, &args.bias_dtype, &args.bias_stride)
    if added is not None:
        added = _packed_rows(added, s.m, s.n)
        args.residual = cnp.PyArray_DATA(added)
        args.residual_row_stride = cnp.PyArray_STRIDE(added, 0) // descr.itemsize
        args.residual_at_out = at_out
    args.out = cnp.PyArray_DATA(target)
    args.out_row_stride = cnp.PyArray_STRIDE(target, 0) // descr.itemsize
    args.reserve = cnp.PyArray_DATA(ra) if ra is not None else NULL
    cdef fge_status status
    with nogil:
        status = fge_forward(&args)
    if status != FGE_OK:
        _raise_status(status)
    if not in_place:
        np.copyto(oa, (<object>target).reshape(_shape(oa)))
    return oa, reserve


cdef bint _is_at_out(residual_at) except -1:
    if residual_at not in ("z", "out"):
        raise ValueError(f"residual_at is {residual_at!r}; it must be 'z' (before the activation) or 'out' (after it)")
    return residual_at == "out"


cdef cnp.ndarray _packed_rows(cnp.ndarray a, int64_t m, int64_t n):
    """`a` as [m, n] rows of unit inner stride: in place, or a copy."""
    cdef cnp.ndarray rows = _rows_in_place(a, m, n)
    return np.ascontiguousarray(a).reshape(m, n) if rows is None else rows


cdef cnp.ndarray _rows_in_place(cnp.ndarray a, int64_t m, int64_t n):
    """`a` as [m, n] rows of unit inner stride in its own memory, or None where its strides don't allow that."""
    if not PyArray_ISALIGNED(a):
        return None
    cdef cnp.ndarray view = (<object>a).reshape(m, n)
    if cnp.PyArray_SIZE(a) and not np.may_share_memory(view, a):
        return None
    if n > 1 and cnp.PyArray_STRIDE(view, 1) != cnp.PyArray_ITEMSIZE(a):
        return None
    return view if m <= 1 or cnp.PyArray_STRIDE(view, 0) > 0 else None


# --- backward --------------------------------------------------------------------------------------------------------

cdef cnp.ndarray _reserve(object reserve, int activation, str name, str option, int64_t rows, int64_t cols, tuple shape,
                          cnp.dtype descr):
    """A reserve as the core reads it, rows packed; None where the activation has none."""
    cdef fge_reserve_kind kind = fge_activation_reserve(activation)
    cdef cnp.ndarray array
    if kind == FGE_RESERVE_NONE:
        return None
    cdef str act = fge_activation_name(activation).decode()
    if reserve is None:
        raise ValueError(f"{option} {act!r} needs the reserve that the forward returned; got None "
                         f"(was it called with save_reserve=False?)")
    if not isinstance(reserve, np.ndarray):
        raise TypeError(f"{name} is a {type(reserve).__name__}; it must be the array that the forward returned")
    array = <cnp.ndarray>reserve
    wanted = relu_bits_shape(rows, cols) if kind == FGE_RESERVE_BITS else shape
    wanted_dtype = np.dtype(np.uint8) if kind == FGE_RESERVE_BITS else descr
    if array.dtype != wanted_dtype:
        raise TypeError(f"{name} has dtype {array.dtype}; the reserve of {act!r} has dtype {wanted_dtype}")
    if _shape(array) != wanted:
        raise ValueError(f"{name} has shape {_shape(array)}; the reserve of {act!r} here has shape {wanted}")
    return np.ascontiguousarray(array)


cdef cnp.ndarray _gradient(object given, str name, tuple shape, cnp.dtype descr, tuple inputs):
    """The array that a gradient goes to: the one to add to, checked, or a new one."""
    cdef cnp.ndarray array
    if given is None:
        return np.empty(shape, descr)
    array = _array(given, name)
    if array.dtype != descr and not (descr.itemsize == 2 and cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT):
        raise TypeError(f"{name} has dtype {array.dtype}; it must be {descr}" + (" or float32" if descr.itemsize == 2 else ""))
    _check_shape(array, name, shape, "that of its gradient")
    _check_written(array, name, inputs)
    return array


cdef class _Destination:
    """Where one gradient is computed: the user's array in place, or memory beside it that is added (copied) afterwards."""
    cdef cnp.ndarray array, rows
    cdef bint accumulate, in_place

    def __cinit__(self, cnp.ndarray array, bint accumulate, int64_t rows, int64_t cols):
        self.array = array
        self.accumulate = accumulate
        self.rows = _rows_in_place(array, rows, cols)
        self.in_place = self.rows is not None
        if not self.in_place:
            self.rows = np.array(array, order="C", subok=False).reshape(rows, cols)

    cdef fge_out out(self, int64_t first_row=0) noexcept:
        cdef fge_out result
        cdef int64_t size = cnp.PyArray_ITEMSIZE(self.rows)
        result.row_stride = cnp.PyArray_STRIDE(self.rows, 0) // size
        result.data = <char *>cnp.PyArray_DATA(self.rows) + first_row * result.row_stride * size
        result.dtype = _dtype_code(self.rows)
        result.accumulate = self.accumulate
        return result

    cdef finish(self):
        if not self.in_place:
            np.copyto(self.array, (<object>self.rows).reshape(_shape(self.array)))
        return self.array


cdef tuple _values(object values, str name, int least, int most):
    """A tuple of `least` to `most` values, for x, y, bias and perhaps the residual."""
    try:
        result = tuple(values)
    except TypeError:
        raise TypeError(f"{name} is a {type(values).__name__}; it must be three values, for x, y and bias") from None
    if not least <= len(result) <= most:
        raise ValueError(f"{name} has {len(result)} values; it must have three, for x, y and bias"
                         + (", or four, with the residual's" if most > 3 else ""))
    return result


def fused_gemm_epilogue_grad(x, y, reserve, out_grad, trans_x=False, trans_y=False, activation="none", *,
                             needs=(True, True, True), x_activation="none", x_reserve=None,
                             accumulate_into=(None, None, None), residual_at="z"):
    """Gradients of `fused_gemm_epilogue(x, y, bias, trans_x, trans_y, activation)`:

        dZ = out_grad * act'(reserve);  x_grad = dZ @ op(y)^T;  y_grad = op(x)^T @ dZ;  bias_grad = sum of dZ over rows

    Parameters
    ----------
    x, y, trans_x, trans_y, activation : as in the forward
    reserve : what the forward returned (None for "none")
    out_grad : array of out's shape and dtype, any strides (a broadcast scalar too)
    needs : which of (x_grad, y_grad, bias_grad) to compute; the others are None and cost nothing. A fourth value asks for
        the gradient of the residual, which then is the fourth result
    residual_at : where the forward added it. At "z" its gradient is dZ, at "out" it is out_grad (that array itself)
    x_activation, x_reserve : x was itself `act(...)` with that reserve, of x's shape (for "relu" the bits of x's rows):
        x_grad is multiplied by that derivative in its own epilogue (cuBLASLt's DRELU and DGELU)
    accumulate_into : as many arrays to add the gradients to, or None for new ones; may be float32 where x is a half type

    Returns
    -------
    (x_grad, y_grad, bias_grad) and, where `needs` has four values, residual_grad, each in the layout of its input (or the
        array given in accumulate_into)

    Raises
    ------
    TypeError, ValueError, MemoryError : as in the forward; ValueError where a reserve is missing. Nothing is written then.
    """
    cdef cnp.ndarray xa = _array(x, "x"), ya = _array(y, "y"), ga = _array(out_grad, "out_grad"), ra, xra
    cdef fge_activation act = activation_checked(activation, "activation")
    cdef fge_activation x_act = activation_checked(x_activation, "x_activation")
    cdef bint tx = trans_x, ty = trans_y
    _check_same_dtype(xa, ya, "y")
    _check_same_dtype(xa, ga, "out_grad")
    cdef cnp.dtype descr = _dtype(xa)
    cdef Sizes s = _sizes(xa, ya, tx, ty)
    cdef tuple out_shape = _out_shape(xa, tx, s.n)
    _check_shape(ga, "out_grad", out_shape, "out's")
    cdef int rank = cnp.PyArray_NDIM(xa)
    cdef int64_t x_cols = cnp.PyArray_DIM(xa, rank - 1)
    cdef int64_t x_rows = s.m * s.k // x_cols if x_cols else _product(_shape(xa)[:-1])
    ra = _reserve(reserve, act.id, "reserve", "activation", s.m, s.n, out_shape, descr)
    xra = None
    cdef bint at_out = _is_at_out(residual_at)
    wanted = _values(needs, "needs", 3, 4)
    cdef int results = len(wanted)
    need_x, need_y, need_bias, need_residual = [bool(n) for n in wanted + (False,) * (4 - results)]
    if need_x:
        xra = _reserve(x_reserve, x_act.id, "x_reserve", "x_activation", x_rows, x_cols, _shape(xa), descr)

    given = _values(accumulate_into, "accumulate_into", 3, results)
    given += (None,) * (4 - len(given))
    cdef list grads = [None, None, None, None]
    cdef tuple inputs = (("x", xa), ("y", ya), ("out_grad", ga), ("reserve", ra), ("x_reserve", xra))
    cdef list shapes = [_shape(xa), _shape(ya), (s.n,), out_shape]
    for i, need in enumerate((need_x, need_y, need_bias, need_residual)):
        name = f"accumulate_into[{i}]" if given[i] is not None else ""
        if need:
            if i == 3 and at_out and given[i] is None:
                continue
            grads[i] = _gradient(given[i], name, shapes[i], descr, inputs)
            if given[i] is not None:
                inputs += ((name, grads[i]),)
        elif given[i] is not None:
            raise ValueError(f"{name} is given, but needs[{i}] is False; pass None for a gradient that isn't computed")

    cdef fge_backward_args args
    memset(&args, 0, sizeof(args))
    args.m, args.n, args.k = s.m, s.n, s.k
    args.dtype = _dtype_code(xa)
    args.activation = act
    args.x_activation = x_act
    xa = _readable(xa)
    ya = _readable(ya)
    ga = _readable(ga)
    cdef cnp.ndarray x_2d = _rows(xa, tx) if rank > 2 else xa, g_2d = _rows(ga, False) if rank > 2 else ga
    args.x = _matrix(x_2d, tx and rank == 2)
    args.y = _matrix(ya, ty)
    args.out_grad = _matrix(g_2d, False)
    args.reserve = cnp.PyArray_DATA(ra) if ra is not None else NULL
    args.x_reserve = cnp.PyArray_DATA(xra) if xra is not None else NULL
    args.x_grad_transposed = tx
    args.y_grad_transposed = ty

    cdef _Destination x_to = None, y_to = None, bias_to = None, residual_to = None
    if need_x:
        x_to = _Destination(grads[0], given[0] is not None, x_rows, x_cols)
    if need_y:
        y_to = _Destination(grads[1], given[1] is not None, cnp.PyArray_DIM(ya, 0), cnp.PyArray_DIM(ya, 1))
        args.y_grad = y_to.out()
    if need_bias:
        bias_to = _Destination(grads[2], given[2] is not None, s.n, 1)
        args.bias_grad = bias_to.out()
    if need_residual and not at_out:
        residual_to = _Destination(grads[3], given[3] is not None, s.m, s.n)
        args.z_grad = residual_to.out()
    cdef bint per_batch = need_x and tx and rank > 2
    cdef fge_status status = FGE_OK
    if per_batch:
        status = _x_grad_of_batches(&args, x_to, ra, xra, x_cols)
    elif need_x:
        args.x_grad = x_to.out()
    if status == FGE_OK:
        with nogil:
            status = fge_backward(&args)
    if status != FGE_OK:
        _raise_status(status)
    computed = (x_to.finish() if need_x else None, y_to.finish() if need_y else None, bias_to.finish() if need_bias else None)
    if results == 3:
        return computed
    if not need_residual:
        return computed + (None,)
    if residual_to is not None:
        return computed + (residual_to.finish(),)
    if given[3] is None:
        return computed + (out_grad,)
    np.add(grads[3], ga, out=grads[3], casting="same_kind")
    return computed + (grads[3],)


cdef int64_t _product(tuple lengths) except -1:
    cdef int64_t product = 1
    for length in lengths:
        product *= length
    return product


cdef fge_status _x_grad_of_batches(const fge_backward_args *whole, _Destination x_to, cnp.ndarray reserve,
                                   cnp.ndarray x_reserve, int64_t m) except *:
    """x_grad of x [.., K, M] lies batch by batch as [K, M]: one product per batch of m rows."""
    cdef fge_backward_args args = whole[0]
    cdef int64_t batch, batches = whole.m // m if m else 0
    cdef int64_t out_size = _item_size(whole.dtype)
    cdef fge_status status = FGE_OK
    memset(&args.y_grad, 0, sizeof(fge_out))
    memset(&args.bias_grad, 0, sizeof(fge_out))
    memset(&args.z_grad, 0, sizeof(fge_out))
    args.m = m
    for batch in range(batches):
        args.x_grad = x_to.out(batch * whole.k)
        args.out_grad.data = <char *>whole.out_grad.data + batch * m * whole.out_grad.row_stride * out_size
        args.x.data = NULL
        if reserve is not None:
            args.reserve = <char *>whole.reserve + batch * m * _packed_row_bytes(whole.activation.id, whole.n, out_size)
        if x_reserve is not None:
            args.x_reserve = <char *>whole.x_reserve + batch * whole.k * _packed_row_bytes(whole.x_activation.id, m, out_size)
        with nogil:
            status = fge_backward(&args)
        if status != FGE_OK:
            break
    return status


cdef int64_t _item_size(int dtype) noexcept:
    return 8 if dtype == FGE_FLOAT64 else 4 if dtype == FGE_FLOAT32 else 2


cdef int64_t _packed_row_bytes(int activation, int64_t cols, int64_t item_size) noexcept:
    return fge_bits_row_bytes(cols) if fge_activation_reserve(activation) == FGE_RESERVE_BITS else cols * item_size


# --- gated unit ------------------------------------------------------------------------------------------------------

include "_glu.pxi"


# --- threads, engines, configuration: the C side of fge._settings ---------------------------------------------------

cdef extern from "core/threads.h" nogil:
    int fge_threads_of_caller(int)
    void fge_threads_default(int)
    const char *fge_threads_kind()
    ctypedef struct fge_workspace:
        int threads
    ctypedef void (*fge_gomp_parallel)(void (*)(void *) noexcept nogil, void *, unsigned, unsigned) noexcept nogil
    void fge_threads_share(fge_gomp_parallel)
    fge_status fge_workspace_take(fge_workspace *, int, size_t, size_t)
    void fge_workspace_give_back(fge_workspace *)
    void fge_run(int64_t, const fge_workspace *, void (*)(void *, int64_t, void *) noexcept nogil, void *)

cdef extern from "core/problem.h" nogil:
    ctypedef struct fge_kernels:
        double (*peak)(int, double) noexcept nogil
        void (*convert)(const void *, int, void *, int, int64_t) noexcept nogil

cdef extern from "core/dispatch.h" nogil:
    ctypedef struct fge_caches:
        int64_t l1, l2, l3
    fge_caches fge_cache_sizes()
    int fge_force_engine(const char *)
    int fge_force_isa(const char *)
    const char *fge_forced_engine()
    const char *fge_forced_isa()
    int fge_isa_count()
    const char *fge_isa_name(int)
    const char *fge_isa_missing(int)
    void fge_explain(int, const char **, const char **, const char **)
    const fge_kernels *fge_kernels_now()

cdef extern from "core/blas.h" nogil:
    ctypedef struct fge_blas_routines:
        pass
    void fge_blas_use(const fge_blas_routines *, const char *)
    int fge_blas_ready()
    int fge_blas_enter(int)
    void fge_blas_leave()
    const char *fge_blas_threading()
    const char *fge_blas_description()


def get_num_threads():
    """Threads that a call from this Python thread may use."""
    return fge_get_num_threads()


def set_num_threads(n):
    """Let calls from now on use up to n threads; None restores the default. Results don't depend on it."""
    if n is None:
        fge_set_num_threads(0)
        return
    n = _positive(n)
    fge_set_num_threads(n)


cdef int _positive(n) except -1:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise TypeError(f"n is a {type(n).__name__}; the number of threads must be an int")
    if n < 1:
        raise ValueError(f"n is {n}; the number of threads must be 1 or more")
    return <int>min(int(n), 1 << 20)


def threads_of_caller(n):
    """Set the number of threads for this Python thread alone; answers the one before, for `restore_threads_of_caller`."""
    return fge_threads_of_caller(_positive(n))


def restore_threads_of_caller(int before):
    fge_threads_of_caller(before)


def set_default_threads(n):
    fge_threads_default(_positive(n))


def threads_kind():
    return fge_threads_kind().decode()


def share_openmp(address):
    """Run on the team of the OpenMP runtime whose GOMP_parallel lies at `address`; 0: on threads of our own."""
    fge_threads_share(<fge_gomp_parallel><size_t>address)


def force_engine(name):
    return bool(fge_force_engine(name.encode()))


def force_isa(name):
    return bool(fge_force_isa(name.encode()))


def forced():
    return fge_forced_engine().decode(), fge_forced_isa().decode()


def isas():
    """Pairs of each instruction set's name and what this CPU lacks for it (None: it can run)."""
    cdef const char *missing
    result = []
    for i in range(fge_isa_count()):
        missing = fge_isa_missing(i)
        result.append((fge_isa_name(i).decode(), None if missing is NULL else missing.decode()))
    return result


def explain(dtype_name):
    """(engine, instruction set, why) for a dtype."""
    cdef const char *engine
    cdef const char *isa
    cdef const char *why
    fge_explain(_dtype_names.index(dtype_name), &engine, &isa, &why)
    return engine.decode(), isa.decode(), why.decode()


def cache_sizes():
    cdef fge_caches sizes = fge_cache_sizes()
    return {"L1d": sizes.l1, "L2": sizes.l2, "L3": sizes.l3}


def blas_settle():
    """Settle how BLAS is kept to one thread, as its first call would; answers (threading, description or None)."""
    if fge_blas_ready() and fge_blas_enter(1):
        fge_blas_leave()
    cdef const char *description = fge_blas_description()
    return fge_blas_threading().decode(), None if description is NULL else description.decode()


def blas_use(size_t routines, library):
    """For fge._blas: the address of a fge_blas_routines and the path of a library linked with that BLAS."""
    cdef bytes path = library.encode() if library else b""
    fge_blas_use(<const fge_blas_routines *>routines, path)


cdef struct Peak:
    int is_f32
    double seconds
    double flops[256]


cdef void _peak_task(void *context, int64_t i, void *scratch) noexcept nogil:
    cdef Peak *peak = <Peak *>context
    peak.flops[i] = fge_kernels_now().peak(peak.is_f32, peak.seconds)


def measure_peak(dtype_name="float32", seconds=0.2):
    """FLOP/s of the multiply-add units on all of fge's threads together, in float32 or float64, from registers alone."""
    if dtype_name not in ("float32", "float64"):
        raise ValueError(f"dtype_name is {dtype_name!r}; it must be 'float32' or 'float64'")
    cdef Peak peak
    cdef fge_workspace workspace
    peak.is_f32 = dtype_name == "float32"
    peak.seconds = seconds
    if fge_workspace_take(&workspace, fge_get_num_threads(), 64, 0) != FGE_OK:
        raise MemoryError("fge could not allocate its scratch memory")
    cdef int threads = workspace.threads
    with nogil:
        fge_run(threads, &workspace, _peak_task, &peak)
        fge_workspace_give_back(&workspace)
    return sum([peak.flops[i] for i in range(threads)])


def convert(cnp.ndarray source not None, cnp.ndarray target not None):
    """Convert between float32 and half arrays as the kernels do; for tests of the rounding. Contiguous, of one length."""
    cdef int from_dtype = _dtype_code(source), to_dtype = _dtype_code(target)
    if from_dtype < 0 or to_dtype < 0 or from_dtype == <int>FGE_FLOAT64 or to_dtype == <int>FGE_FLOAT64:
        raise TypeError("source and target must be float32, float16 or bfloat16")
    if not (source.flags.c_contiguous and target.flags.c_contiguous and target.flags.writeable) or source.size != target.size:
        raise ValueError("source and target must be contiguous, of one length, and target writable")
    cdef int64_t count = source.size
    with nogil:
        fge_kernels_now().convert(cnp.PyArray_DATA(source), from_dtype, cnp.PyArray_DATA(target), to_dtype, count)
