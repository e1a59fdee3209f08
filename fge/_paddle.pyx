"""The operator's kernels for Paddle on a CPU: fused_gemm_epilogue and fused_gemm_epilogue_grad.

A CPU build of Paddle holds both operators, their shape inference and their autograd node, and lacks only the
kernels. `register` adds them through the C interface that Paddle offers to plug-ins.

`forward` and `backward` make the same calls on tensors of eager mode that they are given, for callers that
Paddle's shape inference would turn away.

A kernel can't raise: a C++ exception of ours would end the process, and Python's lock is not held. Where a
call has no meaning it leaves the reason for `take_error` and lets Paddle throw an exception of its own.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.stdio cimport snprintf  # no-cython-lint: for FGE_REFUSE
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strcmp

import paddle

from fge._kernels cimport (
    FGE_BFLOAT16, FGE_FLOAT16, FGE_FLOAT32, FGE_FLOAT64, FGE_NO_ENGINE, FGE_NO_MEMORY, FGE_OK,
    FGE_RESERVE_BITS, FGE_RESERVE_NONE, FGE_RESERVE_Z, activation_plain, activation_reserve,
    backward as core_backward, fge_activation, fge_backward_args, fge_bits_row_bytes, fge_forward_args,
    fge_glu_backward_args, fge_glu_forward_args, fge_in, fge_out, forward as core_forward,
    glu_backward as core_glu_backward, glu_forward as core_glu_forward,
)

include "_paddle_capi.pxi"
include "_paddle_call.pxi"

cdef extern from *:
    """
    static const char fge_relu_of_8[] = "relu of 8 columns";
    """
    const char *RELU_OF_8 "fge_relu_of_8"

# Another name for relu, which the kernels know. Under "relu" Paddle's shape inference wants a multiple of 128
# columns, and under every other name but "none" a multiple of 8.
RELU_OF_8_COLUMNS = RELU_OF_8.decode()


# ---- The kernels -------------------------------------------------------------------------------------------

cdef int own_dtype(int dtype) noexcept nogil:
    if dtype == PD_FLOAT32: return FGE_FLOAT32
    if dtype == PD_FLOAT64: return FGE_FLOAT64
    if dtype == PD_FLOAT16: return FGE_FLOAT16
    if dtype == PD_BFLOAT16: return FGE_BFLOAT16
    if dtype == PD_UINT8: return UINT8
    if dtype == PD_BOOL: return BOOL
    return OTHER


cdef int pd_dtype(int dtype) noexcept nogil:
    """The code of an fge_dtype."""
    if dtype == FGE_FLOAT64: return PD_FLOAT64
    if dtype == FGE_FLOAT16: return PD_FLOAT16
    if dtype == FGE_BFLOAT16: return PD_BFLOAT16
    return PD_FLOAT32


cdef bint read_tensor(Tensor *tensor, void *source) noexcept nogil:
    """Reads what a tensor is that Paddle hands to a kernel."""
    cdef int status = 0
    cdef int64_t rank = rank_of(source, &status)
    cdef int64_t stride = 1
    cdef int64_t i
    if rank < 0 or rank > MAX_RANK:
        return refuse("a tensor has %lld axes; the most is %d", <long long> rank, <int> MAX_RANK)
    tensor.rank = <int> rank
    tensor.dtype = own_dtype(dtype_of(source, &status))
    tensor.data = data_of(source, &status) if is_initialized(source, &status) else NULL
    for i in range(rank):
        tensor.dims[i] = dim_of(source, i, &status)
    tensor.contiguous = strides_of(source, &status) == rank
    for i in range(rank - 1, -1, -1):
        if tensor.contiguous and tensor.dims[i] > 1 and stride_of(source, i, &status) != stride:
            tensor.contiguous = False
        stride *= tensor.dims[i]
    if elements(tensor) == 0:
        tensor.contiguous = True
    return True


cdef void throw_in_paddle(void *device, void *out, int status) noexcept nogil:
    """Ends a kernel with an exception of Paddle's: ResourceExhausted where the core found no memory, and
    PreconditionNotMet for the rest, FGE_OK being a call that a check has refused.

    Paddle's functions throw when they are asked for what can't be: an allocation that no machine has, and one
    for a tensor of -1 elements. The functions between them and Paddle's handler hold nothing that would need
    releasing.
    """
    cdef int64_t impossible = -1
    cdef int ignored = 0
    if status == FGE_NO_MEMORY:
        allocate(device, out, <size_t> 1 << 60, PD_FLOAT32, &ignored)
    elif status == FGE_NO_ENGINE:
        refuse("%s", NO_ENGINE)
    elif status != FGE_OK:
        refuse("%s", BAD_CALL)
    set_dims(out, 1, &impossible, &ignored)
    allocate(device, out, 0, PD_FLOAT32, &ignored)


cdef fge_activation paddle_activation(const char *name) noexcept nogil:
    """An activation that Paddle's operator has; an id of -1 for all other names."""
    if strcmp(name, RELU_OF_8) == 0:
        return activation_plain("relu")
    if strcmp(name, "none") and strcmp(name, "relu") and strcmp(name, "gelu"):
        refuse("the activation must be one of none, relu and gelu")
        return activation_plain("")
    return activation_plain(name)


cdef bint allocate_as(void *device, void *tensor, int dtype, int64_t count, void **data) noexcept nogil:
    """The memory of an output that Paddle's shape inference has given `count` elements; NULL where it isn't
    wanted.
    """
    cdef Tensor result
    cdef int ignored = 0
    data[0] = NULL
    if tensor == NULL:
        return True
    data[0] = allocate(device, tensor, 0, pd_dtype(dtype), &ignored)
    if not read_tensor(&result, tensor) or elements(&result) != count:
        return refuse("an output doesn't have the %lld elements of its definition", <long long> count)
    return True


cdef void *allocate_bits(void *device, void *reserve, int64_t rows, int64_t cols) noexcept nogil:
    """The memory of relu's reserve, which Paddle's shape inference takes for values of the output's shape."""
    cdef int64_t[2] dims = [rows, fge_bits_row_bytes(cols)]
    cdef int ignored = 0
    set_dims(reserve, 2, dims, &ignored)
    return allocate(device, reserve, 0, PD_UINT8, &ignored)


cdef void forward_kernel(void *device, void *x_source, void *y_source, void *bias_source, cbool trans_x,
                         cbool trans_y, const char *activation_name, void *out, void *reserve) noexcept nogil:
    """act(x . y + bias). Paddle's shape inference has run; shapes are checked again because it leaves gaps.
    """
    cdef Tensor x, y, bias
    cdef Problem problem
    cdef void *out_data = NULL
    cdef void *reserve_data = NULL
    cdef int status = FGE_OK
    cdef fge_activation activation
    cdef bint good
    refusal[0] = 0
    activation = paddle_activation(activation_name)
    good = (activation.id >= 0
            and read_tensor(&x, x_source) and read_tensor(&y, y_source) and read_tensor(&bias, bias_source)
            and set_problem(&problem, &x, "y", &y, trans_x, trans_y) and check_bias(&problem, "bias", &bias, "y")
            and allocate_as(device, out, problem.dtype, problem.m * problem.n, &out_data))
    if good and reserve != NULL and activation_reserve(activation.id) == FGE_RESERVE_BITS:
        reserve_data = allocate_bits(device, reserve, problem.m, problem.n)
    elif good and activation_reserve(activation.id) == FGE_RESERVE_Z:
        good = allocate_as(device, reserve, problem.dtype, problem.m * problem.n, &reserve_data)
    if good:
        status = run_forward(&problem, &x, &y, bias.data, activation, out_data, reserve_data)
    if not good or status != FGE_OK:
        throw_in_paddle(device, out, status)


cdef uint8_t *bits_of(const Tensor *mask, int64_t rows, int64_t cols) noexcept nogil:
    """The relu bits of a bool tensor of [rows, cols] values; NULL where there is no memory for them."""
    cdef int64_t row_bytes = fge_bits_row_bytes(cols)
    cdef const uint8_t *values = <const uint8_t *> mask.data
    cdef uint8_t *bits = <uint8_t *> malloc(rows * row_bytes + 1)
    cdef int64_t i, j, byte
    cdef uint8_t packed
    if bits != NULL:
        for i in range(rows):
            for byte in range(row_bytes):
                packed = 0
                for j in range(8 * byte, min(8 * byte + 8, cols)):
                    if values[i * cols + j]:
                        packed |= <uint8_t> (1 << (j - 8 * byte))
                bits[i * row_bytes + byte] = packed
    return bits


cdef void backward_kernel(void *device, void *x_source, void *y_source, void *reserve_source,
                          void *out_grad_source, cbool trans_x, cbool trans_y, const char *activation_name,
                          void *x_grad, void *y_grad, void *bias_grad) noexcept nogil:
    """The gradients that have a tensor.

    "relu" and "gelu" are the activation of this call's forward, as autograd passes it: out_grad is multiplied
    by its derivative. "relu_grad" and "gelu_grad" are the activation that produced x, as a caller on a GPU
    means it: x_grad is multiplied by its derivative, and the reserve is that of x.
    """
    cdef Tensor x, y, out_grad, reserve
    cdef Problem problem
    cdef fge_activation activation = activation_plain("none")
    cdef fge_activation x_activation = activation
    cdef int64_t rows, cols
    cdef void *x_data = NULL
    cdef void *y_data = NULL
    cdef void *bias_data = NULL
    cdef void *reserve_data = NULL
    cdef void *bits = NULL
    cdef void *wanted = x_grad if x_grad != NULL else y_grad if y_grad != NULL else bias_grad
    cdef int status = FGE_OK
    cdef bint good = True
    refusal[0] = 0
    if wanted == NULL:
        return
    if strcmp(activation_name, "relu_grad") == 0:
        x_activation = activation_plain("relu")
    elif strcmp(activation_name, "gelu_grad") == 0:
        x_activation = activation_plain("gelu")
    else:
        activation = paddle_activation(activation_name)
        good = activation.id >= 0
    good = (good and read_tensor(&x, x_source) and read_tensor(&y, y_source)
            and read_tensor(&out_grad, out_grad_source)
            and set_problem(&problem, &x, "y", &y, trans_x, trans_y) and check_shape_of_out(&problem, "out_grad", &out_grad)
            and allocate_as(device, x_grad, problem.dtype, problem.m * problem.k, &x_data)
            and allocate_as(device, y_grad, problem.dtype, problem.k * problem.n, &y_data)
            and allocate_as(device, bias_grad, problem.dtype, problem.n, &bias_data))
    if good and (activation.id or x_activation.id):
        rows = product(&x, x.rank - 1) if x_activation.id else problem.m
        cols = x.dims[x.rank - 1] if x_activation.id else problem.n
        if reserve_source == NULL:
            good = refuse("the ReserveSpace should not be empty")
        else:
            good = (read_tensor(&reserve, reserve_source)
                    and check_reserve(&reserve, activation.id or x_activation.id, problem.dtype, rows, cols))
        if good:
            reserve_data = reserve.data
            if reserve.dtype == BOOL:
                bits = bits_of(&reserve, rows, cols)
                reserve_data = bits
                status = FGE_NO_MEMORY if bits == NULL else FGE_OK
    if good and status == FGE_OK:
        status = run_backward(&problem, &x, &y, &out_grad, activation, reserve_data if activation.id else NULL,
                              x_activation, reserve_data if x_activation.id else NULL, x_data, y_data, bias_data)
    free(bits)
    if not good or status != FGE_OK:
        throw_in_paddle(device, wanted, status)


# Each kernel has two entries: eager mode calls the variadic one with every argument in its place, an executor
# the one that takes a context.

cdef void forward_variadic(void *device, void *x, void *y, void *bias, cbool trans_x, cbool trans_y,
                           void *activation, void *out, void *reserve) noexcept nogil:
    forward_kernel(device, x, y, bias, trans_x, trans_y, string_of(activation), out, reserve)


cdef void forward_context(void *context) noexcept nogil:
    forward_kernel(device_of(context), input_at(context, 0), input_at(context, 1), input_at(context, 2),
                   bool_at(context, 0), bool_at(context, 1), string_at(context, 2),
                   output_at(context, 0), output_at(context, 1))


cdef void backward_variadic(void *device, void *x, void *y, void *reserve, void *out_grad, cbool trans_x,
                            cbool trans_y, void *activation, void *x_grad, void *y_grad,
                            void *bias_grad) noexcept nogil:
    backward_kernel(device, x, y, optional_tensor(reserve), out_grad, trans_x, trans_y, string_of(activation),
                    x_grad, y_grad, bias_grad)


cdef void backward_context(void *context) noexcept nogil:
    backward_kernel(device_of(context), input_at(context, 0), input_at(context, 1), input_at(context, 2),
                    input_at(context, 3), bool_at(context, 0), bool_at(context, 1), string_at(context, 2),
                    output_at(context, 0), output_at(context, 1), output_at(context, 2))


cdef void define_arguments(const void *key, void *kernel) noexcept nogil:
    """Paddle's defaults stand: every tensor is of the kernel's dtype and on its device."""


def register(size_t library):
    """Adds the CPU kernels of fused_gemm_epilogue and fused_gemm_epilogue_grad in each floating-point dtype.

    `library` is the handle of a loaded library that holds Paddle's C interface, or that depends on it.
    LookupError where a function of the interface is missing; nothing is registered then. A second call does
    nothing.
    """
    cdef int *inputs = [PD_CONTEXT, PD_TENSOR, PD_TENSOR, PD_TENSOR]
    cdef int *grad_inputs = [PD_CONTEXT, PD_TENSOR, PD_TENSOR, PD_OPTIONAL_TENSOR, PD_TENSOR]
    cdef int *attributes = [PD_BOOL_ATTRIBUTE, PD_BOOL_ATTRIBUTE, PD_STRING_ATTRIBUTE]
    cdef int *outputs = [PD_TENSOR, PD_TENSOR, PD_TENSOR]
    if register_kernel != NULL:
        return
    look_up(library)
    for dtype in (PD_FLOAT32, PD_FLOAT64, PD_FLOAT16, PD_BFLOAT16):
        register_kernel(
            "fused_gemm_epilogue", "CPU", dtype, 0, 4, inputs, 3, attributes, 2, outputs,
            <void *> define_arguments, <void *> forward_context, <void *> forward_variadic,
        )
        register_kernel(
            "fused_gemm_epilogue_grad", "CPU", dtype, 0, 5, grad_inputs, 3, attributes, 3, outputs,
            <void *> define_arguments, <void *> backward_context, <void *> backward_variadic,
        )


def take_error():
    """Why the last call on this thread was refused, or None. A reason is given once."""
    if refusal[0] == 0:
        return None
    reason = (<char *> refusal).decode()
    refusal[0] = 0
    return reason


# ---- Calls on tensors of eager mode ------------------------------------------------------------------------

cdef dict dtype_ids = {
    paddle.float32: FGE_FLOAT32, paddle.float64: FGE_FLOAT64, paddle.float16: FGE_FLOAT16,
    paddle.bfloat16: FGE_BFLOAT16, paddle.uint8: UINT8, paddle.bool: BOOL,
}


cdef int read_python(Tensor *tensor, object source) except -1:
    """Reads what a paddle.Tensor is. None gets data NULL."""
    cdef int i
    tensor.data = NULL
    tensor.rank = 0
    if source is None:
        return 0
    shape = source.shape
    if len(shape) > MAX_RANK:
        raise ValueError(f"(InvalidArgument) a tensor has {len(shape)} axes; the most is {MAX_RANK}")
    tensor.rank = len(shape)
    for i in range(tensor.rank):
        tensor.dims[i] = shape[i]
    tensor.dtype = dtype_ids.get(source.dtype, OTHER)
    tensor.contiguous = source.is_contiguous()
    if elements(tensor) != 0:
        tensor.data = <void *> <size_t> source.data_ptr()
    return 0


cdef fge_activation activation_of(str text) except *:
    cdef fge_activation activation = activation_plain(text.encode())
    if activation.id < 0:
        raise ValueError(f"(InvalidArgument) there is no activation {text!r}")
    return activation


cdef int raise_for(bint good, int status) except -1:
    """Raises what a refused call (not `good`) or a status of the core stands for."""
    if not good:
        raise ValueError(f"(InvalidArgument) {take_error()}")
    if status == FGE_NO_MEMORY:
        raise MemoryError(NO_MEMORY.decode())
    if status == FGE_NO_ENGINE:
        raise RuntimeError(NO_ENGINE.decode())
    if status != FGE_OK:
        raise RuntimeError(BAD_CALL.decode())
    return 0


def forward(x, y, bias, bint trans_x, bint trans_y, str activation, out, reserve):
    """Writes act(x . y + bias) and its reserve into contiguous tensors.

    x [.., M, K], or [.., K, M] where `trans_x`; y [K, N], or [N, K] where `trans_y`; bias [N] or None; out
    [.., M, N]; reserve as `reserve_shape` says, or None: not saved. ValueError for shapes and dtypes that
    don't fit.
    """
    cdef fge_activation act = activation_of(activation)
    cdef Tensor x_, y_, bias_, out_, reserve_
    cdef Problem problem
    cdef int status = FGE_OK
    cdef bint good
    read_python(&x_, x)
    read_python(&y_, y)
    read_python(&bias_, bias)
    read_python(&out_, out)
    read_python(&reserve_, reserve)
    good = set_problem(&problem, &x_, "y", &y_, trans_x, trans_y)
    if good and bias is not None:
        good = check_bias(&problem, "bias", &bias_, "y")
    if good:
        good = check_shape_of_out(&problem, "out", &out_)
    if good and reserve is not None:
        good = check_reserve(&reserve_, act.id, problem.dtype, problem.m, problem.n)
    if good:
        with nogil:
            status = run_forward(&problem, &x_, &y_, bias_.data, act, out_.data, reserve_.data)
    raise_for(good, status)


def backward(x, y, reserve, out_grad, bint trans_x, bint trans_y, str activation, x_grad, y_grad, bias_grad,
             str x_activation="none", x_reserve=None):
    """Writes the gradients that are not None, each of its input's shape, into contiguous tensors.

    `activation` and `reserve` are those of the forward. x_grad is multiplied by the derivative of the
    `x_activation` that made x, whose reserve is `x_reserve`; x isn't transposed then. ValueError for shapes
    and dtypes that don't fit.
    """
    cdef fge_activation act = activation_of(activation)
    cdef fge_activation x_act = activation_of(x_activation)
    cdef Tensor x_, y_, reserve_, x_reserve_, out_grad_, x_grad_, y_grad_, bias_grad_
    cdef Problem problem
    cdef int status = FGE_OK
    cdef bint good
    read_python(&x_, x)
    read_python(&y_, y)
    read_python(&reserve_, reserve)
    read_python(&x_reserve_, x_reserve)
    read_python(&out_grad_, out_grad)
    read_python(&x_grad_, x_grad)
    read_python(&y_grad_, y_grad)
    read_python(&bias_grad_, bias_grad)
    good = set_problem(&problem, &x_, "y", &y_, trans_x, trans_y) and check_shape_of_out(&problem, "out_grad", &out_grad_)
    if good and activation_reserve(act.id) != FGE_RESERVE_NONE:
        good = check_reserve(&reserve_, act.id, problem.dtype, problem.m, problem.n)
    if good and activation_reserve(x_act.id) != FGE_RESERVE_NONE:
        good = check_reserve(&x_reserve_, x_act.id, problem.dtype, problem.m, problem.k)
    if good:
        with nogil:
            status = run_backward(&problem, &x_, &y_, &out_grad_, act, reserve_.data, x_act, x_reserve_.data,
                                  x_grad_.data, y_grad_.data, bias_grad_.data)
    raise_for(good, status)


def activate(z, str activation, out):
    """Writes act(z) of a contiguous tensor [.., N] into another: a product with K = 0 and z as its residual."""
    cdef fge_forward_args args
    cdef Tensor z_, out_
    cdef int status
    memset(&args, 0, sizeof(args))
    args.activation = activation_of(activation)
    read_python(&z_, z)
    read_python(&out_, out)
    args.dtype = z_.dtype
    args.m, args.n = product(&z_, z_.rank - 1), z_.dims[z_.rank - 1]
    args.residual, args.out = z_.data, out_.data
    args.residual_row_stride = args.out_row_stride = args.n
    with nogil:
        status = core_forward(&args)
    raise_for(True, status)


include "_paddle_glu.pxi"


def reserve_shape(str activation, list out_shape):
    """The shape of an activation's reserve, and whether it holds bits (uint8) or values of the operator's
    dtype.

    The shape is None where the activation keeps nothing, or its own output.
    """
    cdef int kind = activation_reserve(activation_of(activation).id)
    cdef int64_t rows = 1
    if kind == FGE_RESERVE_BITS:
        for size in out_shape[:-1]:
            rows *= size
        return [rows, fge_bits_row_bytes(out_shape[-1])], True
    return (out_shape if kind == FGE_RESERVE_Z else None), False
