/* Reading operands: elements widened to REAL, with the derivative multiplied in where the operand is dZ. Included once
 * per REAL by kernels.h. */

/* `from` holds the block's elements in from_dtype, rows from_stride apart; o tells the reserve and its rounding. */
static inline ALWAYS_INLINE void FN(read_rows)(const fge_operand *o, const void *from, int64_t from_stride, int from_dtype,
                                              int64_t row0, int64_t rows, int64_t col0, int64_t cols, REAL *to, int64_t ld,
                                              REAL *column_sums, int activation, int dtype) {
    const int derived = fge_reserve_kind_of(activation) != FGE_RESERVE_NONE;
    for (int64_t i = 0; i < rows; i++) {
        const void *state = derived ? FN(state_row)(o->reserve, o->reserve_stride, row0 + i, activation, dtype) : NULL;
        REAL *row = to + i * ld;
        for (int64_t j = 0; j < cols; j += W) {
            const int n = FN(lanes)(cols - j);
            V v = FN(load_as)(from, i * from_stride + j, n, from_dtype);
            v = FN(times_derivative)(v, activation, dtype, state, col0 + j, n);
            if (column_sums) {
                REAL *sums = column_sums + j;
                if (n == W) v_store(sums, v_add(v, v_load(sums))); else v_store_n(sums, v_add(v, v_load_n(sums, n)), n);
            }
            if (derived) v = FN(rounded)(v, dtype);
            if (n == W) v_store(row + j, v); else v_store_n(row + j, v, n);
        }
    }
}

/* The commonest case by far, b's panels: NR columns as they are. The next panel's are fetched meanwhile: their rows are too far apart for
 * the hardware to foresee. */
static void FN(copy_panel)(const REAL *from, int64_t from_stride, int64_t rows, REAL *to) {
    for (int64_t i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NR; j += W) {
            __builtin_prefetch(from + i * from_stride + NR + j);
            v_store(to + i * NR + j, v_load(from + i * from_stride + j));
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
                     void *column_sums) {
    if (o->col_stride != 1) {
        FN(gather)(o, row0, rows, col0, cols, (REAL *)to, ld);
        if (o->activation != FGE_none || column_sums)
            FN(read_rows)(o, to, ld, REAL_DTYPE, row0, rows, col0, cols, (REAL *)to, ld, (REAL *)column_sums, o->activation, o->dtype);
        return;
    }
    const void *from = fge_at(o->data, row0 * o->row_stride + col0, o->dtype);
    if (cols == NR && ld == NR && o->activation == FGE_none && o->dtype == REAL_DTYPE && !column_sums) {
        FN(copy_panel)((const REAL *)from, o->row_stride, rows, (REAL *)to);
        return;
    }
#define FGE_READ_BODY(id, dtype) \
    FN(read_rows)(o, from, o->row_stride, dtype, row0, rows, col0, cols, (REAL *)to, ld, (REAL *)column_sums, id, dtype)
#if REAL_IS_F32
#define FGE_READ_CASE(name, kind)                                        \
    case FGE_##name:                                                     \
        switch (o->dtype) {                                              \
        case FGE_FLOAT32: FGE_READ_BODY(FGE_##name, FGE_FLOAT32); break; \
        case FGE_FLOAT16: FGE_READ_BODY(FGE_##name, FGE_FLOAT16); break; \
        default: FGE_READ_BODY(FGE_##name, FGE_BFLOAT16); break;         \
        }                                                                \
        return;
#else
#define FGE_READ_CASE(name, kind) \
    case FGE_##name: FGE_READ_BODY(FGE_##name, FGE_FLOAT64); return;
#endif
    switch (o->activation) { FGE_ACTIVATIONS(FGE_READ_CASE) }
#undef FGE_READ_CASE
#undef FGE_READ_BODY
}
