"""One call of the operator on tensors of Paddle: what they are, whether they fit one another, and the core's
answer.

Needs neither Python nor its lock. A check that fails leaves its reason in `refusal`.
"""

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #define FGE_THREAD_LOCAL __declspec(thread)
    #else
    #define FGE_THREAD_LOCAL __thread
    #endif

    /* Why the last call on this thread was refused; empty: it wasn't. */
    static FGE_THREAD_LOCAL char fge_refusal[400];

    /* Leaves a reason, as printf's arguments. False, so that a check can return it. */
    #define FGE_REFUSE(...) (snprintf(fge_refusal, sizeof fge_refusal, __VA_ARGS__), 0)

    /* What a status of the core means to a user. */
    static const char fge_no_memory[] = "no memory for the scratch space of a product";
    static const char fge_no_engine[] = "the engine that FGE_ENGINE or FGE_ISA asks for can't run here";
    static const char fge_bad_call[] = "the core refused the call";
    """
    char refusal "fge_refusal"[400]
    bint refuse "FGE_REFUSE"(const char *format, ...) noexcept nogil
    const char *NO_MEMORY "fge_no_memory"
    const char *NO_ENGINE "fge_no_engine"
    const char *BAD_CALL "fge_bad_call"

# What a tensor's dtype may be besides an fge_dtype.
cdef enum:
    UINT8 = 100
    BOOL = 101
    OTHER = 102

cdef struct Tensor:
    void *data  # NULL where the tensor has no elements or no memory
    int dtype
    bint contiguous
    int rank
    int64_t dims[MAX_RANK]

# The shapes of one call. `m` counts the rows over all leading axes of x. `blocks` is 1 except where x has
# leading axes and is transposed: [.., K, M] then holds that many matrices, each of m / blocks rows.
cdef struct Problem:
    int64_t m, n, k, blocks
    int dtype
    bint trans_x, trans_y


cdef const char *dtype_name(int dtype) noexcept nogil:
    if dtype == FGE_FLOAT32: return "float32"
    if dtype == FGE_FLOAT64: return "float64"
    if dtype == FGE_FLOAT16: return "float16"
    if dtype == FGE_BFLOAT16: return "bfloat16"
    if dtype == UINT8: return "uint8"
    if dtype == BOOL: return "bool"
    return "a dtype that the operator doesn't know"


cdef int64_t item_size(int dtype) noexcept nogil:
    if dtype == FGE_FLOAT64: return 8
    if dtype == FGE_FLOAT32: return 4
    return 2


cdef int64_t product(const Tensor *tensor, int axes) noexcept nogil:
    cdef int64_t count = 1
    cdef int i
    for i in range(axes):
        count *= tensor.dims[i]
    return count


cdef int64_t elements(const Tensor *tensor) noexcept nogil:
    return product(tensor, tensor.rank)


# ---- Checks ------------------------------------------------------------------------------------------------

cdef bint usable(const char *name, const Tensor *tensor) noexcept nogil:
    """Whether a tensor's data can be read as a plain array of its shape."""
    if tensor.data == NULL and elements(tensor) != 0:
        return refuse("%s holds no memory", name)
    if not tensor.contiguous:
        return refuse("%s is a strided view, which a kernel isn't given", name)
    return True


cdef bint same_dtype(const char *name, const Tensor *tensor, int dtype) noexcept nogil:
    if tensor.dtype != dtype:
        return refuse("%s is of %s and x of %s; they must be of one dtype", name, dtype_name(tensor.dtype),
                      dtype_name(dtype))
    return True


cdef bint set_problem(Problem *problem, const Tensor *x, const char *y_name, const Tensor *y, bint trans_x,
                      bint trans_y) noexcept nogil:
    """The shapes of x and y, checked against one another."""
    cdef int64_t rows, k_of_y
    if x.dtype >= UINT8:
        return refuse("x is of %s; it must be float32, float64, float16 or bfloat16", dtype_name(x.dtype))
    if x.rank < 2:
        return refuse("x has rank %d; it must be >= 2", x.rank)
    if y.rank != 2:
        return refuse("%s has rank %d; it must be 2", y_name, y.rank)
    if not (same_dtype(y_name, y, x.dtype) and usable("x", x) and usable(y_name, y)):
        return False
    problem.dtype = x.dtype
    problem.trans_x = trans_x
    problem.trans_y = trans_y
    rows = x.dims[x.rank - 1] if trans_x else x.dims[x.rank - 2]
    problem.k = x.dims[x.rank - 2] if trans_x else x.dims[x.rank - 1]
    problem.blocks = product(x, x.rank - 2)
    problem.m = problem.blocks * rows
    if not trans_x:
        problem.blocks = 1
    problem.n = y.dims[0] if trans_y else y.dims[1]
    k_of_y = y.dims[1] if trans_y else y.dims[0]
    if k_of_y != problem.k:
        return refuse("x has K = %lld and %s has K = %lld; they must be equal", <long long> problem.k, y_name,
                      <long long> k_of_y)
    return True


cdef bint check_bias(const Problem *problem, const char *name, const Tensor *bias,
                     const char *y_name) noexcept nogil:
    if bias.rank != 1 or bias.dims[0] != problem.n:
        return refuse("%s must have shape [N] = [%lld] to match %s", name, <long long> problem.n, y_name)
    return same_dtype(name, bias, problem.dtype) and usable(name, bias)


cdef bint check_shape_of_out(const Problem *problem, const char *name, const Tensor *tensor) noexcept nogil:
    """Whether a tensor is [.., N] with as many rows as the product has."""
    cdef int last = tensor.rank - 1
    if last < 1 or tensor.dims[last] != problem.n or product(tensor, last) != problem.m:
        return refuse("%s must have the shape of the output: %lld rows and N = %lld columns", name,
                      <long long> problem.m, <long long> problem.n)
    return same_dtype(name, tensor, problem.dtype) and usable(name, tensor)


cdef bint check_reserve(const Tensor *reserve, int activation, int dtype, int64_t rows,
                        int64_t cols) noexcept nogil:
    """Whether a tensor is the reserve of an activation over [rows, cols] values."""
    cdef int64_t row_bytes = fge_bits_row_bytes(cols)
    if activation_reserve(activation) != FGE_RESERVE_BITS:
        if reserve.dtype != dtype or elements(reserve) != rows * cols:
            return refuse("reserve_space must be of %s, with %lld rows and %lld columns", dtype_name(dtype),
                          <long long> rows, <long long> cols)
    elif not (reserve.dtype == UINT8 and elements(reserve) == rows * row_bytes
              or reserve.dtype == BOOL and elements(reserve) == rows * cols):
        return refuse("reserve_space of relu must be the uint8 tensor that the forward returned, [%lld, "
                      "%lld], or of bool, with %lld rows and %lld columns",
                      <long long> rows, <long long> row_bytes, <long long> rows, <long long> cols)
    return usable("reserve_space", reserve)


# ---- The two calls -----------------------------------------------------------------------------------------

cdef inline void *advance(const void *data, int64_t count, int64_t size) noexcept nogil:
    return NULL if data == NULL else <char *> data + count * size


cdef int64_t reserve_row_bytes(int activation, int64_t cols, int dtype) noexcept nogil:
    if activation_reserve(activation) == FGE_RESERVE_BITS:
        return fge_bits_row_bytes(cols)
    return cols * item_size(dtype)


cdef int64_t rows_of_a_block(const Problem *problem) noexcept nogil:
    return problem.m // problem.blocks if problem.blocks else 0


cdef int run_forward(const Problem *problem, const Tensor *x, const Tensor *y, const void *bias,
                     fge_activation activation, void *out, void *reserve) noexcept nogil:
    """out = act(x . y + bias) and its reserve, both of packed rows. bias and reserve may be NULL. An
    fge_status.
    """
    cdef fge_forward_args args
    cdef int64_t rows = rows_of_a_block(problem)
    cdef int64_t size = item_size(problem.dtype)
    cdef int64_t block
    cdef int status = FGE_OK
    memset(&args, 0, sizeof(args))
    args.m = rows
    args.n = problem.n
    args.k = problem.k
    args.dtype = problem.dtype
    args.activation = activation
    args.x.row_stride = 1 if problem.trans_x else problem.k
    args.x.col_stride = rows if problem.trans_x else 1
    args.y.data = y.data
    args.y.row_stride = 1 if problem.trans_y else problem.n
    args.y.col_stride = problem.k if problem.trans_y else 1
    args.bias = bias
    args.bias_dtype = problem.dtype
    args.bias_stride = 1
    args.out_row_stride = problem.n
    for block in range(problem.blocks):
        args.x.data = advance(x.data, block * rows * problem.k, size)
        args.out = advance(out, block * rows * problem.n, size)
        args.reserve = advance(reserve, block * rows, reserve_row_bytes(activation.id, problem.n, problem.dtype))
        status = core_forward(&args)
        if status != FGE_OK:
            break
    return status


cdef void *swap_last_axes(const Tensor *x, int64_t blocks) noexcept nogil:
    """A copy of x [blocks, rows, cols] as [blocks, cols, rows]; NULL where there is no memory for it."""
    cdef int64_t rows = x.dims[x.rank - 2]
    cdef int64_t cols = x.dims[x.rank - 1]
    cdef int64_t size = item_size(x.dtype)
    cdef char *source = <char *> x.data
    cdef char *copy = <char *> malloc(blocks * rows * cols * size + 1)
    cdef int64_t block, i, j
    if copy != NULL:
        for block in range(blocks):
            for j in range(cols):
                for i in range(rows):
                    memcpy(copy + ((block * cols + j) * rows + i) * size,
                           source + ((block * rows + i) * cols + j) * size, size)
    return copy


cdef int run_backward(const Problem *problem, const Tensor *x, const Tensor *y, const Tensor *out_grad,
                      fge_activation activation, const void *reserve, fge_activation x_activation, const void *x_reserve,
                      void *x_grad, void *y_grad, void *bias_grad) noexcept nogil:
    """The gradients that have an address, each in the layout of its input. An fge_status.

    `activation` and `reserve` are those of the call's forward, `x_activation` and `x_reserve` those of the
    call that made x. A reserve of no elements may be NULL.
    """
    cdef fge_backward_args args
    cdef int64_t rows = rows_of_a_block(problem)
    cdef int64_t size = item_size(problem.dtype)
    cdef int64_t block
    cdef void *copy = NULL
    cdef int status = FGE_OK
    cdef const void *nothing = <void *> &args  # a reserve of no elements; NULL is a missing one to the core
    memset(&args, 0, sizeof(args))
    args.m = problem.m
    args.n = problem.n
    args.k = problem.k
    args.dtype = problem.dtype
    args.activation = activation
    args.reserve = nothing if reserve == NULL else reserve
    args.x.data = x.data
    args.x.row_stride = 1 if problem.trans_x else problem.k
    args.x.col_stride = problem.m if problem.trans_x else 1
    args.y.data = y.data
    args.y.row_stride = 1 if problem.trans_y else problem.n
    args.y.col_stride = problem.k if problem.trans_y else 1
    args.out_grad.data = out_grad.data
    args.out_grad.row_stride = problem.n
    args.out_grad.col_stride = 1
    args.x_grad.data = x_grad
    args.x_grad.row_stride = problem.m if problem.trans_x else problem.k
    args.x_grad.dtype = problem.dtype
    args.x_grad.accumulate = 0
    args.x_grad_transposed = problem.trans_x
    args.x_activation = x_activation
    args.x_reserve = nothing if x_reserve == NULL else x_reserve
    args.y_grad.data = y_grad
    args.y_grad.row_stride = problem.k if problem.trans_y else problem.n
    args.y_grad.dtype = problem.dtype
    args.y_grad.accumulate = 0
    args.y_grad_transposed = problem.trans_y
    args.bias_grad.data = bias_grad
    args.bias_grad.row_stride = 1
    args.bias_grad.dtype = problem.dtype
    args.bias_grad.accumulate = 0
    if problem.blocks == 1:
        return core_backward(&args)

    # x [.., K, M]: y_grad and bias_grad are sums over all rows, so one call makes them, on a copy of x as
    # [.., M, K].
    if y_grad != NULL or bias_grad != NULL:
        copy = swap_last_axes(x, problem.blocks)
        if copy == NULL:
            return FGE_NO_MEMORY
        args.x.data = copy
        args.x.row_stride = problem.k
        args.x.col_stride = 1
        args.x_grad.data = NULL
        args.x_activation = activation_plain("none")
        status = core_backward(&args)
        free(copy)
    # x_grad has blocks of its own.
    if x_grad != NULL and status == FGE_OK:
        args.m = rows
        args.x.row_stride = 1
        args.x.col_stride = rows
        args.x_grad.row_stride = rows
        args.x_activation = x_activation
        args.y_grad.data = NULL
        args.bias_grad.data = NULL
        for block in range(problem.blocks):
            args.x.data = advance(x.data, block * rows * problem.k, size)
            args.out_grad.data = advance(out_grad.data, block * rows * problem.n, size)
            args.x_grad.data = advance(x_grad, block * rows * problem.k, size)
            if reserve != NULL:
                args.reserve = advance(reserve, block * rows,
                                       reserve_row_bytes(activation.id, problem.n, problem.dtype))
            if x_reserve != NULL:
                args.x_reserve = advance(x_reserve, block * problem.k,
                                         reserve_row_bytes(x_activation.id, rows, problem.dtype))
            status = core_backward(&args)
            if status != FGE_OK:
                break
    return status
