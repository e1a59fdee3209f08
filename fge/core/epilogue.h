/* The epilogue on one tile of finished sums, and the derivative that the backward multiplies in. Included once per REAL
 * by kernels.h.
 *
 * Columns go in steps of STEP, a whole number of vectors and of mask bytes; col0 of a tile is a multiple of 8, so that
 * tiles never share a byte of RELU bits. */
#undef STEP
#undef STEP_VECTORS
#define STEP (W > 8 ? W : 8)
#define STEP_VECTORS (STEP / W)

static inline ALWAYS_INLINE int FN(lanes)(int64_t left) { return left >= W ? W : left > 0 ? (int)left : 0; }

static inline void FN(store_bits)(uint8_t *to, unsigned bits, int64_t columns) {
    to[0] = (uint8_t)bits;
#if STEP > 8
    if (columns > 8) to[1] = (uint8_t)(bits >> 8);
#endif
    (void)columns;
}
/* n lanes of the vector at column c of a row of RELU bits; only bytes that hold them are read */
static inline VM FN(load_bits)(const uint8_t *row, int64_t c, int n) {
    const uint8_t *at = row + (c >> 3);
    const int shift = (int)(c & 7), last = shift + n - 1;
    unsigned bits = at[0];
    if (last >= 8) bits |= (unsigned)at[1] << 8;
    if (last >= 16) bits |= (unsigned)at[2] << 16;
    return v_from_bits(bits >> shift & ((1u << W) - 1));
}

/* An activation's numbers as REAL, p[0] and p[1]. */
#undef PARAMETERS_OF
#define PARAMETERS_OF(activation) {(REAL)(activation).parameter[0], (REAL)(activation).parameter[1]}

/* gradient * act'(..) at column c of a row whose reserve starts at `state` */
static inline ALWAYS_INLINE V FN(times_derivative)(V gradient, int activation, const REAL *p, int dtype, const void *state,
                                                   int64_t c, int n) {
    switch (fge_reserve_kind_of(activation)) {
    case FGE_RESERVE_NONE: return gradient;
    case FGE_RESERVE_BITS: return FN(activation_masked)(activation, gradient, FN(load_bits)((const uint8_t *)state, c, n), p);
    default:
        return v_mul(gradient, FN(activation_derivative)(activation, FN(load_as)(state, c, n, dtype), fge_is_half(dtype), p));
    }
}
#if FGE_WIDE
/* two vectors at once: n lanes each, at columns first_c and second_c of rows whose reserves start at first_state and second_state
 */
static inline ALWAYS_INLINE WIDE FN(times_derivative_wide)(WIDE gradient, int activation, const REAL *p, int dtype,
                                                           const void *first_state, int64_t first_c, const void *second_state,
                                                           int64_t second_c, int n) {
    switch (fge_reserve_kind_of(activation)) {
    case FGE_RESERVE_NONE: return gradient;
    case FGE_RESERVE_BITS:
        gradient.of[0] =
            FN(activation_masked)(activation, gradient.of[0], FN(load_bits)((const uint8_t *)first_state, first_c, n), p);
        gradient.of[1] =
            FN(activation_masked)(activation, gradient.of[1], FN(load_bits)((const uint8_t *)second_state, second_c, n), p);
        return gradient;
    default: {
        const WIDE reserved = {{FN(load_as)(first_state, first_c, n, dtype), FN(load_as)(second_state, second_c, n, dtype)}};
        return FN(wide_mul)(gradient, FN(activation_derivative_wide)(activation, reserved, fge_is_half(dtype), p));
    }
    }
}
#endif
static inline const void *FN(state_row)(const void *state, int64_t stride, int64_t row, int activation, int dtype) {
    const int64_t unit = fge_reserve_kind_of(activation) == FGE_RESERVE_BITS ? 1 : fge_dtype_size(dtype);
    return (const char *)state + row * stride * unit;
}

static inline ALWAYS_INLINE void FN(forward_step)(const fge_epilogue *e, const REAL *sums, const REAL *bias, void *out,
                                                  void *reserve, int64_t c, int64_t left, int activation, const REAL *p,
                                                  int dtype) {
    const fge_reserve_kind kind = fge_reserve_kind_of(activation);
    unsigned bits = 0;
    for (int s = 0; s < STEP_VECTORS; s++) {
        const int n = left >= STEP ? W : FN(lanes)(left - s * W);
        if (n == 0) break;
        V z = n == W ? v_load(sums + s * W) : v_load_n(sums + s * W, n);
        if (bias) z = v_add(z, n == W ? v_load(bias + s * W) : v_load_n(bias + s * W, n));
        if (reserve && kind == FGE_RESERVE_Z) FN(store_as)(reserve, c + s * W, z, n, dtype);
        if (kind == FGE_RESERVE_BITS)
            bits |= (v_bits(FN(activation_bit)(activation, z, p)) & ((1u << n) - 1)) << (s * W); /* no lane past the last */
        FN(store_as)(out, c + s * W, FN(activation_forward)(activation, z, fge_is_half(dtype), p), n, dtype);
    }
    if (reserve && kind == FGE_RESERVE_BITS) FN(store_bits)((uint8_t *)reserve + (c >> 3), bits, left);
    (void)e;
}

#if FGE_WIDE
/* 2 W columns at once, all of them there */
static inline ALWAYS_INLINE void FN(forward_wide)(const REAL *sums, const REAL *bias, void *out, void *reserve, int64_t c,
                                                  int activation, const REAL *p, int dtype) {
    const fge_reserve_kind kind = fge_reserve_kind_of(activation);
    WIDE z = FN(load_wide)(sums);
    if (bias) z = FN(wide_add)(z, FN(load_wide)(bias));
    if (reserve && kind == FGE_RESERVE_BITS) {
        const WIDE_MASK bit = FN(activation_bit_wide)(activation, z, p);
        const unsigned bits = v_bits(bit.of[0]) | v_bits(bit.of[1]) << W;
        memcpy((uint8_t *)reserve + (c >> 3), &bits, 2 * W / 8);
    }
    const WIDE result = FN(activation_forward_wide)(activation, z, fge_is_half(dtype), p);
#pragma GCC unroll 2
    for (int s = 0; s < 2; s++) {
        if (reserve && kind == FGE_RESERVE_Z) FN(store_as)(reserve, c + s * W, z.of[s], W, dtype);
        FN(store_as)(out, c + s * W, result.of[s], W, dtype);
    }
}
#endif

static inline void FN(clear_padding)(uint8_t *row, const fge_epilogue *e) {
    const int64_t used = (e->q + 7) / 8;
    memset(row + used, 0, (size_t)(e->reserve_stride - used));
}

static inline ALWAYS_INLINE void FN(forward_tile)(const fge_epilogue *e, const REAL *sums, int64_t ld, int64_t rows, int64_t cols,
                                                  int64_t row0, int64_t col0, int activation, int dtype) {
    const fge_reserve_kind kind = fge_reserve_kind_of(activation);
    const REAL *bias = e->bias ? (const REAL *)e->bias + col0 : NULL;
    const REAL p[] = PARAMETERS_OF(e->activation);
    for (int64_t i = 0; i < rows; i++) {
        const REAL *row = sums + i * ld;
        void *out = (char *)e->out + (row0 + i) * e->out_stride * fge_dtype_size(dtype);
        void *reserve = NULL;
        if (e->reserve && kind != FGE_RESERVE_NONE)
            reserve =
                (char *)e->reserve + (row0 + i) * e->reserve_stride * (kind == FGE_RESERVE_BITS ? 1 : fge_dtype_size(dtype));
        int64_t j = 0;
#if FGE_WIDE
        for (; j + 2 * W <= cols; j += 2 * W)
            FN(forward_wide)(row + j, bias ? bias + j : NULL, out, reserve, col0 + j, activation, p, dtype);
#endif
        for (; j + STEP <= cols; j += STEP)
            FN(forward_step)(e, row + j, bias ? bias + j : NULL, out, reserve, col0 + j, STEP, activation, p, dtype);
        if (j < cols)
            FN(forward_step)(e, row + j, bias ? bias + j : NULL, out, reserve, col0 + j, cols - j, activation, p, dtype);
        if (reserve && kind == FGE_RESERVE_BITS && col0 + cols == e->q) FN(clear_padding)((uint8_t *)reserve, e);
    }
}

/* out (+)= sums * act'(state) */
static inline ALWAYS_INLINE void FN(gradient_tile)(const fge_epilogue *e, const REAL *sums, int64_t ld, int64_t rows,
                                                   int64_t cols, int64_t row0, int64_t col0, int activation, int dtype) {
    const int state_dtype = e->state_dtype;
    const REAL p[] = PARAMETERS_OF(e->state_activation);
    for (int64_t i = 0; i < rows; i++) {
        const REAL *row = sums + i * ld;
        void *out = (char *)e->out + (row0 + i) * e->out_stride * fge_dtype_size(dtype);
        const void *state = FN(state_row)(e->state, e->state_stride, row0 + i, activation, state_dtype);
        int64_t j = 0;
#if FGE_WIDE
        for (; j + 2 * W <= cols; j += 2 * W) {
            const WIDE sums_wide = FN(times_derivative_wide)(FN(load_wide)(row + j), activation, p, state_dtype, state, col0 + j,
                                                             state, col0 + j + W, W);
#pragma GCC unroll 2
            for (int s = 0; s < 2; s++) {
                const int64_t at = col0 + j + s * W;
                const V sum = e->accumulate ? v_add(sums_wide.of[s], FN(load_as)(out, at, W, dtype)) : sums_wide.of[s];
                FN(store_as)(out, at, sum, W, dtype);
            }
        }
#endif
        for (; j < cols; j += W) {
            const int n = FN(lanes)(cols - j);
            V sum = n == W ? v_load(row + j) : v_load_n(row + j, n);
            sum = FN(times_derivative)(sum, activation, p, state_dtype, state, col0 + j, n);
            if (e->accumulate) sum = v_add(sum, FN(load_as)(out, col0 + j, n, dtype));
            FN(store_as)(out, col0 + j, sum, n, dtype);
        }
    }
}

/* One body per activation and output dtype: the compiler folds both into it. */
#undef FOR_EACH_OUT_DTYPE
#if REAL_IS_F32
#define FOR_EACH_OUT_DTYPE(body, activation) \
    switch (e->out_dtype) { \
    case FGE_FLOAT32: body(activation, FGE_FLOAT32); break; \
    case FGE_FLOAT16: body(activation, FGE_FLOAT16); break; \
    default: body(activation, FGE_BFLOAT16); break; \
    }
#else
#define FOR_EACH_OUT_DTYPE(body, activation) body(activation, FGE_FLOAT64);
#endif

static void FN(forward_any)(const fge_epilogue *e, REAL *sums, int64_t ld, int64_t rows, int64_t cols, int64_t row0,
                            int64_t col0) {
#define FGE_FORWARD_BODY(id, dtype) FN(forward_tile)(e, sums, ld, rows, cols, row0, col0, id, dtype)
#define FGE_FORWARD_CASE(name, ...) \
    case FGE_##name: FOR_EACH_OUT_DTYPE(FGE_FORWARD_BODY, FGE_##name) return;
    switch (e->activation.id) { FGE_ACTIVATIONS(FGE_FORWARD_CASE) }
#undef FGE_FORWARD_BODY
#undef FGE_FORWARD_CASE
}
static void FN(gradient_any)(const fge_epilogue *e, const REAL *sums, int64_t ld, int64_t rows, int64_t cols, int64_t row0,
                             int64_t col0) {
#define FGE_GRADIENT_BODY(id, dtype) FN(gradient_tile)(e, sums, ld, rows, cols, row0, col0, id, dtype)
#define FGE_GRADIENT_CASE(name, ...) \
    case FGE_##name: FOR_EACH_OUT_DTYPE(FGE_GRADIENT_BODY, FGE_##name) return;
    switch (e->state_activation.id) { FGE_ACTIVATIONS(FGE_GRADIENT_CASE) }
#undef FGE_GRADIENT_BODY
#undef FGE_GRADIENT_CASE
}

/* The tile on its way through an epilogue of more steps than forward_tile has, each over the tile while it is in L1. */
static void FN(with_other)(const fge_epilogue *e, REAL *sums, int64_t ld, int64_t rows, int64_t cols, int64_t row0,
                           int64_t col0) {
    const int dtype = e->other_dtype;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t at = (row0 + i) * e->other_stride + col0;
        for (int64_t j = 0; j < cols; j += W) {
            const int n = FN(lanes)(cols - j);
            const V sum = FN(load_as)(sums, i * ld + j, n, REAL_DTYPE), other = FN(load_as)(e->other, at + j, n, dtype);
            FN(store_as)(sums, i * ld + j, e->other_role == FGE_TIMES_OTHER ? v_mul(sum, other) : v_add(sum, other), n,
                         REAL_DTYPE);
        }
    }
}
/* as it is, to `to` */
static void FN(store_tile)(const fge_epilogue *e, void *to, int64_t stride, int dtype, REAL *sums, int64_t ld, int64_t rows,
                           int64_t cols, int64_t row0, int64_t col0) {
    const fge_epilogue store = {.out = to, .out_stride = stride, .out_dtype = dtype, .q = e->q};
    FN(forward_any)(&store, sums, ld, rows, cols, row0, col0);
}
static void FN(epilogue_in_steps)(const fge_epilogue *e, REAL *sums, int64_t ld, int64_t rows, int64_t cols, int64_t row0,
                                  int64_t col0) {
    /* where the tile is its own result, rows and columns count from its corner */
    const fge_epilogue add_bias = {
        .out = sums, .out_stride = ld, .out_dtype = REAL_DTYPE, .bias = e->bias ? (const REAL *)e->bias + col0 : NULL, .q = cols};
    FN(forward_any)(&add_bias, sums, ld, rows, cols, 0, 0);
    if (e->other_role == FGE_ADD_TO_Z) FN(with_other)(e, sums, ld, rows, cols, row0, col0);
    if (e->reserve && e->reserve_kind == FGE_RESERVE_Z)
        FN(store_tile)(e, e->reserve, e->reserve_stride, e->reserve_dtype, sums, ld, rows, cols, row0, col0);
    fge_epilogue act = {.out = sums, .out_stride = ld, .out_dtype = REAL_DTYPE, .activation = e->activation, .q = cols + 1};
    if (e->reserve && e->reserve_kind == FGE_RESERVE_BITS) {
        act.reserve = (uint8_t *)e->reserve + row0 * e->reserve_stride + col0 / 8;
        act.reserve_stride = e->reserve_stride;
    }
    FN(forward_any)(&act, sums, ld, rows, cols, 0, 0);
    if (act.reserve && col0 + cols == e->q)
        for (int64_t i = 0; i < rows; i++) FN(clear_padding)((uint8_t *)e->reserve + (row0 + i) * e->reserve_stride, e);
    if (e->reserve && e->reserve_kind == FGE_RESERVE_OUT)
        FN(store_tile)(e, e->reserve, e->reserve_stride, e->reserve_dtype, sums, ld, rows, cols, row0, col0);
    if (e->other_role == FGE_ADD_TO_OUT || e->other_role == FGE_TIMES_OTHER) FN(with_other)(e, sums, ld, rows, cols, row0, col0);
    FN(store_tile)(e, e->out, e->out_stride, e->out_dtype, sums, ld, rows, cols, row0, col0);
}

/* Whether forward_tile does it in one go. */
static inline int FN(is_plain_forward)(const fge_epilogue *e) {
    if (e->other_role != FGE_NO_OTHER) return 0;
    return !e->reserve || (e->reserve_kind == fge_reserve_kind_of(e->activation.id) &&
                           (e->reserve_kind == FGE_RESERVE_BITS || e->reserve_dtype == e->out_dtype));
}
static void FN(epilogue)(const fge_epilogue *e, void *sums, int64_t ld, int64_t rows, int64_t cols, int64_t row0, int64_t col0) {
    if (e->state_activation.id != FGE_none || e->accumulate) FN(gradient_any)(e, (const REAL *)sums, ld, rows, cols, row0, col0);
    else if (FN(is_plain_forward)(e)) FN(forward_any)(e, (REAL *)sums, ld, rows, cols, row0, col0);
    else FN(epilogue_in_steps)(e, (REAL *)sums, ld, rows, cols, row0, col0);
}
