"""The operator's C interface for other extensions of this package: `cimport` and call, nothing to link."""
from libc.stdint cimport int64_t


cdef extern from "core/fge.h" nogil:
    ctypedef enum fge_dtype:
        FGE_FLOAT32, FGE_FLOAT64, FGE_FLOAT16, FGE_BFLOAT16
    ctypedef enum fge_status:
        FGE_OK, FGE_NO_MEMORY, FGE_BAD_CALL, FGE_NO_ENGINE
    ctypedef enum fge_reserve_kind:
        FGE_RESERVE_NONE, FGE_RESERVE_BITS, FGE_RESERVE_Z, FGE_RESERVE_OUT
    int64_t fge_bits_row_bytes(int64_t n)
    ctypedef struct fge_activation:
        int id
        double *parameter
    ctypedef struct fge_in:
        const void *data
        int64_t row_stride
        int64_t col_stride
    ctypedef struct fge_out:
        void *data
        int64_t row_stride
        int dtype
        int accumulate
    ctypedef struct fge_forward_args:
        int64_t m, n, k
        int dtype
        fge_activation activation
        fge_in x, y
        const void *bias
        int bias_dtype
        int64_t bias_stride
        void *out
        int64_t out_row_stride
        void *reserve
        const void *residual
        int64_t residual_row_stride
        int residual_at_out
    ctypedef struct fge_backward_args:
        int64_t m, n, k
        int dtype
        fge_activation activation
        fge_in x, y
        const void *reserve
        fge_in out_grad
        fge_out x_grad
        int x_grad_transposed
        fge_activation x_activation
        const void *x_reserve
        fge_out y_grad
        int y_grad_transposed
        fge_out bias_grad
        fge_out z_grad
    ctypedef struct fge_glu_forward_args:
        int64_t m, n, k
        int dtype
        fge_activation activation
        fge_in x, w_gate, w_up
        const void *b_gate
        const void *b_up
        int b_gate_dtype, b_up_dtype
        int64_t b_gate_stride, b_up_stride
        void *out
        int64_t out_row_stride
        void *z_gate
        void *z_up
    ctypedef struct fge_glu_backward_args:
        int64_t m, n, k
        int dtype
        fge_activation activation
        fge_in x, w_gate, w_up
        const void *z_gate
        const void *z_up
        fge_in out_grad
        fge_out x_grad
        fge_out w_gate_grad, w_up_grad
        int w_grads_transposed
        fge_out b_gate_grad, b_up_grad
        void *gate_grad
        void *up_grad


cdef int forward(const fge_forward_args *args) noexcept nogil
cdef int backward(const fge_backward_args *args) noexcept nogil
cdef int glu_forward(const fge_glu_forward_args *args) noexcept nogil
cdef int glu_backward(const fge_glu_backward_args *args) noexcept nogil
cdef int activation_reserve(int id) noexcept nogil
# the activation of that text; where there is none an id of -1 (plain) or ValueError naming the argument (checked)
cdef fge_activation activation_plain(const char *text) noexcept nogil
cdef fge_activation activation_checked(object text, str argument) except *
