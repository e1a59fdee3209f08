"""The operator on PyTorch tensors: the one place that knows its shapes, dtypes and checks, and that calls the core.

Layouts are PyTorch's: weight is [N, K], x is [.., K], out is [.., N].

`empty_outputs` and `empty_gradients` check a call and allocate what it returns. They read no data, so they serve
as fake kernels too; shapes may hold symbolic sizes. `forward` and `backward` run the core on what they return.
"""
from cpython.tuple cimport PyTuple_GetSlice
from libc.stdint cimport int64_t
from libc.string cimport memset

import torch

from fge._kernels cimport (
    FGE_BFLOAT16, FGE_FLOAT16, FGE_FLOAT32, FGE_FLOAT64, FGE_NO_ENGINE, FGE_NO_MEMORY, FGE_OK,
    FGE_RESERVE_BITS, FGE_RESERVE_NONE, FGE_RESERVE_Z, activation_checked, activation_reserve,
    backward as core_backward, fge_activation, fge_backward_args, fge_forward_args, fge_glu_backward_args,
    fge_glu_forward_args, glu_backward as core_glu_backward, glu_forward as core_glu_forward, fge_in, fge_out,
    forward as core_forward,
)

cdef object Tensor = torch.Tensor
cdef object Parameter = torch.nn.Parameter
cdef object FLOAT32 = torch.float32
cdef object UINT8 = torch.uint8
cdef object STRIDED = torch.strided
cdef dict DTYPES = {
    torch.float32: FGE_FLOAT32, torch.float64: FGE_FLOAT64, torch.float16: FGE_FLOAT16,
    torch.bfloat16: FGE_BFLOAT16,
}


# --- checks ----------------------------------------------------------------------------------------------------------

def check_activation(activation):
    """ValueError, with the names that there are, where `activation` isn't one of them."""
    activation_checked(activation, "activation")


cdef tuple shape_of(tensor, str name):
    try:
        shape = tensor.shape
        return PyTuple_GetSlice(shape, 0, len(shape))  # a plain tuple, which torch.Size isn't
    except RuntimeError:
        check_dense(tensor, name)
        raise


cdef empty(like, tuple shape, dtype=None):
    """Beside `like` and of its dtype unless told. PyTorch takes a size faster as arguments than as a tuple."""
    if dtype is not None:
        return like.new_empty(*shape, dtype=dtype)
    return like.new_empty(shape[0], shape[1]) if len(shape) == 2 else like.new_empty(*shape)


cdef bint is_half(int dtype) noexcept:
    return dtype == FGE_FLOAT16 or dtype == FGE_BFLOAT16


cdef int dtype_of(tensor, str name) except -1:
    """The fge_dtype of an operand."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; it must be a torch.Tensor")
    found = DTYPES.get(tensor.dtype)
    if found is None:
        raise TypeError(f"{name} has dtype {tensor.dtype}; it must be float32, float64, float16 or bfloat16")
    return found


cdef int check_dense(tensor, str name) except -1:
    """Sparse, nested and oneDNN's opaque tensors have no strides."""
    if tensor.layout is not STRIDED or tensor.is_nested:
        raise TypeError(f"{name} is a {'nested' if tensor.is_nested else tensor.layout} tensor; "
                        "it must be a dense one, of layout torch.strided")
    return 0


cdef int check_fits(tensor, str name, int dtype, first, str first_name) except -1:
    """An operand has to have the dtype of the first, and to be where it is."""
    if dtype_of(tensor, name) != dtype:
        raise TypeError(f"{first_name} has dtype {first.dtype} and {name} has dtype {tensor.dtype}; "
                        "they must be the same")
    return check_device(tensor, name, first, first_name)


cdef int check_device(tensor, str name, first, str first_name) except -1:
    if not (tensor.is_cpu and first.is_cpu) and tensor.device != first.device:
        raise ValueError(f"{first_name} is on {first.device} and {name} is on {tensor.device}; "
                         "they must be on the same device")
    return 0


cdef int check_rank_2(tuple weight, str name="weight") except -1:
    if len(weight) != 2:
        raise ValueError(f"{name} has shape {weight}; it must have rank 2, [out_features, in_features]")
    return 0


cdef int check_bias(bias, tuple weight, int dtype, x, str name="bias", str weight_name="weight") except -1:
    """The fge_dtype of the bias."""
    cdef int bias_dtype = dtype_of(bias, name)
    if bias_dtype != dtype and not (bias_dtype == FGE_FLOAT32 and is_half(dtype)):
        raise TypeError(f"{name} has dtype {bias.dtype} and x has dtype {x.dtype}; {name} must have x's dtype"
                        + (" or float32" if is_half(dtype) else ""))
    check_device(bias, name, x, "x")
    cdef tuple shape = shape_of(bias, name)
    if len(shape) != 1 or shape[0] != weight[0]:
        raise ValueError(f"{name} has shape {shape}; it must have shape (out_features,) = ({weight[0]},) "
                         f"to match {weight_name} of shape {weight}")
    return bias_dtype


cdef product(tuple lengths):
    """Sizes may be symbolic."""
    result = 1
    for length in lengths:
        result = result * length
    return result


cdef tuple reserve_layout(int activation, tuple out, dtype):
    """(shape, dtype) of what the backward needs for an out of that shape and dtype; None where it needs nothing."""
    cdef int kind = activation_reserve(activation)
    if kind == FGE_RESERVE_NONE:
        return None
    if kind == FGE_RESERVE_BITS:  # fge.relu_bits_shape, of sizes that may be symbolic
        return (product(out[:-1]), 16 * ((out[-1] + 127) // 128)), UINT8
    return out, dtype


cdef int check_reserve(reserve, int act, str activation, out_grad, tuple shape) except -1:
    cdef tuple wanted = reserve_layout(act, shape, out_grad.dtype)
    if wanted is None:
        return 0
    if reserve is None:
        raise ValueError(f"activation {activation!r} needs the reserve that the forward returned; got None "
                         "(was it called with save_reserve=False?)")
    if reserve.dtype is not wanted[1]:
        raise TypeError(f"reserve has dtype {reserve.dtype}; the reserve of {activation!r} has dtype {wanted[1]}")
    cdef tuple shape_of_reserve = shape_of(reserve, "reserve")
    if shape_of_reserve != wanted[0]:
        raise ValueError(f"reserve has shape {shape_of_reserve}; the reserve of {activation!r} here has shape "
                         f"{wanted[0]} (was the forward called with save_reserve=False?)")
    return check_device(reserve, "reserve", out_grad, "out_grad")


# --- a call: its sizes and what it returns ---------------------------------------------------------------------------

cdef class Forward:
    """A checked forward call: act(x @ weight.T + bias)."""
    cdef fge_activation activation
    cdef int dtype, bias_dtype
    cdef tuple x_shape, weight_shape
    cdef object out, reserve

    def __cinit__(self, x, weight, bias, activation, save_reserve):
        cdef int kind
        self.activation = activation_checked(activation, "activation")
        self.dtype = dtype_of(x, "x")
        check_fits(weight, "weight", self.dtype, x, "x")
        self.x_shape, self.weight_shape = shape_of(x, "x"), shape_of(weight, "weight")
        check_rank_2(self.weight_shape)
        if len(self.x_shape) == 0 or self.x_shape[-1] != self.weight_shape[1]:
            raise ValueError(f"x has shape {self.x_shape}; its last axis must have length in_features = "
                             f"{self.weight_shape[1]} to match weight of shape {self.weight_shape}")
        if bias is not None:
            self.bias_dtype = check_bias(bias, self.weight_shape, self.dtype, x)
        cdef tuple shape = self.x_shape[:-1] + self.weight_shape[:1]
        self.out = empty(x, shape)
        kind = activation_reserve(self.activation.id)
        if save_reserve and (kind == FGE_RESERVE_BITS or kind == FGE_RESERVE_Z):
            shape, dtype = reserve_layout(self.activation.id, shape, x.dtype)
            self.reserve = empty(x, shape, dtype)


cdef class Backward:
    """A checked backward call. What is given decides what is computed."""
    cdef fge_activation activation
    cdef int dtype
    cdef tuple shape
    cdef object k
    cdef object x_grad, weight_grad, bias_grad

    def __cinit__(self, out_grad, x, weight, reserve, activation, bias_dtype):
        cdef tuple shape
        self.activation = activation_checked(activation, "activation")
        self.dtype = dtype_of(out_grad, "out_grad")
        self.shape = shape_of(out_grad, "out_grad")
        self.k = 0
        if len(self.shape) == 0:
            raise ValueError("out_grad is a scalar; it must have the shape of out, [.., out_features]")
        check_reserve(reserve, self.activation.id, activation, out_grad, self.shape)
        if weight is not None:
            check_fits(weight, "weight", self.dtype, out_grad, "out_grad")
            shape = shape_of(weight, "weight")
            check_rank_2(shape)
            if shape[0] != self.shape[-1]:
                raise ValueError(f"weight has shape {shape}; its first axis must have length out_features = "
                                 f"{self.shape[-1]} to match out_grad of shape {self.shape}")
            self.k = shape[1]
            self.x_grad = empty(out_grad, self.shape[:-1] + shape[1:])
        if x is not None:
            check_fits(x, "x", self.dtype, out_grad, "out_grad")
            shape = shape_of(x, "x")
            if len(shape) == 0 or shape[:-1] != self.shape[:-1] or (weight is not None and shape[-1] != self.k):
                raise ValueError(f"x has shape {shape}; it must have that of x_grad, [.., in_features], to match "
                                 f"out_grad of shape {self.shape}")
            self.k = shape[-1]
            self.weight_grad = empty(out_grad, (self.shape[-1], self.k))
        if bias_dtype is not None:
            if bias_dtype is not out_grad.dtype and not (bias_dtype is FLOAT32 and is_half(self.dtype)):
                raise TypeError(f"bias_dtype is {bias_dtype}; it must be {out_grad.dtype}"
                                + (" or torch.float32" if is_half(self.dtype) else ""))
            self.bias_grad = empty(out_grad, self.shape[-1:], None if bias_dtype is out_grad.dtype else bias_dtype)

    cdef tuple grads(self):
        return self.x_grad, self.weight_grad, self.bias_grad


def empty_outputs(x, weight, bias, activation, save_reserve):
    """Check a forward call and allocate (out, reserve).

    x [.., K], weight [N, K] and bias [N] or None are float32, float64, float16 or bfloat16 and of one dtype; bias
    may be float32 where they are half types. out is [.., N] of x's dtype. reserve is None where `save_reserve` is
    False and for activations whose backward needs nothing or out alone; for "relu" it is uint8, one bit per
    element as in `fge.relu_bits_shape`; for the others of out's shape and dtype.

    TypeError for what isn't a tensor and for dtypes; ValueError for shapes, devices and activations.
    """
    cdef Forward call = Forward(x, weight, bias, activation, save_reserve)
    return call.out, call.reserve


def empty_gradients(out_grad, x, weight, reserve, activation, bias_dtype):
    """Check a backward call and allocate (x_grad, weight_grad, bias_grad), None for those that aren't wanted.

    What is given decides what is computed: x_grad takes weight, weight_grad takes x, bias_grad takes bias_dtype.
    out_grad [.., N] and x [.., K], weight [N, K] are of one dtype; bias_dtype is that too, or float32 where it is
    a half type. reserve is what the forward returned, or out itself for activations that reserve out. Gradients
    are contiguous. Errors are those of `empty_outputs`, and ValueError where a reserve is missing.
    """
    return Backward(out_grad, x, weight, reserve, activation, bias_dtype).grads()


# --- running ---------------------------------------------------------------------------------------------------------

cdef void *address(tensor) except? NULL:
    return <void *> <size_t> tensor.data_ptr()


cdef owner(tensor, const void **data):
    """The tensor whose memory, at `data`, is read for `tensor`: itself, or a copy of zeros that PyTorch's autograd
    represents without memory."""
    data[0] = address(tensor)
    if data[0] == NULL and tensor.numel():
        if not tensor._is_zerotensor():
            raise RuntimeError(f"a tensor of shape {tuple(tensor.shape)} has no memory; was its storage resized?")
        tensor = tensor.clone()
        data[0] = address(tensor)
    return tensor


cdef rows_of(tensor, tuple shape, fge_in *matrix):
    """Describe `tensor` [.., columns] as a matrix, and answer the tensor that owns its memory.

    That is `tensor` itself wherever leading axes step evenly through memory (which any tensor of rank 1 or 2
    does), and a contiguous copy otherwise. Minus signs that PyTorch has put off (views of conjugates) are
    applied.
    """
    cdef int64_t rows = 1
    cdef int64_t length, axis
    cdef Py_ssize_t last = len(shape) - 1
    tensor = owner(tensor.resolve_neg() if tensor.is_neg() else tensor, &matrix.data)
    matrix.row_stride, matrix.col_stride = shape[last], 1
    if not tensor.is_contiguous():
        strides = tensor.stride()
        matrix.col_stride = strides[last]
        for axis in range(last - 1, -1, -1):
            length = shape[axis]
            if length == 1:
                continue
            if rows == 1:
                matrix.row_stride = strides[axis]
            elif strides[axis] != matrix.row_stride * rows:
                tensor = tensor.contiguous()
                matrix.data = address(tensor)
                matrix.row_stride, matrix.col_stride = shape[last], 1
                break
            rows *= length
    return tensor


cdef int raise_status(int status) except -1:
    from fge import _settings
    if status == FGE_NO_MEMORY:
        raise MemoryError("fge could not allocate its scratch memory")
    if status == FGE_NO_ENGINE:
        raise RuntimeError(_settings.engine_error())
    raise SystemError(f"fge's core refused arguments that passed its checks (status {status}); please report this")


def forward(x, weight, bias, activation, save_reserve):
    """act(x @ weight.T + bias), and the reserve. Arguments, results and errors are those of `empty_outputs`."""
    cdef Forward call = Forward(x, weight, bias, activation, save_reserve)
    cdef fge_forward_args args
    cdef fge_in matrix
    cdef int status
    memset(&args, 0, sizeof(args))
    args.activation, args.dtype, args.bias_dtype = call.activation, call.dtype, call.bias_dtype
    args.n, args.k = call.weight_shape
    args.m = product(call.x_shape[:-1])
    x = rows_of(x, call.x_shape, &args.x)
    weight = rows_of(weight, call.weight_shape, &matrix)
    args.y.data, args.y.row_stride, args.y.col_stride = matrix.data, matrix.col_stride, matrix.row_stride
    if bias is not None:
        bias = rows_of(bias, call.weight_shape[:1], &matrix)
        args.bias, args.bias_stride = matrix.data, matrix.col_stride
    args.out, args.out_row_stride = address(call.out), args.n
    if call.reserve is not None:
        args.reserve = address(call.reserve)
    with nogil:
        status = core_forward(&args)
    if status != FGE_OK:
        raise_status(status)
    return call.out, call.reserve


cdef int describe_gradient(tensor, int dtype, int64_t row_stride, fge_out *gradient) except -1:
    if tensor is not None:
        gradient.data, gradient.dtype, gradient.row_stride = address(tensor), dtype, row_stride
    return 0


def backward(out_grad, x, weight, reserve, activation, bias_dtype, x_activation="none", x_reserve=None):
    """The gradients of `forward`. Arguments, results and errors are those of `empty_gradients`.

    Where x was itself made by `x_activation`, x_grad is multiplied by its derivative, from the reserve of that call.
    """
    cdef Backward call = Backward(out_grad, x, weight, reserve, activation, bias_dtype)
    cdef fge_backward_args args
    cdef fge_in matrix
    cdef int status
    memset(&args, 0, sizeof(args))
    args.activation, args.dtype = call.activation, call.dtype
    args.m, args.n, args.k = product(call.shape[:-1]), call.shape[-1], call.k
    args.x_activation = activation_checked(x_activation, "x_activation")
    if weight is not None and activation_reserve(args.x_activation.id) != FGE_RESERVE_NONE:
        check_reserve(x_reserve, args.x_activation.id, x_activation, out_grad, call.shape[:-1] + (call.k,))
        x_reserve = owner(x_reserve, &args.x_reserve).contiguous()
        args.x_reserve = address(x_reserve)
    out_grad = rows_of(out_grad, call.shape, &args.out_grad)
    if x is not None:
        x = rows_of(x, call.shape[:-1] + (call.k,), &args.x)
    if weight is not None:
        weight = rows_of(weight, (args.n, call.k), &matrix)
        args.y.data, args.y.row_stride, args.y.col_stride = matrix.data, matrix.col_stride, matrix.row_stride
    if activation_reserve(args.activation.id) != FGE_RESERVE_NONE:
        reserve = owner(reserve, &args.reserve).contiguous()
        args.reserve = address(reserve)
    describe_gradient(call.x_grad, args.dtype, args.k, &args.x_grad)
    describe_gradient(call.weight_grad, args.dtype, args.k, &args.y_grad)
    args.y_grad_transposed = True
    if bias_dtype is not None:
        describe_gradient(call.bias_grad, DTYPES[bias_dtype], 1, &args.bias_grad)
        if args.bias_grad.dtype != args.dtype:
            call.bias_grad.zero_()  # the core writes a float32 gradient of half operands by adding to it
            args.bias_grad.accumulate = True
    with nogil:
        status = core_backward(&args)
    if status != FGE_OK:
        raise_status(status)
    return call.grads()


def activate(z, activation):
    """act(z) of a tensor z alone, contiguous: a product with K = 0 and z as its residual."""
    cdef fge_forward_args args
    cdef int status
    memset(&args, 0, sizeof(args))
    args.activation = activation_checked(activation, "activation")
    args.dtype = dtype_of(z, "z")
    cdef tuple shape = shape_of(z, "z")
    z = z.contiguous()
    out = empty(z, shape)
    args.m, args.n = product(shape[:-1]), shape[-1]
    z = owner(z, &args.residual)
    args.residual_row_stride = args.out_row_stride = args.n
    args.out = address(out)
    with nogil:
        status = core_forward(&args)
    if status != FGE_OK:
        raise_status(status)
    return out


# --- a gated unit ----------------------------------------------------------------------------------------------------

cdef class Glu:
    """A checked call of a gated unit: its sizes, and how the core reads x [.., K] and the weights [N, K]."""
    cdef fge_activation activation
    cdef int dtype
    cdef int64_t m, n, k
    cdef tuple x_shape, weight_shape, out_shape
    cdef fge_in x, w_gate, w_up
    cdef object owners

    def __cinit__(self, x, w_gate, w_up, activation):
        self.activation = activation_checked(activation, "activation")
        self.dtype = dtype_of(x, "x")
        check_fits(w_gate, "w_gate", self.dtype, x, "x")
        check_fits(w_up, "w_up", self.dtype, x, "x")
        self.x_shape, self.weight_shape = shape_of(x, "x"), shape_of(w_gate, "w_gate")
        check_rank_2(self.weight_shape, "w_gate")
        self.n, self.k = self.weight_shape
        if len(self.x_shape) == 0 or self.x_shape[-1] != self.k:
            raise ValueError(f"x has shape {self.x_shape}; its last axis must have length in_features = {self.k} to match "
                             f"w_gate of shape {self.weight_shape}")
        if shape_of(w_up, "w_up") != self.weight_shape:
            raise ValueError(f"w_up has shape {shape_of(w_up, 'w_up')}; it must have that of w_gate, {self.weight_shape}")
        self.m = product(self.x_shape[:-1])
        self.out_shape = self.x_shape[:-1] + self.weight_shape[:1]
        self.owners = (rows_of(x, self.x_shape, &self.x), rows_of(w_gate, self.weight_shape, &self.w_gate),
                       rows_of(w_up, self.weight_shape, &self.w_up))
        # [N, K] as [K, N]
        self.w_gate.row_stride, self.w_gate.col_stride = self.w_gate.col_stride, self.w_gate.row_stride
        self.w_up.row_stride, self.w_up.col_stride = self.w_up.col_stride, self.w_up.row_stride

    cdef bias(self, tensor, str name, x, const void **data, int *dtype, int64_t *stride):
        """Fills in how the core reads a bias, if there is one; answers the tensor that owns the memory."""
        cdef fge_in matrix
        if tensor is None:
            return None
        dtype[0] = check_bias(tensor, self.weight_shape, self.dtype, x, name, "w_gate")
        tensor = rows_of(tensor, self.weight_shape[:1], &matrix)
        data[0], stride[0] = matrix.data, matrix.col_stride
        return tensor


def glu_forward(x, w_gate, w_up, b_gate, b_up, activation, save_reserve):
    """(out, z_gate, z_up) of act(x @ w_gate.T + b_gate) * (x @ w_up.T + b_up); both z are None unless saved.

    x [.., K], weights [N, K], biases [N] or None, of one dtype (biases may be float32 beside half types).
    """
    cdef Glu call = Glu(x, w_gate, w_up, activation)
    cdef fge_glu_forward_args args
    cdef int status
    memset(&args, 0, sizeof(args))
    args.activation, args.dtype, args.m, args.n, args.k = call.activation, call.dtype, call.m, call.n, call.k
    args.x, args.w_gate, args.w_up = call.x, call.w_gate, call.w_up
    b_gate = call.bias(b_gate, "b_gate", x, &args.b_gate, &args.b_gate_dtype, &args.b_gate_stride)
    b_up = call.bias(b_up, "b_up", x, &args.b_up, &args.b_up_dtype, &args.b_up_stride)
    out = empty(x, call.out_shape)
    z_gate = z_up = None
    args.out, args.out_row_stride = address(out), args.n
    if save_reserve:
        z_gate, z_up = empty(x, call.out_shape), empty(x, call.out_shape)
        args.z_gate, args.z_up = address(z_gate), address(z_up)
    with nogil:
        status = core_glu_forward(&args)
    if status != FGE_OK:
        raise_status(status)
    return out, z_gate, z_up


def glu_backward(out_grad, x, w_gate, w_up, z_gate, z_up, activation, needs, b_gate_dtype, b_up_dtype):
    """The five gradients of `glu_forward`, None where `needs` says so; those of biases in the dtypes given."""
    cdef Glu call = Glu(x, w_gate, w_up, activation)
    cdef fge_glu_backward_args args
    cdef int status
    for name, tensor in (("out_grad", out_grad), ("z_gate", z_gate), ("z_up", z_up)):
        check_fits(tensor, name, call.dtype, x, "x")
        if shape_of(tensor, name) != call.out_shape:
            raise ValueError(f"{name} has shape {shape_of(tensor, name)}; it must have that of out, {call.out_shape}")
    memset(&args, 0, sizeof(args))
    args.activation, args.dtype, args.m, args.n, args.k = call.activation, call.dtype, call.m, call.n, call.k
    args.x, args.w_gate, args.w_up = call.x, call.w_gate, call.w_up
    out_grad = rows_of(out_grad, call.out_shape, &args.out_grad)
    z_gate, z_up = z_gate.contiguous(), z_up.contiguous()
    args.z_gate, args.z_up = address(z_gate), address(z_up)
    gate_grad, up_grad = empty(x, call.out_shape), empty(x, call.out_shape)
    args.gate_grad, args.up_grad = address(gate_grad), address(up_grad)
    args.w_grads_transposed = True
    shapes = (call.x_shape, call.weight_shape, call.weight_shape, call.weight_shape[:1], call.weight_shape[:1])
    grads = [empty(x, shape) if need else None for shape, need in zip(shapes, needs)]
    describe_gradient(grads[0], args.dtype, args.k, &args.x_grad)
    describe_gradient(grads[1], args.dtype, args.k, &args.w_gate_grad)
    describe_gradient(grads[2], args.dtype, args.k, &args.w_up_grad)
    describe_gradient(grads[3], args.dtype, 1, &args.b_gate_grad)
    describe_gradient(grads[4], args.dtype, 1, &args.b_up_grad)
    with nogil:
        status = core_glu_backward(&args)
    if status != FGE_OK:
        raise_status(status)
    for i, dtype in ((3, b_gate_dtype), (4, b_up_dtype)):
        if grads[i] is not None and grads[i].dtype is not dtype:
            grads[i] = grads[i].to(dtype)
    return tuple(grads)


# --- who may call these directly -------------------------------------------------------------------------------------

cdef object has_storage = torch._C._has_storage
cdef object transforms_active = torch._C._are_functorch_transforms_active
cdef object dispatch_modes = torch._C._len_torch_dispatch_stack
cdef object is_tracing = torch._C._is_tracing


cdef bint is_plain(tensor, str name) except -1:
    kind = type(tensor)
    if (kind is Tensor or kind is Parameter) and tensor.is_cpu and has_storage(tensor):
        return True
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {kind.__name__}; it must be a torch.Tensor")
    check_dense(tensor, name)
    return False


def direct(x, weight, bias):
    """Whether nothing but autograd needs to see a call on these tensors: they are ordinary strided tensors in main
    memory, and no transform, dispatch mode or trace is recording. Otherwise it has to go through PyTorch's
    dispatcher. TypeError where one isn't a tensor, or None for bias.
    """
    return (is_plain(x, "x") and is_plain(weight, "weight") and (bias is None or is_plain(bias, "bias"))
            and not transforms_active() and not dispatch_modes() and not is_tracing())


def direct_backward(out_grad, x, weight):
    """`direct` for a backward call, in which x and weight may be missing."""
    return (is_plain(out_grad, "out_grad") and (x is None or is_plain(x, "x"))
            and (weight is None or is_plain(weight, "weight"))
            and not transforms_active() and not dispatch_modes() and not is_tracing())
