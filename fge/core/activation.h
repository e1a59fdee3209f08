/* Every activation: its name, what its reserve keeps, its forward and its derivative. The only file that knows one.
 *
 * To add one: a line in FGE_ACTIVATIONS, NAME_forward and NAME_derivative below, and an entry in the test table
 * (tests/activation_table.py).
 *
 *   NAME_forward(z, half)   half: the result is about to be rounded to a half type, so that float32's last bits don't count
 *   NAME_derivative(s, half) act'(z) from what the reserve keeps: s is z or out. Not called for RESERVE_BITS, whose
 *                           derivative is the bit
 *
 * Limits at +-inf hold without a NaN from inf * 0, and NaN passes through, because arguments are clamped to where the
 * function is already at its limit (v_max and v_min keep a NaN in their second operand).
 */
#ifndef FGE_ACTIVATION_LIST
#define FGE_ACTIVATION_LIST
#include "coefficients.h"
#include "fge.h"

#define FGE_ACTIVATIONS(X)         \
    X(none, FGE_RESERVE_NONE)      \
    X(relu, FGE_RESERVE_BITS)      \
    X(gelu, FGE_RESERVE_Z)         \
    X(gelu_erf, FGE_RESERVE_Z)     \
    X(silu, FGE_RESERVE_Z)         \
    X(sigmoid, FGE_RESERVE_OUT)    \
    X(tanh, FGE_RESERVE_OUT)

#define FGE_ACTIVATION_ID(name, kind) FGE_##name,
enum { FGE_ACTIVATIONS(FGE_ACTIVATION_ID) FGE_ACTIVATION_COUNT };
#undef FGE_ACTIVATION_ID

#define FGE_ACTIVATION_KIND(name, kind) id == FGE_##name ? kind :
static inline fge_reserve_kind fge_reserve_kind_of(int id) { return FGE_ACTIVATIONS(FGE_ACTIVATION_KIND) FGE_RESERVE_NONE; }
#undef FGE_ACTIVATION_KIND
#endif

#ifdef REAL /* the functions, once per vector type */

#undef CHOOSE
#if REAL_IS_F32
#define CHOOSE(f32, f64) f32
#else
#define CHOOSE(f32, f64) f64
#endif

static inline ALWAYS_INLINE V FN(polynomial)(V x, const REAL *coefficients, int terms) {
    V sum = v_set1(coefficients[terms - 1]);
    for (int i = terms - 2; i >= 0; i--) sum = v_fma(sum, x, v_set1(coefficients[i]));
    return sum;
}
#undef POLYNOMIAL
#define POLYNOMIAL(x, NAME)                                                                        \
    FN(polynomial)(x, (const REAL[])CHOOSE(NAME##_F32, NAME##_F64), CHOOSE(NAME##_F32_TERMS, NAME##_F64_TERMS))

#undef LOG2_E
#define LOG2_E 1.4426950408889634
/* Beyond these exp(t) is 0, or 1 + exp(t) is exp(t) by far, in every use below. */
#undef EXP_LOWEST
#undef EXP_HIGHEST
#define EXP_LOWEST CHOOSE(-170.0f, -800.0)
#define EXP_HIGHEST CHOOSE(80.0f, 80.0)
/* Derivatives below exp(SLOPE_LOWEST) are taken for 0: their products would soon leave the normal range, where x86 is slow. */
#undef SLOPE_LOWEST
#define SLOPE_LOWEST CHOOSE(-60.0f, -600.0)
static inline ALWAYS_INLINE V FN(clamp)(V t, REAL low, REAL high) { return v_max(v_set1(low), v_min(v_set1(high), t)); }

/* exp(high + low) = (p + *rest) * 2^n with p in about [0.7, 1.42]; returns p, and p alone where rest is NULL. ln 2 in two parts (Cody and Waite): n times the
 * first is exact. */
static inline ALWAYS_INLINE V FN(exp_parts)(V high, V low, V *n, V *rest) {
    *n = v_round(v_mul(high, v_set1((REAL)LOG2_E)));
    V r = v_fnma(*n, v_set1(CHOOSE(0.693359375f, 6.93147180369123816490e-01)), high);
    r = v_add(v_fnma(*n, v_set1(CHOOSE(-2.12194440e-4f, 1.90821492927058770002e-10)), r), low);
    const V beyond_one = v_fma(v_mul(r, r), POLYNOMIAL(r, EXP_REST), r), p = v_add(v_set1(1), beyond_one);
    if (rest) *rest = v_sub(beyond_one, v_sub(p, v_set1(1)));
    return p;
}

/* sigmoid(t) = q * 2^n for t = high + low, high clamped by the caller; returns q. 2^n stays apart so that a factor can
 * be multiplied in before a result below the normal range loses bits. */
static inline ALWAYS_INLINE V FN(one_and_exp)(V p, V n) { return v_add(v_set1(1), v_scale_normal(p, v_max(v_set1(FGE_NEAR_TINY), n))); }
static inline ALWAYS_INLINE V FN(sigmoid_parts)(V high, V low, V *n) {
    const V p = FN(exp_parts)(high, low, n, NULL);
    return v_quotient(p, FN(one_and_exp)(p, *n));
}
/* z * sigmoid(high + low) where z and high grow together; z itself once the sigmoid is 1. */
static inline ALWAYS_INLINE V FN(times_sigmoid)(V z, V high, V low) {
    V n;
    const V q = FN(sigmoid_parts)(FN(clamp)(high, EXP_LOWEST, EXP_HIGHEST), low, &n);
    const V product = v_scale(v_mul(v_max(v_set1(-1000), z), q), n);
    return v_select(v_gt(high, v_set1(45)), z, product);
}
/* 1 / (1 + *power), *power = 2^u, for results that are about to be rounded to half precision; half of the operations. Not for u above
 * EXP2_HIGHEST. */
#undef EXP2_HIGHEST
#define EXP2_HIGHEST 100
static inline ALWAYS_INLINE V FN(half_sigmoid)(V u, V *power) {
    u = v_max(v_set1(-60), u); /* the result is 1 there */
    const V n = v_round(u), f = v_sub(u, n), p = v_fma(f, POLYNOMIAL(f, EXP2_REST), v_set1(1));
    *power = v_scale_normal(p, n);
    return v_reciprocal(v_add(v_set1(1), *power));
}
/* z * sigmoid(-u ln 2) likewise, for any u; z falls where u grows */
static inline ALWAYS_INLINE V FN(times_half_sigmoid)(V z, V u) {
    if (__builtin_expect(v_any(v_gt(u, v_set1(EXP2_HIGHEST))), 0))
        return FN(times_sigmoid)(z, v_mul(u, v_set1((REAL)-0.69314718055994530942)), v_set1(0));
    V power;
    return v_mul(z, FN(half_sigmoid)(u, &power));
}
/* (z sigmoid(t))' = w + w (1 - w) z t', w = sigmoid(t) = 1 / (1 + 2^u), slope = z t' */
static inline ALWAYS_INLINE V FN(half_slope)(V u, V slope) {
    V power; /* 1 - w = power w */
    const V w = FN(half_sigmoid)(v_min(v_set1(EXP2_HIGHEST), u), &power);
    const V sum = v_fma(v_mul(v_mul(w, power), w), slope, w);
    return v_select(v_gt(u, v_set1((REAL)(-SLOPE_LOWEST * LOG2_E))), v_set1(0), sum);
}
/* sigmoid and its complement, each exact where it is small; t isn't below SLOPE_LOWEST */
static inline ALWAYS_INLINE V FN(sigmoid_both)(V t, V *complement) {
    V n;
    const V p = FN(exp_parts)(t, v_set1(0), &n, NULL);
    *complement = v_quotient(v_set1(1), FN(one_and_exp)(p, n));
    return v_scale_normal(v_mul(p, *complement), n);
}

static inline ALWAYS_INLINE V FN(none_forward)(V z, int half) { (void)half; return z; }
static inline ALWAYS_INLINE V FN(none_derivative)(V z, int half) { (void)z; (void)half; return v_set1(1); }

/* NaN > 0 is false: the bit is 0, but the value must stay NaN, so the comparison is 0 > z */
static inline ALWAYS_INLINE V FN(relu_forward)(V z, int half) { (void)half; return v_max(v_set1(0), z); }
static inline ALWAYS_INLINE V FN(relu_derivative)(V z, int half) { (void)half; return v_keep(v_gt(z, v_set1(0)), v_set1(1)); }

/* gelu, tanh form: 0.5 z (1 + tanh(u)) = z / (1 + exp(-2u)), u = sqrt(2/pi) (z + 0.044715 z^3)
 * (D. Hendrycks, K. Gimpel, arXiv:1606.08415). The right-hand side doesn't cancel in the negative tail. There an error
 * of 2u is multiplied by |2u|, up to 100 for float32, so 2u = z (GELU_A + GELU_B z^2) is kept as a sum of two. */
#undef GELU_A
#undef GELU_A_REST
#undef GELU_B
#undef GELU_B_REST
#define GELU_A CHOOSE(1.59576916694641f, 1.5957691216057308)
#define GELU_A_REST CHOOSE(-4.534068042e-8f, -9.969308809e-17)
#define GELU_B CHOOSE(0.0713548138737678f, 0.07135481627260025)
#define GELU_B_REST CHOOSE(2.398832396e-9f, -6.175149918e-19)
#undef GELU_FAR
#define GELU_FAR 24 /* |2u| is over 1000 here */
static inline ALWAYS_INLINE V FN(gelu_forward)(V z, int half) {
    if (half) {
        const V a = v_set1((REAL)(-GELU_A * LOG2_E)), b = v_set1((REAL)(-GELU_B * LOG2_E));
        return FN(times_half_sigmoid)(z, v_mul(z, v_fma(v_mul(z, z), b, a)));
    }
    const V x = FN(clamp)(z, -GELU_FAR, GELU_FAR);
    V square_low, low, product_low;
    const V square = v_product(x, x, &square_low);
    const V cubic = v_product(v_set1(GELU_B), square, &low);
    low = v_fma(v_set1(GELU_B), square_low, v_fma(v_set1(GELU_B_REST), square, low));
    /* GELU_A + cubic, exactly, as sum and rest (D. E. Knuth's two-sum) */
    const V sum = v_add(v_set1(GELU_A), cubic), part = v_sub(sum, v_set1(GELU_A));
    const V rest = v_add(v_sub(v_set1(GELU_A), v_sub(sum, part)), v_sub(cubic, part));
    low = v_add(v_add(low, v_set1(GELU_A_REST)), rest);
    const V high = v_product(x, sum, &product_low);
    return FN(times_sigmoid)(z, high, v_fma(x, low, product_low));
}
static inline ALWAYS_INLINE V FN(gelu_derivative)(V z, int half) {
    const V x = FN(clamp)(z, -GELU_FAR, GELU_FAR), square = v_mul(x, x);
    const V slope = v_mul(x, v_fma(square, v_set1(3 * GELU_B), v_set1(GELU_A)));
    if (half) {
        const V u = v_mul(x, v_fma(square, v_set1((REAL)(-GELU_B * LOG2_E)), v_set1((REAL)(-GELU_A * LOG2_E))));
        return FN(half_slope)(u, slope);
    }
    const V t = v_mul(x, v_fma(square, v_set1(GELU_B), v_set1(GELU_A)));
    V complement;
    const V w = FN(sigmoid_both)(FN(clamp)(t, SLOPE_LOWEST, EXP_HIGHEST), &complement);
    return v_select(v_gt(v_set1(SLOPE_LOWEST), t), v_set1(0), v_fma(v_mul(w, complement), slope, w));
}

/* gelu_erf: z Phi(z), Phi the normal distribution. Phi(-a) = exp(-a^2/2) M(a), and (a + c) M(a) is a polynomial in
 * (a - c) / (a + c) = 1 - w (the Mills ratio is smooth on this map of [0, inf] to [-1, 1]). Answers Phi(-a) as (high + *low) * 2^n,
 * and exp(-a^2/2) itself as *gauss * 2^n. There are four factors in z Phi(z), each with its own rounding: all but `half` carry what
 * was rounded off along. */
#undef NORMAL_FAR
#define NORMAL_FAR CHOOSE(15, 40)
#undef NORMAL_SLOPE_FAR
#define NORMAL_SLOPE_FAR CHOOSE(11, 34) /* where the derivative is below exp(SLOPE_LOWEST) */
static inline ALWAYS_INLINE V FN(normal_tail)(V z, REAL far, int half, V *low, V *gauss, V *n) {
    const V centre = v_set1(MILLS_CENTRE), twice = v_set1(2 * MILLS_CENTRE), one_by_twice = v_set1(1 / (REAL)(2 * MILLS_CENTRE));
    const V a = v_min(v_set1(far), v_abs(z)), below = v_add(a, centre), w = v_quotient(twice, below);
    V square_low, gauss_low;
    const V square = v_product(a, a, &square_low), minus_half = v_set1((REAL)-0.5);
    *gauss = FN(exp_parts)(v_mul(minus_half, square), v_mul(minus_half, square_low), n, &gauss_low);
    const REAL coefficients[] = CHOOSE(MILLS_F32, MILLS_F64);
    const int terms = CHOOSE(MILLS_F32_TERMS, MILLS_F64_TERMS);
    V t = v_sub(v_set1(1), w), factor = v_mul(w, one_by_twice);
    if (half) {
        *low = v_set1(0);
        return v_mul(v_mul(*gauss, FN(polynomial)(t, coefficients, terms)), factor);
    }
    /* what the sum, the quotient and the difference lost */
    const V part = v_sub(below, centre), lost = v_add(v_sub(a, part), v_sub(centre, v_sub(below, part)));
    const V w_low = v_mul(v_fnma(w, lost, v_fnma(w, below, twice)), factor);
    const V t_low = v_sub(v_sub(v_sub(v_set1(1), t), w), w_low), factor_low = v_mul(w_low, one_by_twice);
    const V first = v_set1(coefficients[0]), rest = FN(polynomial)(v_add(t, t_low), coefficients + 1, terms - 1);
    const V mills = v_fma(t, rest, first), mills_low = v_fma(t_low, rest, v_fma(t, rest, v_sub(first, mills)));
    V product_low, high_low;
    const V product = v_product(*gauss, mills, &product_low);
    product_low = v_fma(*gauss, mills_low, v_fma(gauss_low, mills, product_low));
    const V high = v_product(product, factor, &high_low);
    *low = v_fma(product, factor_low, v_fma(product_low, factor, high_low));
    return high;
}
static inline ALWAYS_INLINE V FN(gelu_erf_forward)(V z, int half) {
    V low, gauss, n;
    const V high = FN(normal_tail)(z, NORMAL_FAR, half, &low, &gauss, &n), x = v_max(v_set1(-NORMAL_FAR), z);
    const V left = v_scale(v_fma(x, high, v_mul(x, low)), n);
    const V far = v_max(v_set1(CHOOSE(-60, -200)), n); /* beyond, the tail is nothing beside 1 */
    const V right = v_mul(z, v_sub(v_sub(v_set1(1), v_scale_normal(high, far)), v_scale_normal(low, far)));
    return v_select(v_gt(v_set1(0), z), left, right);
}
static inline ALWAYS_INLINE V FN(gelu_erf_derivative)(V z, int half) {
    (void)half;
    V low, gauss, n;
    const V scaled = FN(normal_tail)(z, NORMAL_SLOPE_FAR, 1, &low, &gauss, &n), tail = v_scale_normal(scaled, n);
    const V phi = v_mul(v_scale_normal(gauss, n), v_set1((REAL)0.39894228040143267794)); /* 1 / sqrt(2 pi) */
    const V distribution = v_select(v_gt(v_set1(0), z), tail, v_sub(v_set1(1), tail));
    const V slope = v_fma(FN(clamp)(z, -NORMAL_SLOPE_FAR, NORMAL_SLOPE_FAR), phi, distribution);
    return v_select(v_gt(v_set1(-NORMAL_SLOPE_FAR), z), v_set1(0), slope);
}

static inline ALWAYS_INLINE V FN(silu_forward)(V z, int half) {
    if (half) return FN(times_half_sigmoid)(z, v_mul(z, v_set1((REAL)-LOG2_E)));
    return FN(times_sigmoid)(z, z, v_set1(0));
}
static inline ALWAYS_INLINE V FN(silu_derivative)(V z, int half) {
    const V t = FN(clamp)(z, SLOPE_LOWEST, EXP_HIGHEST);
    if (half) return FN(half_slope)(v_mul(z, v_set1((REAL)-LOG2_E)), t);
    V complement;
    const V w = FN(sigmoid_both)(t, &complement);
    return v_select(v_gt(v_set1(SLOPE_LOWEST), z), v_set1(0), v_fma(v_mul(w, complement), t, w));
}

static inline ALWAYS_INLINE V FN(sigmoid_forward)(V z, int half) {
    (void)half;
    V n;
    const V q = FN(sigmoid_parts)(FN(clamp)(z, EXP_LOWEST, EXP_HIGHEST), v_set1(0), &n);
    return v_scale(q, n);
}
static inline ALWAYS_INLINE V FN(sigmoid_derivative)(V out, int half) { (void)half; return v_mul(out, v_sub(v_set1(1), out)); }

/* A polynomial where 1 - exp(-2|z|) would cancel, 1 - 2 / (exp(2|z|) + 1) beyond. */
static inline ALWAYS_INLINE V FN(tanh_forward)(V z, int half) {
    (void)half;
    const V a = v_abs(z), square = v_mul(z, z);
    const V near = v_fma(v_mul(z, square), POLYNOMIAL(square, TANH_REST), z);
    V n;
    const V p = FN(exp_parts)(v_min(v_set1(EXP_HIGHEST), v_add(a, a)), v_set1(0), &n, NULL);
    const V far = v_sub(v_set1(1), v_quotient(v_set1(2), v_add(v_scale_normal(p, n), v_set1(1))));
    return v_select(v_gt(a, v_set1((REAL)0.625)), v_copysign(far, z), near);
}
static inline ALWAYS_INLINE V FN(tanh_derivative)(V out, int half) { (void)half; return v_mul(v_sub(v_set1(1), out), v_add(v_set1(1), out)); }

/* With a constant id these fold to the one function. */
static inline ALWAYS_INLINE V FN(activation_forward)(int id, V z, int half) {
#define FGE_FORWARD_CASE(name, kind) \
    case FGE_##name: return FN(name##_forward)(z, half);
    switch (id) { FGE_ACTIVATIONS(FGE_FORWARD_CASE) }
#undef FGE_FORWARD_CASE
    return z;
}
static inline ALWAYS_INLINE V FN(activation_derivative)(int id, V state, int half) {
#define FGE_DERIVATIVE_CASE(name, kind) \
    case FGE_##name: return FN(name##_derivative)(state, half);
    switch (id) { FGE_ACTIVATIONS(FGE_DERIVATIVE_CASE) }
#undef FGE_DERIVATIVE_CASE
    return v_set1(1);
}
#endif
