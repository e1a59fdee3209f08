/* What an engine is: something that multiplies one tile of a fge_gemm and hands the sums to an epilogue. How a product
 * is cut into tiles, and which threads run them, is gemm.c's. */
#ifndef FGE_ENGINE_H
#define FGE_ENGINE_H
#include "problem.h"
#include "threads.h"

/* A product cut up. r_step, splits and r_split follow from the shapes, the dtype and the machine's caches, never from the
 * number of threads: they decide in which order products are summed. */
typedef struct {
    const fge_gemm *gemm;
    const fge_kernels *kernels;
    const fge_real_kernels *real;
    const void *engine_data;
    int64_t p_tile, q_tile;  /* one task's part of the result */
    int64_t q_block;         /* native: columns of b whose panels are in L2 at a time */
    int64_t r_step;          /* operands are made ready for this much of r at a time */
    int64_t splits, r_split; /* r is cut in `splits` parts of r_split, summed afterwards in order */
    size_t scratch;          /* bytes that a thread needs */
} fge_plan;

typedef struct {
    int64_t p0, p, q0, q, r0, r;
} fge_tile;

typedef struct {
    const char *name;
    /* fills in the tiles, r_step and scratch, for at least `tasks` tiles where that doesn't cost much. An engine whose sums
     * depend on the shape of a tile ignores `tasks` */
    void (*plan)(fge_plan *plan, int64_t tasks);
    /* sums over t's part of r, finished by `epilogue`; where `sums` isn't NULL, adds the sums over r of the derivative
     * operand's columns in this tile to it */
    void (*multiply)(const fge_plan *plan, const fge_tile *t, const fge_epilogue *epilogue, double *sums, void *scratch);
} fge_engine;

extern const fge_engine fge_engine_native, fge_engine_blas;

/* The whole product: tiles, splits, sums. A plan tells the memory that the run needs, so that a caller with several
 * products can take it all before the first one writes. */
void fge_gemm_plan(const fge_engine *engine, const fge_kernels *kernels, const fge_gemm *gemm, int threads, fge_plan *plan);
size_t fge_gemm_shared_bytes(const fge_plan *plan);
void fge_gemm_run(const fge_engine *engine, const fge_plan *plan, const fge_workspace *workspace);

/* Products with one row or one column, for every engine: limited by memory, operands of any dtype streamed as they are. */
int fge_vector_serves(const fge_gemm *gemm);
void fge_vector_plan(fge_plan *plan, int64_t tasks);
void fge_vector_multiply(const fge_plan *plan, const fge_tile *t, const fge_epilogue *epilogue, void *scratch);

/* How much of r the native kernels sum sequentially before the sums are added up. The same for every route, so that a call
 * gives the same bits whatever the strides of its operands. */
int64_t fge_r_step(const fge_plan *plan);
/* The kernels of pairs that serve the product, or NULL. */
static inline const fge_pair_kernels *fge_pairs_of(const fge_plan *plan) {
    const int dtype = plan->gemm->dtype;
    const fge_pair_kernels *pairs = dtype == FGE_BFLOAT16  ? plan->kernels->bf16
                                    : dtype == FGE_FLOAT16 ? plan->kernels->f16
                                                           : NULL;
    return pairs && plan->gemm->r >= pairs->r_least ? pairs : NULL;
}
/* `length` in equal tiles of a multiple of `unit`, none longer than `most` (or one unit) */
int64_t fge_even_tile(int64_t length, int64_t most, int64_t unit);

/* Rows and columns of an operand as the product sees them: strides swapped where it is transposed. */
static inline int64_t fge_operand_row_stride(const fge_operand *o) { return o->transposed ? o->col_stride : o->row_stride; }
static inline int64_t fge_operand_col_stride(const fge_operand *o) { return o->transposed ? o->row_stride : o->col_stride; }
/* its elements are there to be used as they are, in the accumulator's type */
static inline int fge_operand_plain(const fge_operand *o) { return o->activation.id == 0 && !fge_is_half(o->dtype); }
#endif
