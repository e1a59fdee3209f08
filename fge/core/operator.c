/* The operator: the forward and the gradients as matrix products with operands and epilogues, run by the engine that
 * dispatch.c chooses. */
#include "activation.h"
#include "blas.h"
#include "dispatch.h"
#include "fge.h"
#include "half.h"

#include <string.h>

int fge_activation_count(void) { return FGE_ACTIVATION_COUNT; }
const char *fge_activation_name(int activation) {
#define FGE_NAME(name, kind) #name,
    static const char *const names[] = {FGE_ACTIVATIONS(FGE_NAME)};
#undef FGE_NAME
    return activation >= 0 && activation < FGE_ACTIVATION_COUNT ? names[activation] : NULL;
}
int fge_activation_find(const char *name) {
    for (int i = 0; i < FGE_ACTIVATION_COUNT; i++)
        if (strcmp(name, fge_activation_name(i)) == 0) return i;
    return -1;
}
fge_reserve_kind fge_activation_reserve(int activation) { return fge_reserve_kind_of(activation); }

/* --- operands ---------------------------------------------------------------------------------------------------- */

static fge_operand operand(fge_in in, int64_t rows, int64_t cols, int dtype) {
    fge_operand o = {.data = in.data, .rows = rows, .cols = cols, .row_stride = in.row_stride, .col_stride = in.col_stride, .dtype = dtype};
    /* the stride of an axis of length one means nothing: give it one that every reader can use */
    if (cols <= 1) o.col_stride = 1;
    if (rows <= 1) o.row_stride = o.col_stride == 1 ? fge_max(cols, 1) : 1;
    return o;
}
static fge_operand transposed(fge_operand o) {
    o.transposed = !o.transposed;
    return o;
}
/* The natural rows of an operand without a reserve may as well be its contiguous ones. */
static fge_operand by_contiguous_rows(fge_operand o) {
    if (o.activation != FGE_none || o.col_stride == 1 || o.row_stride != 1) return o;
    fge_operand other = o;
    other.rows = o.cols;
    other.cols = o.rows;
    other.row_stride = o.col_stride;
    other.col_stride = o.row_stride;
    other.transposed = !o.transposed;
    return other;
}
static int64_t reserve_stride(int activation, int64_t cols) {
    return fge_reserve_kind_of(activation) == FGE_RESERVE_BITS ? fge_bits_row_bytes(cols) : cols;
}

/* --- running ----------------------------------------------------------------------------------------------------- */

enum { MAX_PRODUCTS = 3 };
typedef struct {
    int count;
    fge_gemm gemm[MAX_PRODUCTS];
    fge_plan plan[MAX_PRODUCTS];
    fge_choice choice[MAX_PRODUCTS];
    size_t scratch, shared;
    int threads;
} call;

static int accumulator_size(int dtype) { return dtype == FGE_FLOAT64 ? 8 : 4; }

static fge_gemm *add_product(call *c, fge_operand a, fge_operand b, int64_t p, int64_t q, int64_t r, int dtype) {
    fge_gemm *g = &c->gemm[c->count++];
    *g = (fge_gemm){.p = p, .q = q, .r = r, .dtype = dtype, .a = by_contiguous_rows(a), .b = by_contiguous_rows(b)};
    g->epilogue.q = q;
    return g;
}

/* Waking a thread costs about as much as this many multiply-adds. */
static int threads_for(const call *c) {
    double work = 0;
    for (int i = 0; i < c->count; i++) work += (double)c->gemm[i].p * (double)c->gemm[i].q * (double)(c->gemm[i].r + 16);
    const double worth = work / 500000;
    const int n = fge_get_num_threads();
    return worth < 2 ? 1 : worth < n ? (int)worth : n;
}

static fge_status plan_all(call *c) {
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

static int uses_blas(const call *c) {
    for (int i = 0; i < c->count; i++)
        if (c->choice[i].engine == &fge_engine_blas) return 1;
    return 0;
}

/* Memory for everything, with `extra` bytes for the caller at *extra_at. */
static fge_status begin(call *c, size_t extra, fge_workspace *workspace, void **extra_at) {
    const size_t shared = (c->shared + 63) / 64 * 64;
    const fge_status status = fge_workspace_take(workspace, c->threads, c->scratch, shared + extra);
    if (status != FGE_OK) return status;
    if (uses_blas(c) && !fge_blas_enter(workspace->threads)) {
        fge_workspace_give_back(workspace);
        return FGE_NO_MEMORY;
    }
    *extra_at = extra ? (char *)workspace->shared + shared : NULL;
    return FGE_OK;
}
static void end(const call *c, fge_workspace *workspace) {
    if (uses_blas(c)) fge_blas_leave();
    fge_workspace_give_back(workspace);
}

static void run_all(call *c, const fge_workspace *workspace) {
    for (int i = 0; i < c->count; i++) {
        const fge_gemm *g = &c->gemm[i];
        if ((g->p == 0 || g->q == 0) && !g->sums) continue;
        fge_gemm_run(c->choice[i].engine, &c->plan[i], workspace);
    }
}

static double element(const void *base, int64_t i, int dtype) {
    switch (dtype) {
    case FGE_FLOAT64: return ((const double *)base)[i];
    case FGE_FLOAT32: return (double)((const float *)base)[i];
    case FGE_FLOAT16: return (double)fge_widen_f16(((const uint16_t *)base)[i]);
    default: return (double)fge_widen_bf16(((const uint16_t *)base)[i]);
    }
}
static void set_element(void *base, int64_t i, int dtype, double value) {
    switch (dtype) {
    case FGE_FLOAT64: ((double *)base)[i] = value; break;
    case FGE_FLOAT32: ((float *)base)[i] = (float)value; break;
    case FGE_FLOAT16: ((uint16_t *)base)[i] = fge_round_f16((float)value); break;
    default: ((uint16_t *)base)[i] = fge_round_bf16((float)value); break;
    }
}

static int bad_sizes(int64_t m, int64_t n, int64_t k, int dtype, int activation) {
    return m < 0 || n < 0 || k < 0 || dtype < FGE_FLOAT32 || dtype > FGE_BFLOAT16 || activation < 0 || activation >= FGE_ACTIVATION_COUNT;
}
static int bad_second_dtype(int dtype, int of_operator) {
    return dtype != of_operator && !(dtype == FGE_FLOAT32 && fge_is_half(of_operator));
}

fge_status fge_forward(const fge_forward_args *args) {
    const int64_t m = args->m, n = args->n, k = args->k;
    if (bad_sizes(m, n, k, args->dtype, args->activation) || (args->bias && bad_second_dtype(args->bias_dtype, args->dtype)))
        return FGE_BAD_CALL;
    if (m == 0 || n == 0) return FGE_OK;
    if (!args->out || (k && (!args->x.data || !args->y.data))) return FGE_BAD_CALL;
    call c = {0};
    fge_gemm *g = add_product(&c, operand(args->x, m, k, args->dtype), operand(args->y, k, n, args->dtype), m, n, k, args->dtype);
    fge_epilogue *e = &g->epilogue;
    e->out = args->out;
    e->out_stride = args->out_row_stride;
    e->out_dtype = args->dtype;
    e->activation = args->activation;
    e->reserve = args->reserve;
    e->reserve_stride = reserve_stride(args->activation, n);
    fge_status status = plan_all(&c);
    if (status != FGE_OK) return status;

    /* bias in the accumulator's type, unless it is there already */
    const int real_dtype = args->dtype == FGE_FLOAT64 ? FGE_FLOAT64 : FGE_FLOAT32;
    const int as_is = !args->bias || (args->bias_dtype == real_dtype && (args->bias_stride == 1 || n == 1));
    fge_workspace workspace;
    void *bias = NULL;
    status = begin(&c, as_is ? 0 : (size_t)(n * accumulator_size(args->dtype)), &workspace, &bias);
    if (status != FGE_OK) return status;
    if (as_is) {
        e->bias = args->bias;
    } else {
        for (int64_t j = 0; j < n; j++) set_element(bias, j, real_dtype, element(args->bias, j * args->bias_stride, args->bias_dtype));
        e->bias = bias;
    }
    run_all(&c, &workspace);
    end(&c, &workspace);
    return FGE_OK;
}

static int bad_out(const fge_out *out, int dtype) {
    return out->data && (out->accumulate ? bad_second_dtype(out->dtype, dtype) : out->dtype != dtype);
}

static void store_gradient(fge_epilogue *e, const fge_out *out, int64_t cols) {
    e->out = out->data;
    e->out_stride = out->row_stride;
    e->out_dtype = out->dtype;
    e->accumulate = out->accumulate;
    e->q = cols;
}

fge_status fge_backward(const fge_backward_args *args) {
    const int64_t m = args->m, n = args->n, k = args->k;
    const int dtype = args->dtype;
    if (bad_sizes(m, n, k, dtype, args->activation) || bad_sizes(m, n, k, dtype, args->x_activation) || bad_out(&args->x_grad, dtype) ||
        bad_out(&args->y_grad, dtype) || bad_out(&args->bias_grad, dtype))
        return FGE_BAD_CALL;
    const int needs_reserve = fge_reserve_kind_of(args->activation) != FGE_RESERVE_NONE;
    const int needs_x_reserve = args->x_grad.data && fge_reserve_kind_of(args->x_activation) != FGE_RESERVE_NONE;
    if (m && n && (!args->out_grad.data || (needs_reserve && !args->reserve))) return FGE_BAD_CALL;
    if (m && k && needs_x_reserve && !args->x_reserve) return FGE_BAD_CALL;

    fge_operand dz = operand(args->out_grad, m, n, dtype);
    if (needs_reserve) {
        dz.activation = args->activation;
        dz.reserve = args->reserve;
        dz.reserve_stride = reserve_stride(args->activation, n);
    }
    const fge_operand x = operand(args->x, m, k, dtype), y = operand(args->y, k, n, dtype);
    call c = {0};
    if (args->x_grad.data) { /* dZ . Y^T, or its transpose Y . dZ^T */
        fge_gemm *g = args->x_grad_transposed ? add_product(&c, y, transposed(dz), k, m, n, dtype)
                                              : add_product(&c, dz, transposed(y), m, k, n, dtype);
        store_gradient(&g->epilogue, &args->x_grad, g->q);
        g->epilogue.state_activation = needs_x_reserve ? args->x_activation : FGE_none;
        g->epilogue.state = args->x_reserve;
        g->epilogue.state_dtype = dtype;
        g->epilogue.state_stride = reserve_stride(args->x_activation, g->q);
    }
    fge_gemm *with_sums = NULL;
    if (args->y_grad.data) { /* X^T . dZ, or its transpose dZ^T . X */
        with_sums = args->y_grad_transposed ? add_product(&c, transposed(dz), x, n, k, m, dtype)
                                            : add_product(&c, transposed(x), dz, k, n, m, dtype);
        store_gradient(&with_sums->epilogue, &args->y_grad, with_sums->q);
        with_sums->sums_of_a = args->y_grad_transposed;
    } else if (args->bias_grad.data) {
        /* a product with no rows of its own: dZ's column sums are all that is left of it */
        with_sums = add_product(&c, (fge_operand){0}, dz, 0, n, m, dtype);
    }
    const int wants_sums = args->bias_grad.data != NULL;
    static double plan_only; /* a place, so that the plan counts the sums' memory */
    if (wants_sums) {
        with_sums->sums = &plan_only;
        /* the sums are those of dZ's own rows, whichever of its axes is contiguous */
        *(with_sums->sums_of_a ? &with_sums->a : &with_sums->b) = with_sums->sums_of_a ? transposed(dz) : dz;
    }
    fge_status status = plan_all(&c);
    if (status != FGE_OK) return status;
    fge_workspace workspace;
    void *sums = NULL;
    status = begin(&c, wants_sums ? (size_t)n * sizeof(double) : 0, &workspace, &sums);
    if (status != FGE_OK) return status;
    if (wants_sums) with_sums->sums = sums;
    run_all(&c, &workspace);
    if (wants_sums)
        for (int64_t j = 0; j < n; j++) {
            const int64_t at = j * args->bias_grad.row_stride;
            double sum = ((double *)sums)[j];
            if (args->bias_grad.accumulate) sum += element(args->bias_grad.data, at, args->bias_grad.dtype);
            set_element(args->bias_grad.data, at, args->bias_grad.dtype, sum);
        }
    end(&c, &workspace);
    return FGE_OK;
}
