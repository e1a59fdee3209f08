/* Engine "blas": each tile by one call of a BLAS (scipy's, through scipy.linalg.cython_blas), the epilogue on the tile
 * while it is in cache. Operands that BLAS can't read as they are (half types, dZ, two strides) are made ready in
 * scratch, r_step of r at a time. */
#include "blas.h"
#include "engine.h"

#include <limits.h>
#include <string.h>

/* A matrix as BLAS takes it: unit stride along one axis, leading dimension along the other. An operand whose columns are
 * summed has to be read anyway. */
static int readable(const fge_gemm *g, const fge_operand *o) {
    if (!fge_operand_plain(o) || (g->sums && o == (g->sums_of_a ? &g->a : &g->b))) return 0;
    const int64_t rs = o->row_stride, cs = o->col_stride;
    return (cs == 1 && rs >= fge_max(1, o->cols) && rs <= INT_MAX) || (rs == 1 && cs >= fge_max(1, o->rows) && cs <= INT_MAX);
}

/* One row or column: our own kernels, which are limited by memory alone. BLAS's gemv sums in another order for another
 * layout or alignment. */
static int is_vector_product(const fge_gemm *g) { return g->p <= 1 || g->q <= 1; }

enum { P_TILE = 256, Q_TILE = 512, R_STEP = 512 };
/* Below this OpenBLAS has kernels for small products (up to 10^6 multiply-adds on x86), which sum in another order for another
 * layout: operands are brought into one layout then. */
#define SMALL_PRODUCT (1 << 21)

/* Fixed tiles: a BLAS may sum in another order for another shape. */
static void plan_tiles(fge_plan *plan, int64_t tasks) {
    const fge_gemm *g = plan->gemm;
    if (is_vector_product(g)) {
        fge_engine_native.plan(plan, tasks);
        return;
    }
    plan->r_step = R_STEP;
    plan->p_tile = fge_even_tile(g->p, P_TILE, 8); /* even: no last tile of a single row */
    plan->q_tile = fge_even_tile(g->q, Q_TILE, 8);
    const size_t tile = (size_t)(plan->p_tile * plan->q_tile), ready = (size_t)(2 * (plan->p_tile + plan->q_tile) * R_STEP);
    plan->scratch = (tile + ready + (size_t)fge_max(plan->p_tile, plan->q_tile)) * (size_t)plan->real->size + 4096;
}

typedef struct {
    const void *data;
    int ld;
    char transposed; /* in row-major terms */
} view;

static void turn(const void *from, int64_t from_ld, int64_t rows, int64_t cols, int64_t size, void *to, int64_t to_ld) {
    enum { SQUARE = 16 };
    for (int64_t i0 = 0; i0 < rows; i0 += SQUARE)
        for (int64_t j0 = 0; j0 < cols; j0 += SQUARE)
            for (int64_t i = i0; i < fge_min(i0 + SQUARE, rows); i++)
                for (int64_t j = j0; j < fge_min(j0 + SQUARE, cols); j++)
                    if (size == 8) ((double *)to)[i * to_ld + j] = ((const double *)from)[j * from_ld + i];
                    else ((float *)to)[i * to_ld + j] = ((const float *)from)[j * from_ld + i];
}

/* Rows by columns of an operand as the product sees it, in place or made ready in `to`, which has room for it twice. */
static view block(const fge_plan *plan, const fge_operand *o, int64_t row0, int64_t rows, int64_t col0, int64_t cols, int small,
                  char *to, void *column_sums) {
    const int64_t size = plan->real->size;
    const int in_place = readable(plan->gemm, o);
    const int natural_by_rows = !in_place || (o->col_stride == 1 && o->row_stride >= o->cols);
    const int by_rows = natural_by_rows != o->transposed; /* of the block */
    view v;
    if (in_place) {
        const int64_t rs = fge_operand_row_stride(o), cs = fge_operand_col_stride(o);
        const int64_t ld = natural_by_rows ? o->row_stride : o->col_stride;
        v = (view){(const char *)o->data + (row0 * rs + col0 * cs) * size, (int)fge_max(ld, 1), by_rows ? 'N' : 'T'};
    } else if (o->transposed) {
        plan->real->read(o, col0, cols, row0, rows, to, rows, plan->real->dtype, column_sums);
        v = (view){to, (int)rows, 'T'};
    } else {
        plan->real->read(o, row0, rows, col0, cols, to, cols, plan->real->dtype, column_sums);
        v = (view){to, (int)cols, 'N'};
    }
    if (!small || by_rows) return v;
    char *turned = to + rows * cols * size;
    turn(v.data, v.ld, rows, cols, size, turned, cols);
    return (view){turned, (int)cols, 'N'};
}

/* c [p, q] = a . b + beta c, all row-major: as columns, c^T = b^T a^T. */
static void gemm(int is_double, int p, int q, int r, view a, view b, double beta, void *c, int ldc) {
    if (is_double) {
        double one = 1;
        fge_blas.dgemm(&b.transposed, &a.transposed, &q, &p, &r, &one, (double *)b.data, &b.ld, (double *)a.data, &a.ld, &beta,
                       (double *)c, &ldc);
    } else {
        float one = 1, beta32 = (float)beta;
        fge_blas.sgemm(&b.transposed, &a.transposed, &q, &p, &r, &one, (float *)b.data, &b.ld, (float *)a.data, &a.ld, &beta32,
                       (float *)c, &ldc);
    }
}
/* Adds the REAL sums of one block to the double totals and clears them. */
static void collect(void *block_sums, double *sums, int64_t n, int is_double) {
    for (int64_t j = 0; j < n; j++) {
        sums[j] += is_double ? ((double *)block_sums)[j] : (double)((float *)block_sums)[j];
        if (is_double) ((double *)block_sums)[j] = 0;
        else ((float *)block_sums)[j] = 0;
    }
}

static void multiply(const fge_plan *plan, const fge_tile *t, const fge_epilogue *epilogue, double *sums, void *scratch) {
    const fge_gemm *g = plan->gemm;
    if (is_vector_product(g)) {
        fge_engine_native.multiply(plan, t, epilogue, sums, scratch);
        return;
    }
    const int64_t size = plan->real->size;
    const int is_double = size == 8, real_dtype = plan->real->dtype;
    char *tile = scratch, *a_ready = tile + plan->p_tile * plan->q_tile * size;
    char *b_ready = a_ready + 2 * plan->p_tile * R_STEP * size;
    char *block_sums = b_ready + 2 * plan->q_tile * R_STEP * size;
    /* where the epilogue overwrites, BLAS may write the sums into out itself and the epilogue finishes them in place */
    const int in_place = epilogue->out_dtype == real_dtype && !epilogue->accumulate && epilogue->out_stride <= INT_MAX;
    char *c = in_place ? (char *)epilogue->out + (t->p0 * epilogue->out_stride + t->q0) * size : tile;
    const int64_t ldc = in_place ? fge_max(epilogue->out_stride, t->q) : t->q;
    const int64_t sums_length = g->sums_of_a ? t->p : t->q;
    const int threads_before = fge_blas_enter_thread();
    if (sums) memset(block_sums, 0, (size_t)(sums_length * size));
    if (t->r == 0)
        for (int64_t i = 0; i < t->p; i++) memset(c + i * ldc * size, 0, (size_t)(t->q * size));
    for (int64_t r0 = 0; r0 < t->r; r0 += plan->r_step) {
        const int64_t r = fge_min(plan->r_step, t->r - r0);
        const int small = t->p * t->q * r <= SMALL_PRODUCT;
        const view a = block(plan, &g->a, t->p0, t->p, t->r0 + r0, r, small, a_ready, sums && g->sums_of_a ? block_sums : NULL);
        const view b = block(plan, &g->b, t->r0 + r0, r, t->q0, t->q, small, b_ready, sums && !g->sums_of_a ? block_sums : NULL);
        if (sums) collect(block_sums, sums, sums_length, is_double);
        const double beta = r0 > 0;
        gemm(is_double, (int)t->p, (int)t->q, (int)r, a, b, beta, c, (int)ldc);
    }
    fge_blas_leave_thread(threads_before);
    plan->real->epilogue(epilogue, c, ldc, t->p, t->q, t->p0, t->q0);
}

const fge_engine fge_engine_blas = {"blas", plan_tiles, multiply};
