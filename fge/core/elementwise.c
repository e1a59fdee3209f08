#include "elementwise.h"

#include "activation.h"

#include <string.h>

/* One task's block, of REALs in scratch. Columns are a multiple of those in a byte of bits. */
enum { ROWS = 8, COLS = 256, TILE = ROWS * COLS, TILES = 4, BITS = ROWS * COLS / 8 };

static int64_t blocks_of(int64_t rows, int64_t cols) { return fge_ceil_div(rows, ROWS) * fge_ceil_div(cols, COLS); }

void fge_elementwise_plan(fge_call *c, int64_t rows, int64_t cols) {
    const size_t scratch = TILES * TILE * sizeof(double) + BITS;
    if (c->scratch < scratch) c->scratch = scratch;
    if (rows * cols > 1 << 16 && c->threads < fge_get_num_threads()) c->threads = fge_get_num_threads();
}

typedef struct {
    int64_t row, rows, col, cols;
} block;
static block block_at(int64_t i, int64_t rows, int64_t cols) {
    const int64_t across = fge_ceil_div(cols, COLS);
    block b = {.row = i / across * ROWS, .col = i % across * COLS};
    b.rows = fge_min(ROWS, rows - b.row);
    b.cols = fge_min(COLS, cols - b.col);
    return b;
}

static const fge_real_kernels *kernels_of(int dtype) {
    const fge_kernels *now = fge_kernels_now();
    return dtype == FGE_FLOAT64 ? &now->f64 : &now->f32;
}
static void read_tile(const fge_real_kernels *real, const fge_operand *o, const block *b, void *tile) {
    real->read(o, b->row, b->rows, b->col, b->cols, tile, COLS, real->dtype, NULL);
}

typedef struct {
    const fge_operand *dz;
    const fge_out *to;
    const fge_real_kernels *real;
} derivative;

static void derivative_task(void *context, int64_t i, void *scratch) {
    const derivative *d = context;
    const block b = block_at(i, d->dz->rows, d->dz->cols);
    fge_operand out_grad = *d->dz;
    out_grad.activation = (fge_activation){0};
    read_tile(d->real, &out_grad, &b, scratch);
    fge_epilogue e = {.state_activation = d->dz->activation,
                      .state = d->dz->reserve,
                      .state_dtype = d->dz->dtype,
                      .state_stride = d->dz->reserve_stride};
    fge_store_gradient(&e, d->to, d->dz->cols);
    d->real->epilogue(&e, scratch, COLS, b.rows, b.cols, b.row, b.col);
}
void fge_store_derivative(const fge_operand *dz, const fge_out *to, const fge_workspace *workspace) {
    derivative d = {dz, to, kernels_of(dz->dtype)};
    fge_run(blocks_of(dz->rows, dz->cols), workspace, derivative_task, &d);
}

typedef struct {
    const fge_glu_derivative *of;
    const fge_real_kernels *real;
} glu;

static void glu_task(void *context, int64_t i, void *scratch) {
    const glu *g = context;
    const fge_glu_derivative *d = g->of;
    const fge_real_kernels *real = g->real;
    const int dtype = d->out_grad.dtype;
    const int64_t rows = d->out_grad.rows, cols = d->out_grad.cols;
    const block b = block_at(i, rows, cols);
    const int64_t corner = b.row * cols + b.col;
    char *const tiles = scratch, *const grad = tiles, *const act = tiles + TILE * real->size,
                *const up = tiles + 2 * TILE * real->size;
    char *const product = tiles + 3 * TILE * real->size;
    uint8_t *const bits = (uint8_t *)scratch + TILES * TILE * sizeof(double);
    const fge_operand z_gate = {
        .data = d->z_gate, .rows = rows, .cols = cols, .row_stride = cols, .col_stride = 1, .dtype = dtype};
    fge_operand z_up = z_gate;
    z_up.data = d->z_up;
    read_tile(real, &d->out_grad, &b, grad);
    read_tile(real, &z_gate, &b, act);
    read_tile(real, &z_up, &b, up);

    const fge_reserve_kind kind = fge_reserve_kind_of(d->activation.id);
    const fge_epilogue activate = {.out = act,
                                   .out_stride = COLS,
                                   .out_dtype = real->dtype,
                                   .activation = d->activation,
                                   .reserve = kind == FGE_RESERVE_BITS ? bits : NULL,
                                   .reserve_kind = FGE_RESERVE_BITS,
                                   .reserve_stride = COLS / 8,
                                   .q = b.cols};
    real->epilogue(&activate, act, COLS, b.rows, b.cols, 0, 0);

    memcpy(product, grad, (size_t)(TILE * real->size));
    const fge_epilogue up_grad = {.out = (char *)d->up_grad + corner * fge_dtype_size(dtype),
                                  .out_stride = cols,
                                  .out_dtype = dtype,
                                  .q = b.cols,
                                  .other = act,
                                  .other_role = FGE_TIMES_OTHER,
                                  .other_dtype = real->dtype,
                                  .other_stride = COLS};
    real->epilogue(&up_grad, product, COLS, b.rows, b.cols, 0, 0);

    const fge_epilogue times_up = {.out = product,
                                   .out_stride = COLS,
                                   .out_dtype = real->dtype,
                                   .q = b.cols,
                                   .other = up,
                                   .other_role = FGE_TIMES_OTHER,
                                   .other_dtype = real->dtype,
                                   .other_stride = COLS};
    real->epilogue(&times_up, grad, COLS, b.rows, b.cols, 0, 0);
    fge_epilogue gate_grad = {.out = (char *)d->gate_grad + corner * fge_dtype_size(dtype),
                              .out_stride = cols,
                              .out_dtype = dtype,
                              .q = b.cols,
                              .state_activation = d->activation,
                              .state = bits,
                              .state_dtype = dtype,
                              .state_stride = COLS / 8};
    if (kind == FGE_RESERVE_Z) {
        gate_grad.state = fge_at(d->z_gate, corner, dtype);
        gate_grad.state_stride = cols;
    } else if (kind == FGE_RESERVE_OUT) {
        gate_grad.state = act;
        gate_grad.state_dtype = real->dtype;
        gate_grad.state_stride = COLS;
    }
    real->epilogue(&gate_grad, product, COLS, b.rows, b.cols, 0, 0);
}
void fge_store_glu_derivative(const fge_glu_derivative *d, const fge_workspace *workspace) {
    glu g = {d, kernels_of(d->out_grad.dtype)};
    fge_run(blocks_of(d->out_grad.rows, d->out_grad.cols), workspace, glu_task, &g);
}
