/* A gated unit, out = act(x . w_gate + b_gate) * (x . w_up + b_up): two products that share x, and an epilogue of the second that
 * multiplies the first one in.
 *
 * Rows of x are taken a chunk at a time through both, so that x comes from memory once, and the gate waits in the accumulator's
 * type, in a cache: no [m, n] of it exists. */
#include "activation.h"
#include "call.h"
#include "elementwise.h"

/* A chunk's gates (in the backward, half of x_grad's sums) take about this many bytes. */
enum { CHUNK_BYTES = 1 << 21, CHUNK_LEAST = 128, CHUNK_UNIT = 112 };
static int64_t chunk_rows(int64_t m, int64_t cols, int real_dtype) {
    const int64_t most = CHUNK_BYTES / fge_max(1, cols * fge_dtype_size(real_dtype));
    if (m <= fge_max(most, CHUNK_LEAST)) return m;
    return fge_even_tile(m, fge_max(most, CHUNK_LEAST), CHUNK_UNIT);
}

/* Two products of a chunk, first and second, and the same two of the last chunk, which may be shorter. */
enum { FIRST, SECOND, LAST_FIRST, LAST_SECOND, PAIR = 2 };
typedef struct {
    int64_t m, rows; /* all of them, and those of a chunk */
} chunks;
static int64_t rows_at(const chunks *c, int64_t row) { return fge_min(c->rows, c->m - row); }

static void *at(const void *base, int64_t elements, int dtype) {
    return base ? (char *)base + elements * fge_dtype_size(dtype) : NULL;
}

fge_status fge_glu_forward(const fge_glu_forward_args *args) {
    const int64_t m = args->m, n = args->n, k = args->k;
    const int dtype = args->dtype, real = fge_real_dtype(dtype);
    if (fge_bad_call(m, n, k, dtype, args->activation) || (args->b_gate && fge_bad_second_dtype(args->b_gate_dtype, dtype)) ||
        (args->b_up && fge_bad_second_dtype(args->b_up_dtype, dtype)))
        return FGE_BAD_CALL;
    if (m == 0 || n == 0) return FGE_OK;
    if (!args->out || !args->z_gate != !args->z_up || (k && (!args->x.data || !args->w_gate.data || !args->w_up.data)))
        return FGE_BAD_CALL;

    const chunks parts = {m, chunk_rows(m, n, real)};
    const int64_t last_rows = m % parts.rows ? m % parts.rows : parts.rows;
    fge_call c = {0};
    for (int i = 0; i < 2 * PAIR; i++) {
        const int64_t rows = i < PAIR ? parts.rows : last_rows;
        fge_gemm *g = fge_call_add(&c, fge_operand_of(args->x, rows, k, dtype),
                                   fge_operand_of(i % PAIR ? args->w_up : args->w_gate, k, n, dtype), rows, n, k, dtype);
        fge_epilogue *e = &g->epilogue;
        e->reserve_kind = FGE_RESERVE_Z;
        e->reserve_dtype = dtype;
        e->reserve_stride = n;
        if (i % PAIR) {
            e->out_stride = args->out_row_stride;
            e->out_dtype = dtype;
            e->other_role = FGE_TIMES_OTHER;
            e->other_dtype = real;
            e->other_stride = n;
        } else {
            e->activation = args->activation;
            e->out_stride = n;
            e->out_dtype = real;
        }
    }
    fge_status status = fge_call_plan(&c);
    if (status != FGE_OK) return status;
    const size_t gate_room = (size_t)(parts.rows * n * fge_dtype_size(real) + 63) / 64 * 64;
    const size_t b_gate_room = fge_bias_room(args->b_gate, args->b_gate_dtype, args->b_gate_stride, n, dtype);
    const size_t b_up_room = fge_bias_room(args->b_up, args->b_up_dtype, args->b_up_stride, n, dtype);
    fge_workspace workspace;
    void *room = NULL;
    status = fge_call_begin(&c, gate_room + b_gate_room + b_up_room, &workspace, &room);
    if (status != FGE_OK) return status;
    char *const gate = room;
    const void *b_gate = fge_bias_as_real(args->b_gate, args->b_gate_dtype, args->b_gate_stride, n, dtype, gate + gate_room);
    const void *b_up =
        fge_bias_as_real(args->b_up, args->b_up_dtype, args->b_up_stride, n, dtype, gate + gate_room + b_gate_room);
    for (int64_t row = 0; row < m; row += parts.rows) {
        const int first = rows_at(&parts, row) == parts.rows ? FIRST : LAST_FIRST;
        for (int i = 0; i < PAIR; i++) {
            fge_gemm *g = &c.gemm[first + i];
            g->a.data = at(args->x.data, row * args->x.row_stride, dtype);
            g->epilogue.bias = i ? b_up : b_gate;
            g->epilogue.reserve = at(i ? args->z_up : args->z_gate, row * n, dtype);
            g->epilogue.out = i ? at(args->out, row * args->out_row_stride, dtype) : gate;
            g->epilogue.other = i ? gate : NULL;
            fge_call_run(&c, first + i, &workspace);
        }
    }
    fge_call_end(&c, &workspace);
    return FGE_OK;
}

fge_status fge_glu_backward(const fge_glu_backward_args *args) {
    const int64_t m = args->m, n = args->n, k = args->k;
    const int dtype = args->dtype, real = fge_real_dtype(dtype);
    const fge_out *outs[] = {&args->x_grad, &args->w_gate_grad, &args->w_up_grad, &args->b_gate_grad, &args->b_up_grad};
    if (fge_bad_call(m, n, k, dtype, args->activation)) return FGE_BAD_CALL;
    for (int i = 0; i < 5; i++)
        if (outs[i]->data && (outs[i]->dtype != dtype || outs[i]->accumulate)) return FGE_BAD_CALL;
    if (m && n && (!args->out_grad.data || !args->z_gate || !args->z_up || !args->gate_grad || !args->up_grad))
        return FGE_BAD_CALL;

    const fge_operand x = fge_operand_of(args->x, m, k, dtype);
    const fge_in gate_grad = {args->gate_grad, n, 1}, up_grad = {args->up_grad, n, 1};
    const chunks parts = {m, m ? chunk_rows(m, k, real) : 1};
    const int64_t last_rows = m % parts.rows ? m % parts.rows : fge_min(m, parts.rows);
    fge_call c = {0};
    const int has_x = args->x_grad.data && m && k;
    for (int i = 0; has_x && i < 2 * PAIR; i++) {
        const int64_t rows = i < PAIR ? parts.rows : last_rows;
        fge_gemm *g =
            fge_call_add(&c, fge_operand_of(i % PAIR ? up_grad : gate_grad, rows, n, dtype),
                         fge_transposed(fge_operand_of(i % PAIR ? args->w_up : args->w_gate, k, n, dtype)), rows, k, n, dtype);
        fge_epilogue *e = &g->epilogue;
        e->out_stride = i % PAIR ? args->x_grad.row_stride : k;
        e->out_dtype = i % PAIR ? dtype : real;
        if (i % PAIR) {
            e->other_role = FGE_ADD_TO_Z;
            e->other_dtype = real;
            e->other_stride = k;
        }
    }
    const int after_x = c.count;
    static double plan_only; /* a place, so that the plan counts the sums' memory */
    for (int i = 0; i < 2; i++) {
        const fge_out *w_grad = i ? &args->w_up_grad : &args->w_gate_grad, *b_grad = i ? &args->b_up_grad : &args->b_gate_grad;
        const fge_operand dz = fge_operand_of(i ? up_grad : gate_grad, m, n, dtype);
        fge_gemm *g;
        if (w_grad->data) {
            g = args->w_grads_transposed ? fge_call_add(&c, fge_transposed(dz), x, n, k, m, dtype)
                                         : fge_call_add(&c, fge_transposed(x), dz, k, n, m, dtype);
            fge_store_gradient(&g->epilogue, w_grad, g->q);
            g->sums_of_a = args->w_grads_transposed;
        } else if (b_grad->data) {
            g = fge_call_add(&c, (fge_operand){0}, dz, 0, n, m, dtype);
        } else {
            continue;
        }
        if (b_grad->data) {
            g->sums = &plan_only;
            *(g->sums_of_a ? &g->a : &g->b) = g->sums_of_a ? fge_transposed(dz) : dz;
        }
    }
    fge_status status = fge_call_plan(&c);
    if (status != FGE_OK) return status;
    fge_elementwise_plan(&c, m, n);
    const size_t sums_room = (size_t)(2 * n) * sizeof(double),
                 x_room = has_x ? (size_t)(parts.rows * k * fge_dtype_size(real)) : 0;
    fge_workspace workspace;
    void *room = NULL;
    status = fge_call_begin(&c, sums_room + x_room + 64, &workspace, &room);
    if (status != FGE_OK) return status;
    double *const sums = room;
    char *const part = (char *)room + sums_room;

    const fge_glu_derivative derivative = {.out_grad = fge_operand_of(args->out_grad, m, n, dtype),
                                           .activation = args->activation,
                                           .z_gate = args->z_gate,
                                           .z_up = args->z_up,
                                           .gate_grad = args->gate_grad,
                                           .up_grad = args->up_grad};
    fge_store_glu_derivative(&derivative, &workspace);
    for (int64_t row = 0; has_x && row < m; row += parts.rows) {
        const int first = rows_at(&parts, row) == parts.rows ? FIRST : LAST_FIRST;
        for (int i = 0; i < PAIR; i++) {
            fge_gemm *g = &c.gemm[first + i];
            g->a.data = at(i ? args->up_grad : args->gate_grad, row * n, dtype);
            g->epilogue.out = i ? at(args->x_grad.data, row * args->x_grad.row_stride, dtype) : part;
            g->epilogue.other = i ? part : NULL;
            fge_call_run(&c, first + i, &workspace);
        }
    }
    for (int i = 0, product = after_x; i < 2; i++) {
        const fge_out *w_grad = i ? &args->w_up_grad : &args->w_gate_grad, *b_grad = i ? &args->b_up_grad : &args->b_gate_grad;
        if (!w_grad->data && !b_grad->data) continue;
        if (b_grad->data) c.gemm[product].sums = sums + i * n;
        fge_call_run(&c, product++, &workspace);
        if (b_grad->data) fge_store_sums(b_grad, sums + i * n, n);
    }
    fge_call_end(&c, &workspace);
    return FGE_OK;
}
