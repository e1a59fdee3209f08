/* A product from tiles: which parts of the result are tasks, when r is split among tasks as well, and how the parts are
 * summed. The order in which an element's products are summed follows from shapes alone (r_step, splits, the engine's
 * route), so that results don't depend on the number of threads; the size of tiles may. */
#include "dispatch.h"
#include "engine.h"

#include <string.h>

/* Split r where the result has fewer than BLOCKS / 2 squares of BLOCK; parts are at least SPLIT_MIN long. */
enum { BLOCK = 128, BLOCKS = 24, SPLIT_MIN = 512, TASKS_PER_THREAD = 2 };

int64_t fge_even_tile(int64_t length, int64_t most, int64_t unit) {
    const int64_t tiles = fge_max(1, fge_ceil_div(length, fge_max(most, 1)));
    return fge_max(unit, fge_round_up(fge_ceil_div(length, tiles), unit));
}

int64_t fge_r_step(const fge_plan *plan) {
    const fge_pair_kernels *pairs = fge_pairs_of(plan);
    const int64_t l1 = fge_cache_sizes().l1;
    /* mr rows of a in half of L1. Tiles of pairs come out of L2 as fast as they are multiplied: longer steps, fewer sums kept */
    if (pairs) return fge_even_tile(plan->gemm->r, l1 * 4 / 3 / (pairs->mr * pairs->unit), fge_max(8, pairs->r_unit));
    return fge_even_tile(plan->gemm->r, l1 / 2 / (plan->real->mr * plan->real->size), 8);
}

/* Column sums are taken by the tiles of the first row (column): there has to be one, even where the result is empty. */
static int64_t tiles_along(const fge_gemm *g, int64_t length, int64_t tile) {
    return fge_max(fge_ceil_div(length, tile), g->sums ? 1 : 0);
}

/* How many parts of r become tasks of their own. */
static int64_t splits_of(const fge_gemm *g) {
    const int64_t blocks = fge_max(1, fge_ceil_div(g->p, BLOCK)) * fge_max(1, fge_ceil_div(g->q, BLOCK));
    if (blocks > BLOCKS / 2 || g->r < 2 * SPLIT_MIN) return 1;
    const int64_t splits = fge_min(BLOCKS / blocks, g->r / SPLIT_MIN);
    /* partial results go through memory: not worth it unless r is long beside their size */
    return fge_max(1, fge_min(splits, g->r / (64 + fge_min(g->p, g->q))));
}

void fge_gemm_plan(const fge_engine *engine, const fge_kernels *kernels, const fge_gemm *gemm, int threads, fge_plan *plan) {
    memset(plan, 0, sizeof *plan);
    plan->gemm = gemm;
    plan->kernels = kernels;
    plan->real = gemm->dtype == FGE_FLOAT64 ? &kernels->f64 : &kernels->f32;
    plan->splits = splits_of(gemm);
    engine->plan(plan, threads == 1 ? 1 : fge_ceil_div(TASKS_PER_THREAD * threads, plan->splits));
    plan->r_split = gemm->r;
    if (plan->splits > 1) {
        plan->r_split = fge_round_up(fge_ceil_div(gemm->r, plan->splits), fge_min(plan->r_step, SPLIT_MIN));
        plan->splits = fge_ceil_div(gemm->r, plan->r_split);
    }
}

static size_t partial_bytes(const fge_plan *plan) {
    const fge_gemm *g = plan->gemm;
    return plan->splits > 1 ? (size_t)(plan->splits * g->p * g->q * plan->real->size + 63) / 64 * 64 : 0;
}
static int64_t sums_length(const fge_gemm *g) { return g->sums_of_a ? g->p : g->q; }

size_t fge_gemm_shared_bytes(const fge_plan *plan) {
    const size_t sums = plan->gemm->sums ? (size_t)(plan->splits * sums_length(plan->gemm)) * sizeof(double) : 0;
    return partial_bytes(plan) + sums;
}

typedef struct {
    const fge_engine *engine;
    const fge_plan *plan;
    char *partial; /* [splits, p, q] of REAL, or NULL */
    double *sums;  /* [splits, sums_length], or NULL */
    int64_t p_tiles, q_tiles;
} run;

static fge_epilogue partial_store(const run *r, int64_t split) {
    const fge_gemm *g = r->plan->gemm;
    return (fge_epilogue){.out = r->partial + split * g->p * g->q * r->plan->real->size,
                          .out_stride = g->q,
                          .out_dtype = g->dtype == FGE_FLOAT64 ? FGE_FLOAT64 : FGE_FLOAT32,
                          .q = g->q};
}

static void multiply_task(void *context, int64_t i, void *scratch) {
    const run *r = context;
    const fge_plan *plan = r->plan;
    const fge_gemm *g = plan->gemm;
    const int64_t split = i % plan->splits, tile = i / plan->splits;
    /* down the rows first: neighbouring tasks share b's columns, the larger operand as a rule */
    const int64_t pi = tile % r->p_tiles, qi = tile / r->p_tiles;
    fge_tile t = {.p0 = pi * plan->p_tile, .q0 = qi * plan->q_tile, .r0 = split * plan->r_split};
    t.p = fge_min(plan->p_tile, g->p - t.p0);
    t.q = fge_min(plan->q_tile, g->q - t.q0);
    t.r = fge_min(plan->r_split, g->r - t.r0);
    double *sums = NULL;
    if (r->sums) {
        const int of_a = g->sums_of_a;
        if (of_a ? qi == 0 : pi == 0) {
            sums = r->sums + split * sums_length(g) + (of_a ? t.p0 : t.q0);
            memset(sums, 0, (size_t)(of_a ? t.p : t.q) * sizeof(double));
        }
    }
    const fge_epilogue store = r->partial ? partial_store(r, split) : g->epilogue;
    r->engine->multiply(plan, &t, &store, sums, scratch);
}

/* Rows of the result from the splits' parts, in the order of the splits. */
enum { REDUCE_COLUMNS = 512 };
static void reduce_task(void *context, int64_t i, void *scratch) {
    const run *r = context;
    const fge_gemm *g = r->plan->gemm;
    const int64_t blocks = fge_ceil_div(g->q, REDUCE_COLUMNS), row = i / blocks, col = i % blocks * REDUCE_COLUMNS;
    const int64_t n = fge_min(REDUCE_COLUMNS, g->q - col), stride = g->p * g->q;
    if (r->plan->real->size == 8) {
        double *to = scratch;
        const double *from = (const double *)r->partial + row * g->q + col;
        memcpy(to, from, (size_t)n * 8);
        for (int64_t s = 1; s < r->plan->splits; s++)
            for (int64_t j = 0; j < n; j++) to[j] += from[s * stride + j];
    } else {
        float *to = scratch;
        const float *from = (const float *)r->partial + row * g->q + col;
        memcpy(to, from, (size_t)n * 4);
        for (int64_t s = 1; s < r->plan->splits; s++)
            for (int64_t j = 0; j < n; j++) to[j] += from[s * stride + j];
    }
    r->plan->real->epilogue(&g->epilogue, scratch, REDUCE_COLUMNS, 1, n, row, col);
}

void fge_gemm_run(const fge_engine *engine, const fge_plan *plan, const fge_workspace *workspace) {
    const fge_gemm *g = plan->gemm;
    run r = {.engine = engine,
             .plan = plan,
             .partial = plan->splits > 1 ? workspace->shared : NULL,
             .sums = g->sums ? (double *)((char *)workspace->shared + partial_bytes(plan)) : NULL,
             .p_tiles = tiles_along(g, g->p, plan->p_tile),
             .q_tiles = tiles_along(g, g->q, plan->q_tile)};
    fge_run(r.p_tiles * r.q_tiles * plan->splits, workspace, multiply_task, &r);
    if (r.partial) fge_run(g->p * fge_ceil_div(g->q, REDUCE_COLUMNS), workspace, reduce_task, &r);
    if (r.sums)
        for (int64_t j = 0; j < sums_length(g); j++) {
            double sum = 0;
            for (int64_t s = 0; s < plan->splits; s++) sum += r.sums[s * sums_length(g) + j];
            g->sums[j] = sum;
        }
}
