/* Products with one row or one column: a vector along r, made ready once, and a matrix that is streamed past it. */
#include "engine.h"

#include <string.h>

/* Elements that the kernels can take straight from memory in the operand's dtype: one axis contiguous. */
static int streamable(const fge_operand *o) { return o->col_stride == 1 || o->row_stride == 1; }

/* dZ as the matrix is left to the engine: its derivative has to be multiplied in */
static int a_is_vector(const fge_gemm *g) { return g->p == 1 && g->b.activation.id == 0; }
static int b_is_vector(const fge_gemm *g) { return g->q == 1 && g->a.activation.id == 0; }

int fge_vector_serves(const fge_gemm *g) { return !g->sums && (a_is_vector(g) || b_is_vector(g)); }

void fge_vector_plan(fge_plan *plan, int64_t tasks) {
    const fge_gemm *g = plan->gemm;
    const int along_q = a_is_vector(g);
    const int64_t length = fge_max(1, along_q ? g->q : g->p);
    const int in_place = streamable(along_q ? &g->b : &g->a);
    /* sums stay in L1, and so does what has to be copied */
    const int64_t tile = fge_min(fge_even_tile(length, fge_ceil_div(length, tasks), 64), in_place ? 1024 : 64);
    plan->r_step = fge_r_step(plan);
    plan->p_tile = along_q ? 1 : tile;
    plan->q_tile = along_q ? tile : 1;
    plan->scratch = (size_t)((g->r + 2 * tile + (in_place ? 0 : tile * plan->r_step)) * plan->real->size);
}

static void add_to(void *sums, const void *more, int64_t count, int64_t size) {
    if (size == 8)
        for (int64_t j = 0; j < count; j++) ((double *)sums)[j] += ((const double *)more)[j];
    else
        for (int64_t j = 0; j < count; j++) ((float *)sums)[j] += ((const float *)more)[j];
}

/* One operand is a vector along r: made ready once, the other streamed past it in its own dtype. */
void fge_vector_multiply(const fge_plan *plan, const fge_tile *t, const fge_epilogue *epilogue, void *scratch) {
    const fge_gemm *g = plan->gemm;
    const fge_real_kernels *real = plan->real;
    const int vector_is_a = a_is_vector(g);
    const fge_operand *vector = vector_is_a ? &g->a : &g->b, *matrix = vector_is_a ? &g->b : &g->a;
    const int64_t size = real->size, count = vector_is_a ? t->q : t->p, first = vector_is_a ? t->q0 : t->p0;
    char *x = scratch, *y = x + t->r * size, *part = y + count * size, *copied = part + count * size;
    /* one row (column) is contiguous in scratch whichever way it is read */
    const int lies_along_columns = vector->transposed != vector_is_a;
    real->read(vector, lies_along_columns ? 0 : t->r0, lies_along_columns ? 1 : t->r, lies_along_columns ? t->r0 : 0,
               lies_along_columns ? t->r : 1, x, lies_along_columns ? t->r : 1, real->dtype, NULL);
    /* distances from one r, and from one result, to the next */
    const int64_t along_r = vector_is_a ? fge_operand_row_stride(matrix) : fge_operand_col_stride(matrix);
    const int64_t across = vector_is_a ? fge_operand_col_stride(matrix) : fge_operand_row_stride(matrix);
    const char *from = fge_at(matrix->data, t->r0 * along_r + first * across, matrix->dtype);
    memset(y, 0, (size_t)(count * size));
    for (int64_t r0 = 0; r0 < t->r; r0 += plan->r_step) {
        const int64_t r = fge_min(plan->r_step, t->r - r0);
        char *to = r0 == 0 ? y : part;
        if (r0 > 0) memset(part, 0, (size_t)(count * size));
        if (!streamable(matrix)) { /* natural rows along r as for dots, or across it as for stream */
            const int rows_along = matrix->transposed == vector_is_a;
            const int64_t r_at = t->r0 + r0;
            if (rows_along) {
                real->read(matrix, first, count, r_at, r, copied, r, real->dtype, NULL);
                real->vector_dots(r, x + r0 * size, copied, real->dtype, r, count, to);
            } else {
                real->read(matrix, r_at, r, first, count, copied, count, real->dtype, NULL);
                real->vector_stream(r, x + r0 * size, copied, real->dtype, count, count, to);
            }
        } else if (across == 1) {
            real->vector_stream(r, x + r0 * size, fge_at(from, r0 * along_r, matrix->dtype), matrix->dtype, along_r, count, to);
        } else {
            real->vector_dots(r, x + r0 * size, fge_at(from, r0 * along_r, matrix->dtype), matrix->dtype, across, count, to);
        }
        if (r0 > 0) add_to(y, part, count, size);
    }
    if (vector_is_a) real->epilogue(epilogue, y, count, 1, count, 0, first);
    else real->epilogue(epilogue, y, 1, count, 1, first, 0);
}
