/* What the forward, the backward and the gated unit share: operands, the memory of a call, biases and their gradients. */
#include "call.h"

#include "activation.h"
#include "blas.h"
#include "half.h"

fge_operand fge_operand_of(fge_in in, int64_t rows, int64_t cols, int dtype) {
    fge_operand o = {
        .data = in.data, .rows = rows, .cols = cols, .row_stride = in.row_stride, .col_stride = in.col_stride, .dtype = dtype};
    /* the stride of an axis of length one means nothing: give it one that every reader can use */
    if (cols <= 1) o.col_stride = 1;
    if (rows <= 1) o.row_stride = o.col_stride == 1 ? fge_max(cols, 1) : 1;
    return o;
}
fge_operand fge_transposed(fge_operand o) {
    o.transposed = !o.transposed;
    return o;
}
/* The natural rows of an operand without a reserve may as well be its contiguous ones. */
static fge_operand by_contiguous_rows(fge_operand o) {
    if (o.activation.id != FGE_none || o.col_stride == 1 || o.row_stride != 1) return o;
    fge_operand other = o;
    other.rows = o.cols;
    other.cols = o.rows;
    other.row_stride = o.col_stride;
    other.col_stride = o.row_stride;
    other.transposed = !o.transposed;
    return other;
}
int64_t fge_reserve_stride(int activation, int64_t cols) {
    return fge_reserve_kind_of(activation) == FGE_RESERVE_BITS ? fge_bits_row_bytes(cols) : cols;
}

void fge_set_derivative(fge_operand *o, fge_activation activation, const void *reserve) {
    if (fge_reserve_kind_of(activation.id) == FGE_RESERVE_NONE) return;
    o->activation = activation;
    o->reserve = reserve;
    o->reserve_stride = fge_reserve_stride(activation.id, o->cols);
}

fge_gemm *fge_call_add(fge_call *c, fge_operand a, fge_operand b, int64_t p, int64_t q, int64_t r, int dtype) {
    fge_gemm *g = &c->gemm[c->count++];
    *g = (fge_gemm){.p = p, .q = q, .r = r, .dtype = dtype, .a = by_contiguous_rows(a), .b = by_contiguous_rows(b)};
    g->epilogue.q = q;
    return g;
}

/* Waking a thread costs about as much as this many multiply-adds. */
static int threads_for(const fge_call *c) {
    double work = 0;
    for (int i = 0; i < c->count; i++) work += (double)c->gemm[i].p * (double)c->gemm[i].q * (double)(c->gemm[i].r + 16);
    const double worth = work / 500000;
    const int n = fge_get_num_threads();
    return worth < 2 ? 1 : worth < n ? (int)worth : n;
}

fge_status fge_call_plan(fge_call *c) {
    c->threads = threads_for(c);
    for (int i = 0; i < c->count; i++) {
        if (!fge_choose(&c->gemm[i], &c->choice[i])) return FGE_NO_ENGINE;
        fge_gemm_plan(c->choice[i].engine, c->choice[i].kernels, &c->gemm[i], c->threads, &c->plan[i]);
        const size_t scratch = c->plan[i].scratch < 4096 ? 4096 : c->plan[i].scratch;
        if (scratch > c->scratch) c->scratch = scratch;
        if (fge_gemm_shared_bytes(&c->plan[i]) > c->shared) c->shared = fge_gemm_shared_bytes(&c->plan[i]);
    }
    return FGE_OK;
}

static int uses_blas(const fge_call *c) {
    for (int i = 0; i < c->count; i++)
        if (c->choice[i].engine == &fge_engine_blas) return 1;
    return 0;
}

fge_status fge_call_begin(fge_call *c, size_t extra, fge_workspace *workspace, void **extra_at) {
    const size_t shared = (c->shared + 63) / 64 * 64;
    const fge_status status = fge_workspace_take(workspace, c->threads, c->scratch, shared + extra);
    if (status != FGE_OK) return status;
    if (uses_blas(c) && !fge_blas_enter(workspace->threads)) {
        fge_workspace_give_back(workspace);
        return FGE_NO_MEMORY;
    }
    *extra_at = extra ? (char *)workspace->shared + shared : NULL;
    c->before = fge_float_enter();
    return FGE_OK;
}
void fge_call_end(const fge_call *c, fge_workspace *workspace) {
    fge_float_leave(c->before);
    if (uses_blas(c)) fge_blas_leave();
    fge_workspace_give_back(workspace);
}
void fge_call_run(fge_call *c, int product, const fge_workspace *workspace) {
    const fge_gemm *g = &c->gemm[product];
    if ((g->p == 0 || g->q == 0) && !g->sums) return;
    fge_gemm_run(c->choice[product].engine, &c->plan[product], workspace);
}

void fge_store_gradient(fge_epilogue *e, const fge_out *out, int64_t cols) {
    e->out = out->data;
    e->out_stride = out->row_stride;
    e->out_dtype = out->dtype;
    e->accumulate = out->accumulate;
    e->q = cols;
}

/* Elements of biases are copied, since they may lie at any byte. */
typedef union {
    double f64;
    float f32;
    uint16_t half;
} any_element;

static double element(const void *base, int64_t i, int dtype) {
    any_element e;
    memcpy(&e, fge_at(base, i, dtype), (size_t)fge_dtype_size(dtype));
    switch (dtype) {
    case FGE_FLOAT64: return e.f64;
    case FGE_FLOAT32: return (double)e.f32;
    case FGE_FLOAT16: return (double)fge_widen_f16(e.half);
    default: return (double)fge_widen_bf16(e.half);
    }
}
static void set_element(void *base, int64_t i, int dtype, double value) {
    any_element e;
    switch (dtype) {
    case FGE_FLOAT64: e.f64 = value; break;
    case FGE_FLOAT32: e.f32 = (float)value; break;
    case FGE_FLOAT16: e.half = fge_round_f16((float)value); break;
    default: e.half = fge_round_bf16((float)value); break;
    }
    memcpy((char *)base + i * fge_dtype_size(dtype), &e, (size_t)fge_dtype_size(dtype));
}

int fge_bad_call(int64_t m, int64_t n, int64_t k, int dtype, fge_activation activation) {
    return m < 0 || n < 0 || k < 0 || dtype < FGE_FLOAT32 || dtype > FGE_BFLOAT16 || activation.id < 0 ||
           activation.id >= FGE_ACTIVATION_COUNT;
}
int fge_bad_second_dtype(int dtype, int of_operator) {
    return dtype != of_operator && !(dtype == FGE_FLOAT32 && fge_is_half(of_operator));
}
int fge_bad_out(const fge_out *out, int dtype) {
    return out->data && (out->accumulate ? fge_bad_second_dtype(out->dtype, dtype) : out->dtype != dtype);
}

static int bias_is_real(const void *bias, int dtype, int64_t stride, int64_t n, int of_operator) {
    return !bias || (dtype == fge_real_dtype(of_operator) && (stride == 1 || n == 1));
}
size_t fge_bias_room(const void *bias, int dtype, int64_t stride, int64_t n, int of_operator) {
    return bias_is_real(bias, dtype, stride, n, of_operator)
               ? 0
               : (size_t)(n * fge_dtype_size(fge_real_dtype(of_operator)) + 63) / 64 * 64;
}
const void *fge_bias_as_real(const void *bias, int dtype, int64_t stride, int64_t n, int of_operator, void *room) {
    if (bias_is_real(bias, dtype, stride, n, of_operator)) return bias;
    for (int64_t j = 0; j < n; j++) set_element(room, j, fge_real_dtype(of_operator), element(bias, j * stride, dtype));
    return room;
}

void fge_store_sums(const fge_out *to, const double *sums, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        const int64_t at = j * to->row_stride;
        set_element(to->data, at, to->dtype, to->accumulate ? sums[j] + element(to->data, at, to->dtype) : sums[j]);
    }
}
