/* Engine "native": packing and micro-kernels of our own. One task multiplies a p_tile x q_tile part of the result:
 *
 *   for each r_step of r:
 *     for each q_block:          b's part is packed into panels of nr columns, which stay in L2
 *       for each mr rows of a:   packed into one panel, which stays in L1 (several at once where a's rows lie across it); by
 *                                the first q_block, for all of them where there are more
 *         for each panel of b:   the micro-kernel; after the last r_step the epilogue, while the sums are in L1
 *
 * Between r_steps the sums wait in the result itself where they have its type, otherwise in scratch, in L2.
 *
 * Tasks pack for themselves: with tiles of this size packing is a few percent, and threads never wait for one another. */
#include "dispatch.h"
#include "engine.h"

#include <string.h>

typedef enum { VECTOR, DIRECT, PACKED } route;

static route route_of(const fge_plan *plan) {
    const fge_gemm *g = plan->gemm;
    if (fge_vector_serves(g)) return VECTOR;
    if (g->sums) return PACKED;
    const int direct = fge_operand_plain(&g->a) && fge_operand_plain(&g->b) && fge_operand_col_stride(&g->b) == 1;
    /* each element of b is used p / mr times: packing doesn't pay for a few, nor for what fits in L1 anyway */
    if (direct && (g->p <= plan->real->mr || g->p * g->r + g->r * g->q <= 4096)) return DIRECT;
    return PACKED;
}

/* The register tile and the panels of the product, of real's or of pairs' kernels. */
typedef struct {
    const fge_pair_kernels *pairs; /* or NULL */
    int64_t mr, nr, unit;
    int64_t r_unit;
} panels;

static panels panels_of(const fge_plan *plan) {
    const fge_pair_kernels *pairs = fge_pairs_of(plan);
    if (pairs) return (panels){pairs, pairs->mr, pairs->nr, pairs->unit, pairs->r_unit};
    return (panels){NULL, plan->real->mr, plan->real->nr, plan->real->size, 1};
}

/* Whether the result can hold the sums between steps. Only the columns of full register tiles do: the micro-kernel writes nr of
 * them. */
static int sums_wait_in_out(const fge_plan *plan, const panels *w) {
    const fge_epilogue *e = &plan->gemm->epilogue;
    return !w->pairs && e->out_dtype == plan->real->dtype && !e->accumulate;
}

/* How many of a's panels are packed at once. Where the operand's rows lie across the panel, each gives a few elements to it:
 * taken for several panels, whole lines are read, and pages of rows far apart are turned to once for all of them. */
static int64_t panels_of_a(const fge_gemm *g, const panels *w) {
    enum { LINES = 3 };
    return g->a.transposed && !w->pairs ? fge_max(1, LINES * 64 / (w->mr * w->unit)) : 1;
}

/* Whether all of a's panels of a step are kept, for the next blocks of b. */
static int keeps_a(const fge_plan *plan) { return plan->q_block < plan->q_tile; }

/* Where things lie in a thread's scratch, in bytes. */
typedef struct {
    int64_t b_panels, a_panels, ready, block_sums, kept, end;
} layout;

static layout layout_of(const fge_plan *plan, const panels *w) {
    enum { SPARE = 64 }; /* packing stores whole vectors */
    const int64_t size = plan->real->size, r_room = fge_round_up(plan->r_step, w->r_unit);
    const int64_t p_room = fge_round_up(plan->p_tile, w->mr), q_room = fge_round_up(plan->q_tile, w->nr);
    const int64_t waiting = sums_wait_in_out(plan, w) ? w->nr : q_room;
    const int64_t tiles = plan->gemm->r > plan->r_step ? p_room * waiting : 2 * w->mr * w->nr;
    const int64_t a_rows = keeps_a(plan) ? p_room : panels_of_a(plan->gemm, w) * w->mr;
    layout at = {0};
    at.a_panels = fge_round_up(fge_round_up(plan->q_block, w->nr) * r_room * w->unit + SPARE, 64);
    at.ready = at.a_panels + fge_round_up(a_rows * r_room * w->unit + SPARE, 64);
    at.block_sums = at.ready + fge_round_up(fge_max(w->mr, w->nr) * plan->r_step * size, 64);
    at.kept = at.block_sums + fge_round_up(2 * fge_max(p_room, q_room) * size, 64);
    at.end = at.kept + tiles * size;
    return at;
}

/* Tiles for the packed route. b's panels stay in L2. Where sums need room between steps, so do they, and a tile is as wide as
 * that leaves; otherwise a's panels are kept for all of a tile's blocks. Within that the tiles are those for which the operands
 * are made ready at least cost: a once for each tile along q, b once for each along p. */
enum { SIDE_LEAST = 112, READY = 1, DERIVED = 4 }; /* costs of an element, a derivative's with it */
enum { A_MOST = 5 << 19 };                         /* bytes of a's panels that a thread keeps, whatever L3 has */

static int64_t cost_of_tiles(const fge_gemm *g, int64_t p_tile, int64_t q_tile) {
    const int64_t a_cost = g->a.activation.id ? DERIVED : READY, b_cost = g->b.activation.id ? DERIVED : READY;
    return fge_ceil_div(g->q, q_tile) * g->p * a_cost + fge_ceil_div(g->p, p_tile) * g->q * b_cost;
}
static void plan_packed(fge_plan *plan, const panels *w, int64_t tasks) {
    const fge_gemm *g = plan->gemm;
    const int64_t room = fge_cache_sizes().l2 * 3 / 4, b_column = plan->r_step * w->unit;
    const int64_t kept = g->r > plan->r_step && !sums_wait_in_out(plan, w) ? plan->real->size : 0; /* bytes of each sum */
    const int64_t a_room = kept || w->pairs ? 0 : fge_min(fge_cache_sizes().l3 / 8, A_MOST);       /* L3 is shared */
    int64_t least = INT64_MAX, p_tile = 0;
    for (int64_t tiles = 1; tiles <= 64; tiles++) {
        p_tile = fge_even_tile(g->p, fge_ceil_div(g->p, tiles), w->mr);
        const int64_t q_block = fge_max(w->nr, room / (b_column + p_tile * kept) / w->nr * w->nr);
        const int64_t q_most = p_tile * b_column <= a_room ? g->q : q_block;
        const int64_t q_tile = fge_even_tile(g->q, q_most, w->nr), cost = cost_of_tiles(g, p_tile, q_tile);
        if (cost < least) {
            least = cost;
            plan->p_tile = p_tile;
            plan->q_tile = q_tile;
            plan->q_block = q_block;
        }
        if (p_tile < 2 * w->mr) break;
    }
    /* more tasks: halve the side that makes it dearer by less */
    while (fge_ceil_div(g->p, plan->p_tile) * fge_ceil_div(g->q, plan->q_tile) < tasks) {
        const int64_t p_half = fge_even_tile(plan->p_tile, fge_ceil_div(plan->p_tile, 2), w->mr);
        const int64_t q_half = fge_even_tile(plan->q_tile, fge_ceil_div(plan->q_tile, 2), w->nr);
        const int p_can = plan->p_tile >= 2 * SIDE_LEAST, q_can = plan->q_tile >= 2 * SIDE_LEAST;
        if (!p_can && !q_can) break;
        if (p_can && (!q_can || cost_of_tiles(g, p_half, plan->q_tile) <= cost_of_tiles(g, plan->p_tile, q_half)))
            plan->p_tile = p_half;
        else plan->q_tile = q_half;
    }
    plan->q_block = fge_even_tile(plan->q_tile, plan->q_block, w->nr);
    plan->scratch = (size_t)layout_of(plan, w).end;
}

static void plan_tiles(fge_plan *plan, int64_t tasks) {
    const fge_gemm *g = plan->gemm;
    const panels w = panels_of(plan);
    plan->p_tile = fge_max(1, g->p);
    plan->q_tile = fge_max(1, g->q);
    plan->r_step = fge_r_step(plan);
    switch (route_of(plan)) {
    case VECTOR: fge_vector_plan(plan, tasks); return;
    case DIRECT:
        plan->q_tile = fge_even_tile(g->q, fge_max(w.nr, fge_min(256, fge_ceil_div(g->q, tasks))), w.nr);
        plan->scratch = (size_t)(w.mr * w.nr * plan->real->size);
        return;
    case PACKED: plan_packed(plan, &w, tasks); return;
    }
}

/* Part of an operand as a panel: rows of a (columns of b) [first, first + count) by r [r0, r0 + r), `width` wide. */
typedef struct {
    const fge_operand *operand;
    int along_r; /* the operand's natural rows run along r, to be turned; otherwise they run along the panel */
    int64_t first, count, r0, r;
    int of_a;
    void *column_sums; /* NULL or REAL sums to add to */
} panel;

static void read_panel(const fge_plan *plan, const panel *p, void *to, int64_t ld, int dtype) {
    if (p->along_r) plan->real->read(p->operand, p->first, p->count, p->r0, p->r, to, ld, dtype, NULL);
    else plan->real->read(p->operand, p->r0, p->r, p->first, p->count, to, ld, dtype, p->column_sums);
}
/* The panel's corner, where it can be packed from memory as it is: contiguous rows of elements of `dtype`. */
static const void *in_place(const panel *p, int dtype) {
    const fge_operand *o = p->operand;
    if (o->activation.id != 0 || o->dtype != dtype || o->col_stride != 1 || p->column_sums) return NULL;
    return fge_at(o->data, (p->along_r ? p->first : p->r0) * o->row_stride + (p->along_r ? p->r0 : p->first), dtype);
}

/* What has to be made ready first is taken in parts of r that stay in L1. */
enum { PART = 256 };

static void pack_real(const fge_plan *plan, const panel *p, void *to, void *ready) {
    const fge_real_kernels *real = plan->real;
    const int64_t width = p->of_a ? real->mr : real->nr;
    if (!p->along_r) { /* reading with ld = width packs */
        if (p->count < width) memset(to, 0, (size_t)(width * p->r * real->size));
        read_panel(plan, p, to, width, real->dtype);
        return;
    }
    void (*const turn)(const void *, int64_t, int64_t, int64_t, void *) = p->of_a ? real->pack_a : real->pack_b;
    const void *rows = in_place(p, real->dtype);
    if (rows) {
        turn(rows, p->operand->row_stride, p->count, p->r, to);
        return;
    }
    for (int64_t l = 0; l < p->r; l += PART) {
        panel part = *p;
        part.r0 += l;
        part.r = fge_min(PART, p->r - l);
        read_panel(plan, &part, ready, part.r, real->dtype);
        turn(ready, part.r, p->count, part.r, (char *)to + l * width * real->size);
    }
}
static void pack_halves(const fge_pair_kernels *pairs, const panel *p, const uint16_t *rows, int64_t stride, int64_t r,
                        void *to) {
    if (p->of_a) (p->along_r ? pairs->pack_a_along : pairs->pack_a_across)(rows, stride, p->count, r, to);
    else (p->along_r ? pairs->pack_b_along : pairs->pack_b_across)(rows, stride, p->count, r, to);
}
static void pack_pairs(const fge_plan *plan, const fge_pair_kernels *pairs, const panel *p, void *to, void *ready) {
    const uint16_t *rows = in_place(p, plan->gemm->dtype);
    if (rows) {
        pack_halves(pairs, p, rows, p->operand->row_stride, p->r, to);
        return;
    }
    /* made ready first, for the derivative and the sums */
    const int64_t width = p->of_a ? pairs->mr : pairs->nr;
    for (int64_t l = 0; l < p->r; l += PART) {
        panel part = *p;
        part.r0 += l;
        part.r = fge_min(PART, p->r - l);
        const int64_t stride = p->along_r ? part.r : p->count;
        read_panel(plan, &part, ready, stride, plan->gemm->dtype);
        pack_halves(pairs, p, ready, stride, part.r, (char *)to + l * width * pairs->unit);
    }
}
static void pack(const fge_plan *plan, const panels *w, const panel *p, void *to, void *ready) {
    if (w->pairs) pack_pairs(plan, w->pairs, p, to, ready);
    else pack_real(plan, p, to, ready);
}

/* Natural rows across the panels are taken a few at a time over all panels, so that memory is read along its rows. A multiple of
 * every r_unit: pairs' panels are filled up to one. */
enum { ROWS_AT_ONCE = 32 };

/* Panels of b, or of a, for t's columns (rows) [first, first + count). */
static void pack_panels(const fge_plan *plan, const panels *w, int of_a, int64_t first, int64_t count, int64_t r0, int64_t r,
                        char *to, void *ready, char *column_sums) {
    const fge_operand *o = of_a ? &plan->gemm->a : &plan->gemm->b;
    const int along_r = of_a ? !o->transposed : o->transposed;
    const int64_t r_room = fge_round_up(r, w->r_unit), rows = along_r || (of_a && w->pairs) ? fge_max(r, 1) : ROWS_AT_ONCE,
                  width = of_a ? w->mr : w->nr;
    int64_t done = 0;
    if (!along_r && !w->pairs) {
        const panel all = {.operand = o, .first = first, .r0 = r0};
        const void *from = in_place(&all, plan->real->dtype);
        if (from) {
            (of_a ? plan->real->pack_a_across : plan->real->pack_b_across)(from, o->row_stride, count / width, r, to,
                                                                           width * r_room, column_sums);
            done = count / width * width;
        }
    }
    for (int64_t l = 0; l < r; l += rows)
        for (int64_t j = done; j < count; j += width) {
            const panel p = {.operand = o,
                             .along_r = along_r,
                             .first = first + j,
                             .count = fge_min(width, count - j),
                             .r0 = r0 + l,
                             .r = fge_min(rows, r - l),
                             .of_a = of_a,
                             .column_sums = column_sums ? column_sums + j * plan->real->size : NULL};
            pack(plan, w, &p, to + (j * r_room + l * width) * w->unit, ready);
        }
}

static void collect(const fge_plan *plan, void *block_sums, double *sums, int64_t n) {
    for (int64_t j = 0; j < n; j++)
        sums[j] += plan->real->size == 8 ? ((double *)block_sums)[j] : (double)((float *)block_sums)[j];
    memset(block_sums, 0, (size_t)(n * plan->real->size));
}

/* Lines that are about to be written, while the micro-kernel computes what goes there. */
static void prefetch_rows(const char *to, int64_t row_bytes, int64_t rows, int64_t bytes) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(to + i * row_bytes + b, 1);
}
static void prefetch_out(const fge_epilogue *e, int64_t row0, int64_t rows, int64_t col0, int64_t cols) {
    const int64_t size = fge_dtype_size(e->out_dtype);
    prefetch_rows((const char *)e->out + (row0 * e->out_stride + col0) * size, e->out_stride * size, rows, cols * size);
}

/* Sums of pairs that are NaN, once more in float: a part of an infinity is NaN, its float isn't. Finite operands have finite sums
 * (65504^2 times any length is within float's range), so this is about elements whose row or column holds an infinity or NaN. */
static void mend_nan(const fge_plan *plan, const fge_tile *t, int64_t i, int64_t rows, int64_t j, int64_t cols, float *c,
                     int64_t ldc) {
    enum { MOST = 32, STEP = 64 };
    const fge_gemm *g = plan->gemm;
    const fge_real_kernels *real = plan->real;
    float a[MOST * STEP], b[STEP * MOST], turned[MOST * STEP], sums[MOST * MOST];
    memset(sums, 0, sizeof sums);
    for (int64_t l = 0; l < t->r; l += STEP) {
        const int64_t r = fge_min(STEP, t->r - l), r0 = t->r0 + l;
        const int64_t a_row = g->a.transposed ? 1 : STEP, a_col = g->a.transposed ? MOST : 1;
        if (g->a.transposed) real->read(&g->a, r0, r, t->p0 + i, rows, a, MOST, FGE_FLOAT32, NULL);
        else real->read(&g->a, t->p0 + i, rows, r0, r, a, STEP, FGE_FLOAT32, NULL);
        if (g->b.transposed) {
            real->read(&g->b, t->q0 + j, cols, r0, r, turned, STEP, FGE_FLOAT32, NULL);
            for (int64_t col = 0; col < cols; col++)
                for (int64_t k = 0; k < r; k++) b[k * MOST + col] = turned[col * STEP + k];
        } else {
            real->read(&g->b, r0, r, t->q0 + j, cols, b, MOST, FGE_FLOAT32, NULL);
        }
        for (int64_t row = 0; row < rows; row += real->mr)
            real->tile(r, a + row * a_row, a_row, a_col, b, MOST, sums + row * MOST, MOST, (int)fge_min(real->mr, rows - row),
                       (int)cols, l > 0);
    }
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < cols; col++)
            if (c[row * ldc + col] != c[row * ldc + col]) c[row * ldc + col] = sums[row * MOST + col];
}

/* A task on the packed route. */
typedef struct {
    const fge_plan *plan;
    const fge_tile *tile;
    const fge_epilogue *epilogue;
    panels w;
    layout at;
    char *scratch;
    int many_steps, in_out; /* r takes several steps; the sums wait in the result between them */
    fge_pending pending;
    int turn; /* a pending tile keeps one of two places */
} packed;

/* Where the register tile at (i, j) of the task keeps its sums, ld apart. */
static char *sums_of_tile(const packed *p, int64_t i, int64_t j, int64_t *ld) {
    const int64_t size = p->plan->real->size, nr = p->w.nr;
    char *const kept = p->scratch + p->at.kept;
    if (p->in_out && p->tile->q - j >= nr) {
        *ld = p->epilogue->out_stride;
        return (char *)p->epilogue->out + ((p->tile->p0 + i) * *ld + p->tile->q0 + j) * size;
    }
    if (p->many_steps && !p->in_out) {
        *ld = fge_round_up(p->tile->q, nr);
        return kept + (i * *ld + j) * size;
    }
    *ld = nr;
    return kept + (p->in_out ? i : p->turn * p->w.mr) * nr * size;
}

/* The micro-kernel over r of a step, and behind the last step the epilogue. */
static void register_tile(packed *p, const char *a, const char *b, int64_t i, int64_t j, int64_t r, int first, int last) {
    const fge_plan *plan = p->plan;
    const fge_tile *t = p->tile;
    const fge_epilogue *epilogue = p->epilogue;
    const fge_real_kernels *real = plan->real;
    const fge_pair_kernels *pairs = p->w.pairs;
    const int64_t mr = p->w.mr, nr = p->w.nr, rows = fge_min(mr, t->p - i), cols = fge_min(nr, t->q - j);
    int64_t ldc;
    char *c = sums_of_tile(p, i, j, &ldc);
    if (p->many_steps && (p->in_out || !first)) prefetch_rows(c, ldc * real->size, rows, nr * real->size);
    if (last && !p->in_out) prefetch_out(epilogue, t->p0 + i, rows, t->q0 + j, cols);
    if (pairs) pairs->tile(r, (const uint16_t *)a, (const uint16_t *)b, (float *)c, ldc, (int)rows, !first, &p->pending);
    else real->tile(r, a, 1, mr, b, nr, c, ldc, (int)rows, (int)nr, !first);
    if (!last) return;
    if (pairs && pairs->any_nan && pairs->any_nan((float *)c, ldc, (int)rows))
        mend_nan(plan, t, i, rows, j, cols, (float *)c, ldc);
    if (pairs && pairs->pipelined) {
        fge_pending_rows(&p->pending, mr);
        p->pending = (fge_pending){real, epilogue, (float *)c, ldc, rows, cols, t->p0 + i, t->q0 + j, 0};
        p->turn = !p->turn;
    } else {
        real->epilogue(epilogue, c, ldc, rows, cols, t->p0 + i, t->q0 + j);
    }
}

static void multiply_packed(const fge_plan *plan, const fge_tile *t, const fge_epilogue *epilogue, double *sums, char *scratch) {
    const fge_gemm *g = plan->gemm;
    const panels w = panels_of(plan);
    packed p = {.plan = plan,
                .tile = t,
                .epilogue = epilogue,
                .w = w,
                .at = layout_of(plan, &w),
                .scratch = scratch,
                .many_steps = t->r > plan->r_step,
                .pending = {.real = plan->real, .epilogue = epilogue}};
    p.in_out = p.many_steps && sums_wait_in_out(plan, &w);
    const int64_t size = plan->real->size, at_once = panels_of_a(g, &w) * w.mr;
    char *b_panels = scratch, *a_panels = scratch + p.at.a_panels, *ready = scratch + p.at.ready,
         *block_sums = scratch + p.at.block_sums;
    char *b_sums = sums && !g->sums_of_a ? block_sums : NULL, *a_sums = sums && g->sums_of_a ? block_sums : NULL;
    if (sums) memset(block_sums, 0, (size_t)((a_sums ? t->p : t->q) * size));
    if (w.pairs && w.pairs->begin) w.pairs->begin();
    int64_t r0 = 0;
    do {
        const int64_t r = fge_min(plan->r_step, t->r - r0), column = fge_round_up(r, w.r_unit) * w.unit;
        int64_t j0 = 0;
        do {
            const int64_t j_end = fge_min(j0 + plan->q_block, t->q);
            pack_panels(plan, &w, 0, t->q0 + j0, j_end - j0, t->r0 + r0, r, b_panels, ready, b_sums ? b_sums + j0 * size : NULL);
            for (int64_t i = 0; i < t->p; i += w.mr) {
                char *a_panel = a_panels + (keeps_a(plan) ? i : i % at_once) * column;
                if (j0 == 0 && i % at_once == 0)
                    pack_panels(plan, &w, 1, t->p0 + i, fge_min(at_once, t->p - i), t->r0 + r0, r, a_panel, ready,
                                a_sums ? a_sums + i * size : NULL);
                for (int64_t j = j0; j < j_end; j += w.nr)
                    register_tile(&p, a_panel, b_panels + (j - j0) * column, i, j, r, r0 == 0, r0 + r >= t->r);
            }
            j0 = j_end;
        } while (j0 < t->q);
        if (sums) collect(plan, block_sums, sums, a_sums ? t->p : t->q);
        r0 += r;
    } while (r0 < t->r);
    fge_pending_rows(&p.pending, w.mr);
    if (w.pairs && w.pairs->end) w.pairs->end();
}

static void multiply_direct(const fge_plan *plan, const fge_tile *t, const fge_epilogue *epilogue, char *scratch) {
    const fge_gemm *g = plan->gemm;
    const fge_real_kernels *real = plan->real;
    const int64_t size = real->size, mr = real->mr, nr = real->nr;
    const int64_t a_row = fge_operand_row_stride(&g->a), a_col = fge_operand_col_stride(&g->a),
                  b_row = fge_operand_row_stride(&g->b);
    for (int64_t i = 0; i < t->p; i += mr)
        for (int64_t j = 0; j < t->q; j += nr) {
            const int64_t rows = fge_min(mr, t->p - i), cols = fge_min(nr, t->q - j);
            const char *a = (const char *)g->a.data + ((t->p0 + i) * a_row + t->r0 * a_col) * size;
            const char *b = (const char *)g->b.data + (t->r0 * b_row + t->q0 + j) * size;
            int64_t r0 = 0;
            do {
                const int64_t r = fge_min(plan->r_step, t->r - r0);
                real->tile(r, a + r0 * a_col * size, a_row, a_col, b + r0 * b_row * size, b_row, scratch, nr, (int)rows,
                           (int)cols, r0 > 0);
                r0 += r;
            } while (r0 < t->r);
            real->epilogue(epilogue, scratch, nr, rows, cols, t->p0 + i, t->q0 + j);
        }
}

static void multiply(const fge_plan *plan, const fge_tile *t, const fge_epilogue *epilogue, double *sums, void *scratch) {
    switch (route_of(plan)) {
    case VECTOR: fge_vector_multiply(plan, t, epilogue, scratch); return;
    case DIRECT: multiply_direct(plan, t, epilogue, scratch); return;
    case PACKED: multiply_packed(plan, t, epilogue, sums, scratch); return;
    }
}

const fge_engine fge_engine_native = {"native", plan_tiles, multiply};
