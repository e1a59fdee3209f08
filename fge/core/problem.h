/* What the engines share: a matrix product whose operands may be made on the fly and whose result goes through an
 * epilogue, and the table of kernels that one instruction set offers for it.
 *
 *     result [p, q] = epilogue(a [p, r] . b [r, q])
 *
 * The forward is one such product, x_grad and y_grad are one each. REAL is the accumulator: double for float64, float
 * otherwise. */
#ifndef FGE_PROBLEM_H
#define FGE_PROBLEM_H
#include "fge.h"

/* An operand in its own (natural) orientation, rows by columns. Where `activation` keeps a reserve, its elements are
 * data * act'(reserve), rounded to dtype: dZ, made while it is read. */
typedef struct {
    const void *data;
    int64_t rows, cols;
    int64_t row_stride, col_stride;
    int dtype;
    int transposed; /* the product sees [cols, rows] */
    fge_activation activation;
    const void *reserve;
    int64_t reserve_stride; /* one row: bytes of bits, elements of z or out */
} fge_operand;

/* A second operand of the epilogue, elementwise. */
typedef enum {
    FGE_NO_OTHER = 0,
    FGE_ADD_TO_Z = 1,
    FGE_ADD_TO_OUT = 2, /* act(z) + other */
    FGE_TIMES_OTHER = 3 /* act(z) * other */
} fge_other_role;

/* What happens to finished sums: z = sum + bias, out = act(z), reserve; or out (+)= sum * act'(state). */
typedef struct {
    void *out;
    int64_t out_stride;
    int out_dtype;
    int accumulate;
    const void *bias; /* q values of REAL, or NULL */
    fge_activation activation;
    void *reserve;                 /* NULL: not saved */
    fge_reserve_kind reserve_kind; /* what is kept in it */
    int reserve_dtype;
    int64_t reserve_stride;
    const void *other; /* of REAL or of the dtype of the operands; rows other_stride apart */
    fge_other_role other_role;
    int other_dtype;
    int64_t other_stride;
    fge_activation state_activation; /* its derivative multiplies the sum; id 0: none */
    const void *state;
    int state_dtype;
    int64_t state_stride;
    int64_t q; /* columns of the result: the last tile clears the padding of its bits */
} fge_epilogue;

typedef struct {
    int64_t p, q, r;
    int dtype;
    fge_operand a, b;
    fge_epilogue epilogue;
    double *sums; /* NULL, or room for the sums over r of b's q columns (of a's p rows where sums_of_a) */
    int sums_of_a;
} fge_gemm;

/* Kernels of one accumulator type. void * is REAL * where not said otherwise. */
typedef struct {
    int mr, nr;      /* rows and columns of a register tile */
    int size, dtype; /* sizeof(REAL), FGE_FLOAT32 or FGE_FLOAT64 */
    /* sums [rows, cols] at (row0, col0) of the result; may write over `sums` */
    void (*epilogue)(const fge_epilogue *, void *sums, int64_t ld, int64_t rows, int64_t cols, int64_t row0, int64_t col0);
    /* natural rows and columns of an operand, ld >= cols; column_sums (or NULL) += the sums before rounding. to_dtype is REAL's
     * or, for sets with pair kernels, the operand's; `to` has room for REALs in any case */
    void (*read)(const fge_operand *, int64_t row0, int64_t rows, int64_t col0, int64_t cols, void *to, int64_t ld, int to_dtype,
                 void *column_sums);
    /* one panel, r-major, of up to mr rows (nr columns) that each run along r, zeros behind the last; where they run along
     * the panel instead, `read` with ld = mr (nr) packs */
    void (*pack_a)(const void *from, int64_t stride, int64_t count, int64_t r, void *to);
    void (*pack_b)(const void *from, int64_t stride, int64_t count, int64_t r, void *to);
    /* several full panels, `panel` elements apart, from rows that run across them; sums (or NULL) += these rows */
    void (*pack_a_across)(const void *from, int64_t stride, int64_t panels, int64_t r, void *to, int64_t panel, void *sums);
    void (*pack_b_across)(const void *from, int64_t stride, int64_t panels, int64_t r, void *to, int64_t panel, void *sums);
    /* c [rows <= mr, cols <= nr] (+)= a . b; c has room for nr columns. a's element (i, l) is a[i * a_row + l * a_col];
     * b's rows are contiguous, b_row apart, and need nr readable columns unless cols < nr */
    void (*tile)(int64_t r, const void *a, int64_t a_row, int64_t a_col, const void *b, int64_t b_row, void *c, int64_t ldc,
                 int rows, int cols, int add);
    /* y [cols] += x [r] . b [r, cols], b in dtype with unit column stride (stream) or unit row stride (dots) */
    void (*vector_stream)(int64_t r, const void *x, const void *b, int dtype, int64_t b_row, int64_t cols, void *y);
    void (*vector_dots)(int64_t r, const void *x, const void *b, int dtype, int64_t b_col, int64_t cols, void *y);
} fge_real_kernels;

/* A tile of sums whose epilogue is still to come, from row `done` on. */
typedef struct {
    const fge_real_kernels *real;
    const fge_epilogue *epilogue;
    float *sums;
    int64_t ld, rows, cols, row0, col0, done;
} fge_pending;

/* Kernels that multiply pairs of half-precision elements into float sums. Panels have a layout of their own; r is filled up with
 * zeros to a multiple of r_unit. bfloat16 denormals are taken for zero, as the hardware does. */
typedef struct {
    const char *what; /* for show_config */
    int mr, nr;       /* rows and columns of a register tile */
    int unit;         /* bytes that an element takes in a panel */
    int r_unit;
    int r_least;   /* shorter sums are left to float kernels */
    int pipelined; /* `tile` finishes the pending tile; otherwise there is none */
    /* one panel of mr (nr) rows from `count` that run along r (across it: r rows that run along the panel), zeros behind the
     * last. `to` needs 64 spare bytes */
    void (*pack_a_along)(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to);
    void (*pack_a_across)(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to);
    void (*pack_b_along)(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to);
    void (*pack_b_across)(const uint16_t *from, int64_t stride, int64_t count, int64_t r, uint16_t *to);
    /* c [rows <= mr, nr] (+)= a . b; may write all mr rows of c */
    void (*tile)(int64_t r, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc, int rows, int add, fge_pending *pending);
    /* NULL, or: rows of c with a NaN, which may stand for an infinity, so that it has to be computed again in float */
    int (*any_nan)(const float *c, int64_t ldc, int rows);
    void (*begin)(void), (*end)(void); /* around a thread's tiles, or NULL */
} fge_pair_kernels;

typedef struct {
    const char *name;
    fge_real_kernels f32, f64;
    const fge_pair_kernels *bf16, *f16;         /* NULL: the type is widened */
    double (*peak)(int is_f32, double seconds); /* FLOP/s of the multiply-add units, one thread */
    /* widen and round `count` elements, for tests of the conversions */
    void (*convert)(const void *from, int from_dtype, void *to, int to_dtype, int64_t count);
} fge_kernels;

extern const fge_kernels fge_kernels_portable, fge_kernels_avx2, fge_kernels_avx512, fge_kernels_avx512_bf16, fge_kernels_amx;
extern const fge_pair_kernels fge_pairs_bf16_avx512, fge_pairs_bf16_amx, fge_pairs_f16_amx;

static inline int64_t fge_dtype_size(int dtype) { return dtype == FGE_FLOAT64 ? 8 : dtype == FGE_FLOAT32 ? 4 : 2; }
static inline int fge_is_half(int dtype) { return dtype == FGE_FLOAT16 || dtype == FGE_BFLOAT16; }
static inline int64_t fge_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t fge_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t fge_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t fge_round_up(int64_t a, int64_t b) { return fge_ceil_div(a, b) * b; }
static inline void fge_pending_rows(fge_pending *p, int64_t most) {
    const int64_t rows = fge_min(most, p->rows - p->done);
    if (rows <= 0) return;
    p->real->epilogue(p->epilogue, p->sums + p->done * p->ld, p->ld, rows, p->cols, p->row0 + p->done, p->col0);
    p->done += rows;
}
static inline const void *fge_at(const void *base, int64_t elements, int dtype) {
    return (const char *)base + elements * fge_dtype_size(dtype);
}
#endif
