/* The micro-kernels of REAL: one register tile of MR x NR sums over r, packing of the panels it reads, and the
 * matrix-vector kernels that are limited by memory. Included once per REAL by kernels.h. */

static inline ALWAYS_INLINE void FN(tile_rows)(int64_t r, const REAL *a, int64_t a_row, int64_t a_col, const REAL *b,
                                               int64_t b_row, REAL *c, int64_t ldc, int rows, int cols, int add) {
    V sums[MR][NRV];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NRV; j++) sums[i][j] = v_set1(0);
    enum { ROWS_AHEAD = 12, LINE = 64 / sizeof(REAL) }; /* of b, on their way from L2 */
    /* unrolled: branch prediction knows when a short loop ends */
#pragma GCC unroll 4
    for (int64_t l = 0; l < r; l++) {
        V columns[NRV];
        if (cols == NR)
#pragma GCC unroll 2
            for (int j = 0; j < NR; j += LINE) __builtin_prefetch(b + ROWS_AHEAD * b_row + j);
#pragma GCC unroll 4
        for (int j = 0; j < NRV; j++) columns[j] = cols == NR ? v_load(b + j * W) : v_load_n(b + j * W, FN(lanes)(cols - j * W));
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const V x = v_set1(a[i * a_row]);
#pragma GCC unroll 4
            for (int j = 0; j < NRV; j++) sums[i][j] = v_fma(x, columns[j], sums[i][j]);
        }
        a += a_col;
        b += b_row;
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NRV; j++) {
            REAL *to = c + i * ldc + j * W;
            v_store(to, add ? v_add(sums[i][j], v_load(to)) : sums[i][j]);
        }
}

static void FN(tile)(int64_t r, const void *a, int64_t a_row, int64_t a_col, const void *b, int64_t b_row, void *c, int64_t ldc,
                     int rows, int cols, int add) {
#define FGE_TILE_PACKED(n) \
    case n: FN(tile_rows)(r, (const REAL *)a, 1, MR, (const REAL *)b, NR, (REAL *)c, ldc, n, NR, add); return;
#define FGE_TILE_DIRECT(n) \
    case n: FN(tile_rows)(r, (const REAL *)a, a_row, a_col, (const REAL *)b, b_row, (REAL *)c, ldc, n, NR, add); return;
#define FGE_TILE_EDGE(n) \
    case n: FN(tile_rows)(r, (const REAL *)a, a_row, a_col, (const REAL *)b, b_row, (REAL *)c, ldc, n, cols, add); return;
#if defined(FGE_ISA_AVX512)
#define FGE_EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif defined(FGE_ISA_AVX2)
#define FGE_EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#elif REAL_IS_F32
#define FGE_EACH_ROWS(X) X(1) X(2) X(3) X(4)
#else
#define FGE_EACH_ROWS(X) X(1) X(2)
#endif
    if (cols < NR) {
#if defined(FGE_ISA_AVX2)
        if (rows == MR) { /* masks take two registers more than there are */
            FN(tile)(r, a, a_row, a_col, b, b_row, c, ldc, MR / 2, cols, add);
            FN(tile)(r, (const REAL *)a + MR / 2 * a_row, a_row, a_col, b, b_row, (REAL *)c + MR / 2 * ldc, ldc, MR / 2, cols,
                     add);
            return;
        }
#endif
        switch (rows) { FGE_EACH_ROWS(FGE_TILE_EDGE) }
    } else if (a_row == 1 && a_col == MR && b_row == NR) {
        switch (rows) { FGE_EACH_ROWS(FGE_TILE_PACKED) }
    } else {
        switch (rows) { FGE_EACH_ROWS(FGE_TILE_DIRECT) }
    }
#undef FGE_TILE_PACKED
#undef FGE_TILE_DIRECT
#undef FGE_TILE_EDGE
#undef FGE_EACH_ROWS
}

/* One panel of `width` rows of a (columns of b) from rows that run along r: to[l * width + i] = from[i * stride + l].
 * Rows behind the last are zeros. Stores are whole vectors, also where width isn't a multiple of W (masked stores are slower):
 * the last part of a row goes first and spills into the next row, whose first part covers that. `to` needs W spare elements. */
static inline ALWAYS_INLINE void FN(pack)(const REAL *from, int64_t stride, int64_t count, int64_t r, REAL *to, int width) {
    for (int64_t l0 = 0; l0 < r; l0 += W) {
        const int block = FN(lanes)(r - l0);
        V square[W];
        for (int part = (width - 1) / W; part >= 0; part--) {
#pragma GCC unroll 16
            for (int i = 0; i < W; i++) {
                const int64_t row = part * W + i;
                const REAL *at = from + row * stride + l0;
                square[i] = row >= count ? v_set1(0) : block == W ? v_load(at) : v_load_n(at, block);
            }
            FN(transpose)(square);
            for (int l = 0; l < block; l++) v_store(to + (l0 + l) * width + part * W, square[l]);
        }
    }
}
static void FN(pack_a)(const void *from, int64_t stride, int64_t count, int64_t r, void *to) {
    FN(pack)((const REAL *)from, stride, count, r, (REAL *)to, MR);
}
static void FN(pack_b)(const void *from, int64_t stride, int64_t count, int64_t r, void *to) {
    FN(pack)((const REAL *)from, stride, count, r, (REAL *)to, NR);
}

/* Panels of `width` rows of a (columns of b), `panel` elements apart, from rows that run across them: to[p * panel + l * width +
 * i] = from[l * stride + p * width + i]. A few rows at a time for all panels, so that their lines are in L1 until all of each is
 * used, also where strides are powers of two and few lines of L1 can hold them. The next rows are on their way to L2 meanwhile:
 * the hardware doesn't foresee them. Stores spill as in `pack`, but for a panel's last row. Where sums isn't NULL, the rows are
 * added to it, one after the other as in `read`. */
static inline ALWAYS_INLINE void FN(pack_across)(const REAL *from, int64_t stride, int64_t panels, int64_t r, REAL *to,
                                                 int64_t panel, REAL *sums, int width) {
    enum { ROWS = 8, MOST_VECTORS = ((MR > NR ? MR : NR) + W - 1) / W, LINE = 64 / sizeof(REAL) };
    const int vectors = (width + W - 1) / W;
    for (int64_t l0 = 0; l0 < r; l0 += ROWS) {
        const int64_t end = fge_min(l0 + ROWS, r);
        for (int64_t l = end; l < fge_min(end + ROWS, r); l++)
            for (int64_t b = 0; b < panels * width + LINE - 1; b += LINE) __builtin_prefetch(from + l * stride + b, 0, 2);
        for (int64_t p = 0; p < panels; p++) {
            const REAL *row = from + l0 * stride + p * width;
            REAL *at = to + p * panel + l0 * width;
            V sum[MOST_VECTORS] = {v_set1(0)};
#pragma GCC unroll 16
            for (int i = 0; sums && i < vectors; i++) sum[i] = v_load_n(sums + p * width + i * W, FN(lanes)(width - i * W));
            for (int64_t l = l0; l < end; l++, row += stride, at += width)
#pragma GCC unroll 16
                for (int i = 0; i < vectors; i++) {
                    const int n = FN(lanes)(width - i * W);
                    const V v = n == W ? v_load(row + i * W) : v_load_n(row + i * W, n);
                    if (n == W || l + 1 < r) v_store(at + i * W, v);
                    else v_store_n(at + i * W, v, n);
                    if (sums) sum[i] = v_add(v, sum[i]);
                }
#pragma GCC unroll 16
            for (int i = 0; sums && i < vectors; i++) v_store_n(sums + p * width + i * W, sum[i], FN(lanes)(width - i * W));
        }
    }
}
static void FN(pack_a_across)(const void *from, int64_t stride, int64_t panels, int64_t r, void *to, int64_t panel, void *sums) {
    FN(pack_across)((const REAL *)from, stride, panels, r, (REAL *)to, panel, (REAL *)sums, MR);
}
static void FN(pack_b_across)(const void *from, int64_t stride, int64_t panels, int64_t r, void *to, int64_t panel, void *sums) {
    FN(pack_across)((const REAL *)from, stride, panels, r, (REAL *)to, panel, (REAL *)sums, NR);
}

/* y += x . b with rows of b contiguous: four rows at a time, streamed past y, which stays in L1. Rows are far apart, so that the
 * hardware doesn't foresee the next ones. */
static inline ALWAYS_INLINE void FN(stream)(int64_t r, const REAL *x, const void *b, int64_t b_row, int64_t cols, REAL *y,
                                            int dtype) {
    enum { ROWS_AHEAD = 8 };
    int64_t l = 0;
    for (; l + 4 <= r; l += 4) {
        const V x0 = v_set1(x[l]), x1 = v_set1(x[l + 1]), x2 = v_set1(x[l + 2]), x3 = v_set1(x[l + 3]);
        const int64_t row = l * b_row;
        for (int64_t j = 0; j < cols; j += W) {
            const int n = FN(lanes)(cols - j);
            for (int ahead = ROWS_AHEAD; ahead < ROWS_AHEAD + 4; ahead++)
                __builtin_prefetch(fge_at(b, row + ahead * b_row + j, dtype));
            V sum = n == W ? v_load(y + j) : v_load_n(y + j, n);
            sum = v_fma(x0, FN(load_as)(b, row + j, n, dtype), sum);
            sum = v_fma(x1, FN(load_as)(b, row + b_row + j, n, dtype), sum);
            sum = v_fma(x2, FN(load_as)(b, row + 2 * b_row + j, n, dtype), sum);
            sum = v_fma(x3, FN(load_as)(b, row + 3 * b_row + j, n, dtype), sum);
            if (n == W) v_store(y + j, sum);
            else v_store_n(y + j, sum, n);
        }
    }
    for (; l < r; l++) {
        const V x0 = v_set1(x[l]);
        for (int64_t j = 0; j < cols; j += W) {
            const int n = FN(lanes)(cols - j);
            const V sum = v_fma(x0, FN(load_as)(b, l * b_row + j, n, dtype), v_load_n(y + j, n));
            v_store_n(y + j, sum, n);
        }
    }
}

/* y += x . b with columns of b contiguous: W columns at a time, squares of them turned in registers, so that each sum runs
 * along r in the same order as in every other kernel. */
static inline ALWAYS_INLINE void FN(dots)(int64_t r, const REAL *x, const void *b, int64_t b_col, int64_t cols, REAL *y,
                                          int dtype) {
    for (int64_t j = 0; j < cols; j += W) {
        const int columns = FN(lanes)(cols - j);
        V sum = v_load_n(y + j, columns);
        for (int64_t l0 = 0; l0 < r; l0 += W) {
            const int block = FN(lanes)(r - l0);
            V square[W];
#pragma GCC unroll 16
            for (int i = 0; i < W; i++) {
                const int64_t at = (j + i) * b_col + l0;
                square[i] = i >= columns ? v_set1(0) : FN(load_as)(b, at, block, dtype);
            }
            FN(transpose)(square);
            if (block == W) {
#pragma GCC unroll 16
                for (int l = 0; l < W; l++) sum = v_fma(v_set1(x[l0 + l]), square[l], sum);
            } else {
                for (int l = 0; l < block; l++) sum = v_fma(v_set1(x[l0 + l]), square[l], sum);
            }
        }
        v_store_n(y + j, sum, columns);
    }
}

#undef FOR_EACH_IN_DTYPE
#if REAL_IS_F32
#define FOR_EACH_IN_DTYPE(body) \
    switch (dtype) { \
    case FGE_FLOAT32: body(FGE_FLOAT32); break; \
    case FGE_FLOAT16: body(FGE_FLOAT16); break; \
    default: body(FGE_BFLOAT16); break; \
    }
#else
#define FOR_EACH_IN_DTYPE(body) \
    (void)dtype; \
    body(FGE_FLOAT64);
#endif
static void FN(vector_stream)(int64_t r, const void *x, const void *b, int dtype, int64_t b_row, int64_t cols, void *y) {
#define FGE_BODY(dt) FN(stream)(r, (const REAL *)x, b, b_row, cols, (REAL *)y, dt)
    FOR_EACH_IN_DTYPE(FGE_BODY)
#undef FGE_BODY
}
static void FN(vector_dots)(int64_t r, const void *x, const void *b, int dtype, int64_t b_col, int64_t cols, void *y) {
#define FGE_BODY(dt) FN(dots)(r, (const REAL *)x, b, b_col, cols, (REAL *)y, dt)
    FOR_EACH_IN_DTYPE(FGE_BODY)
#undef FGE_BODY
}
