/* Reading operands: elements widened to REAL, with the derivative multiplied in where the operand is dZ. Included once
 * per REAL by kernels.h. */

/* 2 W elements from `index` on, on their way to the cache */
static inline ALWAYS_INLINE void FN(fetch)(const void *base, int64_t index, int dtype) {
    const char *at = (const char *)fge_at(base, index, dtype);
    for (int64_t b = 0; b < 2 * W * fge_dtype_size(dtype); b += 64) __builtin_prefetch(at + b);
}

/* The last steps of reading n <= W elements: the sums, the rounding, the store. */
static inline ALWAYS_INLINE void FN(finish_read)(V v, int n, void *to, int64_t index, int to_dtype, REAL *sums, int derived,
                                                 int dtype) {
    if (sums) {
        if (n == W) v_store(sums, v_add(v, v_load(sums)));
        else v_store_n(sums, v_add(v, v_load_n(sums, n)), n);
    }
    if (derived && to_dtype != dtype) v = FN(rounded)(v, dtype);
    FN(store_as)(to, index, v, n, to_dtype);
}

/* `from` holds the block's elements in from_dtype, rows from_stride apart; o tells the reserve and its rounding. `to` may be
 * `from`. */
static inline ALWAYS_INLINE void FN(read_rows)(const fge_operand *o, const void *from, int64_t from_stride, int from_dtype,
                                               int64_t row0, int64_t rows, int64_t col0, int64_t cols, void *to, int64_t ld,
                                               int to_dtype, REAL *column_sums, int activation, int dtype) {
    const int derived = fge_reserve_kind_of(activation) != FGE_RESERVE_NONE;
    const REAL p[] = PARAMETERS_OF(o->activation);
#define STATE_OF(i) (derived ? FN(state_row)(o->reserve, o->reserve_stride, row0 + (i), activation, dtype) : NULL)
#if FGE_WIDE
    const int reads_state = derived && fge_reserve_kind_of(activation) != FGE_RESERVE_BITS;
    const int64_t wide = cols / (2 * W) * (2 * W);
#else
    const int64_t wide = 0;
#endif
    for (int64_t i = 0; i < rows; i++) {
        const void *state = STATE_OF(i);
#if FGE_WIDE
        /* what lies behind the block is read next as a rule, by rows too far apart for the hardware to foresee: `cols` ahead */
        for (int64_t j = 0; j < wide; j += 2 * W) {
            const int64_t at = i * from_stride + j;
            if (derived) FN(fetch)(from, at + cols, from_dtype);
            if (reads_state) FN(fetch)(state, col0 + j + cols, dtype);
            WIDE v = {{FN(load_as)(from, at, W, from_dtype), FN(load_as)(from, at + W, W, from_dtype)}};
            v = FN(times_derivative_wide)(v, activation, p, dtype, state, col0 + j, state, col0 + j + W, W);
#pragma GCC unroll 2
            for (int s = 0; s < 2; s++)
                FN(finish_read)(v.of[s], W, to, i * ld + j + s * W, to_dtype, column_sums ? column_sums + j + s * W : NULL,
                                derived, dtype);
        }
        /* columns left over: by two rows at once, but in place row by row */
        if (derived && from != to) {
            if (wide == cols || (i % 2 == 0 && i + 1 < rows)) continue;
            if (i % 2 == 1) {
                const void *above = STATE_OF(i - 1);
                for (int64_t j = wide; j < cols; j += W) {
                    const int n = FN(lanes)(cols - j);
                    const int64_t at = i * from_stride + j;
                    for (int row = 0; row < 2; row++) {
                        FN(fetch)(from, at - row * from_stride + cols, from_dtype);
                        if (reads_state) FN(fetch)(row ? above : state, col0 + j + cols, dtype);
                    }
                    WIDE v = {{FN(load_as)(from, at - from_stride, n, from_dtype), FN(load_as)(from, at, n, from_dtype)}};
                    v = FN(times_derivative_wide)(v, activation, p, dtype, above, col0 + j, state, col0 + j, n);
                    for (int s = 0; s < 2; s++)
                        FN(finish_read)(v.of[s], n, to, (i - 1 + s) * ld + j, to_dtype, column_sums ? column_sums + j : NULL,
                                        derived, dtype);
                }
                continue;
            }
        }
#endif
        for (int64_t j = wide; j < cols; j += W) {
            const int n = FN(lanes)(cols - j);
            V v = FN(load_as)(from, i * from_stride + j, n, from_dtype);
            v = FN(times_derivative)(v, activation, p, dtype, state, col0 + j, n);
            FN(finish_read)(v, n, to, i * ld + j, to_dtype, column_sums ? column_sums + j : NULL, derived, dtype);
        }
    }
#undef STATE_OF
}

/* The commonest case by far, a panel of `width` columns as they are. The next panel's are fetched meanwhile: their rows are too
 * far apart for the hardware to foresee. Stores are whole vectors that spill into the next row, which covers that; the last one's
 * isn't. */
static inline ALWAYS_INLINE void FN(copy_panel)(const REAL *from, int64_t from_stride, int64_t rows, REAL *to, int width) {
    for (int64_t i = 0; i < rows; i++) {
        const REAL *row = from + i * from_stride;
#pragma GCC unroll 4
        for (int j = 0; j < width; j += W) {
            const int n = FN(lanes)(width - j);
            __builtin_prefetch(row + width + j);
            if (n == W) v_store(to + i * width + j, v_load(row + j));
            else if (i + 1 < rows) v_store(to + i * width + j, v_load_n(row + j, n));
            else v_store_n(to + i * width + j, v_load_n(row + j, n), n);
        }
    }
}

/* Any strides, in squares so that neither side is walked across its rows for long. */
static void FN(gather)(const fge_operand *o, int64_t row0, int64_t rows, int64_t col0, int64_t cols, REAL *to, int64_t ld) {
    enum { SQUARE = 32 };
    for (int64_t i0 = 0; i0 < rows; i0 += SQUARE)
        for (int64_t j0 = 0; j0 < cols; j0 += SQUARE)
            for (int64_t i = i0; i < fge_min(i0 + SQUARE, rows); i++)
                for (int64_t j = j0; j < fge_min(j0 + SQUARE, cols); j++)
                    to[i * ld + j] = FN(element)(o->data, (row0 + i) * o->row_stride + (col0 + j) * o->col_stride, o->dtype);
}

static void FN(read)(const fge_operand *o, int64_t row0, int64_t rows, int64_t col0, int64_t cols, void *to, int64_t ld,
                     int to_dtype, void *column_sums) {
    const void *from = fge_at(o->data, row0 * o->row_stride + col0, o->dtype);
    int64_t from_stride = o->row_stride;
    int from_dtype = o->dtype;
    if (o->col_stride != 1) {
        FN(gather)(o, row0, rows, col0, cols, (REAL *)to, ld);
        from = to;
        from_stride = ld;
        from_dtype = REAL_DTYPE;
        if (o->activation.id == FGE_none && !column_sums && to_dtype == REAL_DTYPE) return;
    }
    if ((cols == NR || cols == MR) && ld == cols && o->activation.id == FGE_none && from_dtype == REAL_DTYPE &&
        to_dtype == REAL_DTYPE && !column_sums) {
        if (cols == NR) FN(copy_panel)((const REAL *)from, from_stride, rows, (REAL *)to, NR);
        else FN(copy_panel)((const REAL *)from, from_stride, rows, (REAL *)to, MR);
        return;
    }
#define FGE_READ_BODY(id, from_dtype, to_dtype, dtype) \
    FN(read_rows)(o, from, from_stride, from_dtype, row0, rows, col0, cols, to, ld, to_dtype, (REAL *)column_sums, id, dtype)
#if defined(FGE_HAS_AVX512_BF16)
#define FGE_READ_HALVES(id, dtype) \
    if (to_dtype == dtype) { \
        if (from_dtype == dtype) FGE_READ_BODY(id, dtype, dtype, dtype); \
        else FGE_READ_BODY(id, REAL_DTYPE, dtype, dtype); \
        return; \
    }
#else
#define FGE_READ_HALVES(id, dtype)
#endif
#define FGE_READ_DTYPE(id, dtype) \
    case dtype: \
        if (dtype != REAL_DTYPE) { FGE_READ_HALVES(id, dtype) } \
        if (from_dtype == dtype) FGE_READ_BODY(id, dtype, REAL_DTYPE, dtype); \
        else FGE_READ_BODY(id, REAL_DTYPE, REAL_DTYPE, dtype); \
        return;
#if REAL_IS_F32
#define FGE_READ_CASE(name, ...) \
    case FGE_##name: \
        switch (o->dtype) { \
            FGE_READ_DTYPE(FGE_##name, FGE_FLOAT32) \
            FGE_READ_DTYPE(FGE_##name, FGE_FLOAT16) \
            FGE_READ_DTYPE(FGE_##name, FGE_BFLOAT16) \
        } \
        return;
#else
#define FGE_READ_CASE(name, ...) \
    case FGE_##name: FGE_READ_BODY(FGE_##name, FGE_FLOAT64, FGE_FLOAT64, FGE_FLOAT64); return;
#endif
    switch (o->activation.id) { FGE_ACTIVATIONS(FGE_READ_CASE) }
#undef FGE_READ_CASE
#undef FGE_READ_DTYPE
#undef FGE_READ_HALVES
#undef FGE_READ_BODY
}
