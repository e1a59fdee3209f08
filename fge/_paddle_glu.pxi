# The gated unit on contiguous tensors of eager mode. Part of _paddle.pyx, whose checks it uses.

cdef struct GluOperands:
    Problem problem
    Tensor x, w_gate, w_up


cdef fge_in matrix_of(const Tensor *tensor, int64_t columns) noexcept nogil:
    cdef fge_in matrix
    matrix.data, matrix.row_stride, matrix.col_stride = tensor.data, columns, 1
    return matrix


cdef int describe(fge_out *result, object grad, int dtype, int64_t row_stride) except -1:
    """Where a gradient goes; nowhere for None."""
    cdef Tensor tensor
    read_python(&tensor, grad)
    memset(result, 0, sizeof(result[0]))
    result.data, result.row_stride, result.dtype = tensor.data, row_stride, dtype
    return 0


cdef int read_operands(GluOperands *of, x, w_gate, w_up) except -1:
    cdef bint good
    read_python(&of.x, x)
    read_python(&of.w_gate, w_gate)
    read_python(&of.w_up, w_up)
    good = set_problem(&of.problem, &of.x, "w_gate", &of.w_gate, False, False)
    if good and not (of.w_up.rank == 2 and of.w_up.dims[0] == of.problem.k and of.w_up.dims[1] == of.problem.n):
        good = refuse("w_up must have the shape of w_gate, [%lld, %lld]", <long long> of.problem.k,
                      <long long> of.problem.n)
    return raise_for(good and same_dtype("w_up", &of.w_up, of.problem.dtype) and usable("w_up", &of.w_up), FGE_OK)


def glu_forward(x, w_gate, w_up, b_gate, b_up, str activation, out, z_gate, z_up):
    """Writes act(x . w_gate + b_gate) * (x . w_up + b_up) into out [.., M, N], and both products with their
    biases into z_gate and z_up of that shape, or nowhere where they are None.

    x [.., M, K], weights [K, N], biases [N] or None. ValueError for shapes and dtypes that don't fit.
    """
    cdef GluOperands of
    cdef Tensor b_gate_, b_up_, out_, z_gate_, z_up_
    cdef fge_glu_forward_args args
    cdef bint good = True
    cdef int status = FGE_OK
    memset(&args, 0, sizeof(args))
    args.activation = activation_of(activation)
    read_operands(&of, x, w_gate, w_up)
    read_python(&b_gate_, b_gate)
    read_python(&b_up_, b_up)
    read_python(&out_, out)
    read_python(&z_gate_, z_gate)
    read_python(&z_up_, z_up)
    if b_gate is not None:
        good = check_bias(&of.problem, "b_gate", &b_gate_, "w_gate")
    if good and b_up is not None:
        good = check_bias(&of.problem, "b_up", &b_up_, "w_gate")
    good = good and check_shape_of_out(&of.problem, "out", &out_)
    args.dtype, args.m, args.n, args.k = of.problem.dtype, of.problem.m, of.problem.n, of.problem.k
    args.x = matrix_of(&of.x, args.k)
    args.w_gate, args.w_up = matrix_of(&of.w_gate, args.n), matrix_of(&of.w_up, args.n)
    args.b_gate, args.b_up = b_gate_.data, b_up_.data
    args.b_gate_dtype = args.b_up_dtype = args.dtype
    args.b_gate_stride = args.b_up_stride = 1
    args.out, args.out_row_stride = out_.data, args.n
    args.z_gate, args.z_up = z_gate_.data, z_up_.data
    if good:
        with nogil:
            status = core_glu_forward(&args)
    raise_for(good, status)


def glu_backward(x, w_gate, w_up, z_gate, z_up, out_grad, str activation, gate_grad, up_grad, grads):
    """Writes the gradients of `glu_forward` that are not None.

    gate_grad and up_grad, of out's shape, get the gradients of z_gate and z_up; `grads`: those of x, w_gate,
    w_up, b_gate and b_up. ValueError for shapes and dtypes that don't fit.
    """
    cdef GluOperands of
    cdef Tensor z_gate_, z_up_, out_grad_, gate_grad_, up_grad_
    cdef fge_glu_backward_args args
    cdef bint good
    cdef int status = FGE_OK
    memset(&args, 0, sizeof(args))
    args.activation = activation_of(activation)
    read_operands(&of, x, w_gate, w_up)
    read_python(&z_gate_, z_gate)
    read_python(&z_up_, z_up)
    read_python(&out_grad_, out_grad)
    read_python(&gate_grad_, gate_grad)
    read_python(&up_grad_, up_grad)
    good = (check_shape_of_out(&of.problem, "out_grad", &out_grad_)
            and check_shape_of_out(&of.problem, "z_gate", &z_gate_)
            and check_shape_of_out(&of.problem, "z_up", &z_up_))
    args.dtype, args.m, args.n, args.k = of.problem.dtype, of.problem.m, of.problem.n, of.problem.k
    args.x, args.out_grad = matrix_of(&of.x, args.k), matrix_of(&out_grad_, args.n)
    args.w_gate, args.w_up = matrix_of(&of.w_gate, args.n), matrix_of(&of.w_up, args.n)
    args.z_gate, args.z_up = z_gate_.data, z_up_.data
    args.gate_grad, args.up_grad = gate_grad_.data, up_grad_.data
    describe(&args.x_grad, grads[0], args.dtype, args.k)
    describe(&args.w_gate_grad, grads[1], args.dtype, args.n)
    describe(&args.w_up_grad, grads[2], args.dtype, args.n)
    describe(&args.b_gate_grad, grads[3], args.dtype, 1)
    describe(&args.b_up_grad, grads[4], args.dtype, 1)
    if good:
        with nogil:
            status = core_glu_backward(&args)
    raise_for(good, status)
