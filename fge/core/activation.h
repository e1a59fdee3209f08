/* Every activation: its name, what its reserve keeps, its forward and its derivative. The only file that knows one.
 *
 * To add one: a line in FGE_ACTIVATIONS, NAME_forward and NAME_derivative below, and an entry in the test table
 * (tests/activation_table.py). p are its numbers, where it takes some.
 *
 *   NAME_forward(z, half, p)    half: the result is about to be rounded to a half type, so that float32's last bits don't count
 *   NAME_derivative(s, half, p) act'(z) from what the reserve keeps: s is z or out. For RESERVE_BITS there are instead
 *     NAME_bit(z, p)              where the bit is set
 *     NAME_masked(g, bit, p)      g * act'(z): g where it is, another multiple of g where it isn't
 *
 * Limits at +-inf hold without a NaN from inf * 0, and NaN passes through, because arguments are clamped to where the
 * function is already at its limit (v_max and v_min keep a NaN in their second operand).
 */
#ifndef FGE_ACTIVATION_LIST
#define FGE_ACTIVATION_LIST
#include "coefficients.h"
#include "fge.h"

/* name, reserve, then for those that take numbers: how many, what they are called, what the name alone stands for. Two numbers
 * are a lower and an upper bound. */
#define FGE_ACTIVATIONS(X) \
    X(none, FGE_RESERVE_NONE, 0, "", 0, 0) \
    X(relu, FGE_RESERVE_BITS, 0, "", 0, 0) \
    X(gelu, FGE_RESERVE_Z, 0, "", 0, 0) \
    X(gelu_erf, FGE_RESERVE_Z, 0, "", 0, 0) \
    X(silu, FGE_RESERVE_Z, 0, "", 0, 0) \
    X(sigmoid, FGE_RESERVE_OUT, 0, "", 0, 0) \
    X(tanh, FGE_RESERVE_OUT, 0, "", 0, 0) \
    X(leaky_relu, FGE_RESERVE_BITS, 1, "(alpha)", 0.01, 0) \
    X(relu6, FGE_RESERVE_BITS, 0, "", 0, 0) \
    X(clamp, FGE_RESERVE_BITS, 2, "(lo, hi)", -1, 1) \
    X(sqrelu, FGE_RESERVE_Z, 0, "", 0, 0) \
    X(hardswish, FGE_RESERVE_Z, 0, "", 0, 0)

#define FGE_ACTIVATION_ID(name, kind, ...) FGE_##name,
enum { FGE_ACTIVATIONS(FGE_ACTIVATION_ID) FGE_ACTIVATION_COUNT };
#undef FGE_ACTIVATION_ID

#define FGE_ACTIVATION_KIND(name, kind, ...) id == FGE_##name ? kind:
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
#define POLYNOMIAL(x, NAME) \
    FN(polynomial)(x, (const REAL[])CHOOSE(NAME##_F32, NAME##_F64), CHOOSE(NAME##_F32_TERMS, NAME##_F64_TERMS))

#undef LOG2_E
#undef LOG2_E_REST
#define LOG2_E CHOOSE(1.44269502f, 1.4426950408889634)
#define LOG2_E_REST CHOOSE(1.92596303e-8f, 2.0355273740931033e-17)
static inline ALWAYS_INLINE V FN(clamp)(V t, REAL low, REAL high) { return v_max(v_set1(low), v_min(v_set1(high), t)); }

/* 2^(high + *low) = p * 2^n, p in about [0.7, 1.42]; returns p. Where an error of the exponent doesn't count, low may be NULL. */
static inline ALWAYS_INLINE V FN(exp2_parts)(V high, const V *low, V *n) {
    *n = v_round(high);
    V f = v_sub(high, *n);
    if (low) f = v_add(f, *low);
    return v_fma(f, POLYNOMIAL(f, EXP2_REST), v_set1(1));
}
/* factor * t as a sum of two; factor_rest is what the constant lost to rounding */
static inline ALWAYS_INLINE V FN(times_constant)(V t, REAL factor, REAL factor_rest, V *low) {
    const V high = v_product(v_set1(factor), t, low);
    *low = v_fma(v_set1(factor_rest), t, *low);
    return high;
}

/* The sigmoid as a function of u = -t log2(e): w = 1 / (1 + 2^u). Up to EXP2_HIGHEST its power of two is an ordinary number, and
 * the complement 1 - w = *power * w is exact where it is small. */
#undef HIGHEST
#define HIGHEST CHOOSE(0x1.fffffep127f, 0x1.fffffffffffffp1023)
#undef EXP2_HIGHEST
#define EXP2_HIGHEST CHOOSE(100, 900)
static inline ALWAYS_INLINE V FN(sigmoid_of_normal)(V u, const V *low, V *power) {
    V n;
    const V p = FN(exp2_parts)(v_max(v_set1(CHOOSE(-60, -200)), u), low, &n); /* 1 is the result below */
    *power = v_scale_normal(p, n);
    return v_reciprocal(v_add(v_set1(1), *power));
}
/* z * w where u is above EXP2_HIGHEST: w is 2^-u there, below the normal range perhaps, so that z goes in before that. Seldom
 * called, and apart, so that the registers are left to what is computed all the time. */
static __attribute__((noinline, cold)) V FN(times_far_sigmoid)(V z, V u, V low) {
    V n;
    const V x = v_sub(v_set1(0), v_min(v_set1(CHOOSE(245, 1155)), u)), x_low = v_sub(v_set1(0), low); /* the result is 0 beyond */
    const V p = FN(exp2_parts)(x, &x_low, &n);
    return v_scale(v_mul(v_max(v_set1(-1000), z), p), n);
}
/* z * w for any u, where z falls as u grows */
static inline ALWAYS_INLINE V FN(times_sigmoid)(V z, V u, const V *low) {
    V power;
    const V product = v_mul(z, FN(sigmoid_of_normal)(u, low, &power));
    const VM far = v_gt(u, v_set1(EXP2_HIGHEST));
    if (__builtin_expect(!v_any(far), 1)) return product;
    return v_select(far, FN(times_far_sigmoid)(z, u, low ? *low : v_set1(0)), product);
}
/* (z w)' = w + w (1 - w) z t', slope = z t'. Below SLOPE_LOWEST (of t) it is taken for 0: its products would soon leave the
 * normal range, where x86 is slow. */
#undef SLOPE_LOWEST
#define SLOPE_LOWEST CHOOSE(-60.0f, -600.0)
static inline ALWAYS_INLINE V FN(times_sigmoid_slope)(V u, V slope) {
    V power;
    const V w = FN(sigmoid_of_normal)(v_min(v_set1(EXP2_HIGHEST), u), NULL, &power);
    const V sum = v_fma(v_mul(v_mul(w, power), w), slope, w);
    return v_select(v_gt(u, v_set1((REAL)(-SLOPE_LOWEST * LOG2_E))), v_set1(0), sum);
}

static inline ALWAYS_INLINE V FN(none_forward)(V z, int half, const REAL *p) { return z; }
static inline ALWAYS_INLINE V FN(none_derivative)(V z, int half, const REAL *p) { return v_set1(1); }

/* NaN > 0 is false: the bit is 0, but the value must stay NaN, so the comparison is 0 > z */
static inline ALWAYS_INLINE V FN(relu_forward)(V z, int half, const REAL *p) { return v_max(v_set1(0), z); }
static inline ALWAYS_INLINE VM FN(relu_bit)(V z, const REAL *p) { return v_gt(z, v_set1(0)); }
static inline ALWAYS_INLINE V FN(relu_masked)(V gradient, VM bit, const REAL *p) { return v_keep(bit, gradient); }

/* z where it is positive, alpha z elsewhere: the larger of the two unless alpha is over 1 */
static inline ALWAYS_INLINE V FN(leaky_relu_forward)(V z, int half, const REAL *p) {
    const V other = v_mul(v_set1(p[0]), z);
    return p[0] <= 1 ? v_max(other, z) : v_min(other, z);
}
static inline ALWAYS_INLINE VM FN(leaky_relu_bit)(V z, const REAL *p) { return v_gt(z, v_set1(0)); }
static inline ALWAYS_INLINE V FN(leaky_relu_masked)(V gradient, VM bit, const REAL *p) {
    return v_select(bit, gradient, v_mul(v_set1(p[0]), gradient));
}

/* min(max(z, lo), hi); its slope is 1 strictly between the two */
static inline ALWAYS_INLINE V FN(clamp_forward)(V z, int half, const REAL *p) { return FN(clamp)(z, p[0], p[1]); }
static inline ALWAYS_INLINE VM FN(between)(V z, REAL low, REAL high) {
    return v_both(v_gt(z, v_set1(low)), v_gt(v_set1(high), z));
}
static inline ALWAYS_INLINE VM FN(clamp_bit)(V z, const REAL *p) { return FN(between)(z, p[0], p[1]); }
static inline ALWAYS_INLINE V FN(clamp_masked)(V gradient, VM bit, const REAL *p) { return v_keep(bit, gradient); }

static inline ALWAYS_INLINE V FN(relu6_forward)(V z, int half, const REAL *p) { return FN(clamp)(z, 0, 6); }
static inline ALWAYS_INLINE VM FN(relu6_bit)(V z, const REAL *p) { return FN(between)(z, 0, 6); }
static inline ALWAYS_INLINE V FN(relu6_masked)(V gradient, VM bit, const REAL *p) { return v_keep(bit, gradient); }

/* max(z, 0)^2 (D. So et al., Primer, arXiv:2109.08668) */
static inline ALWAYS_INLINE V FN(sqrelu_forward)(V z, int half, const REAL *p) {
    const V positive = v_max(v_set1(0), z);
    return v_mul(positive, positive);
}
static inline ALWAYS_INLINE V FN(sqrelu_derivative)(V z, int half, const REAL *p) {
    const V positive = v_max(v_set1(0), z);
    return v_min(v_set1(HIGHEST), v_add(positive, positive)); /* finite for every finite z */
}

/* z min(max(z + 3, 0), 6) / 6 (A. Howard et al., MobileNetV3, arXiv:1905.02244). Where z + 3 is rounded it isn't small, so that
 * nothing cancels; a clamped z has no inf * 0 on the left, and on the right the factor is 6 and taken out before it could
 * overflow. */
static inline ALWAYS_INLINE V FN(hardswish_forward)(V z, int half, const REAL *p) {
    const V x = FN(clamp)(z, -3, 3);
    return v_select(v_gt(v_set1(3), z), v_mul(v_mul(x, v_add(x, v_set1(3))), v_set1((REAL)(1.0 / 6))), z);
}
static inline ALWAYS_INLINE V FN(hardswish_derivative)(V z, int half, const REAL *p) {
    const V slope = v_fma(z, v_set1((REAL)(1.0 / 3)), v_set1((REAL)0.5));
    return v_select(v_gt(v_set1(3), z), v_keep(v_gt(z, v_set1(-3)), slope), FN(clamp)(z, 1, 1)); /* 1, but NaN of NaN */
}

/* gelu, tanh form: 0.5 z (1 + tanh(t / 2)) = z / (1 + exp(-t)), t = 2 sqrt(2/pi) (z + 0.044715 z^3)
 * (D. Hendrycks, K. Gimpel, arXiv:1606.08415). The right-hand side doesn't cancel in the negative tail. There an error of
 * u = -t log2(e) is multiplied by |u|, up to 150 for float32, so u = z (GELU_A + GELU_B z^2) is kept as a sum of two. GELU_A is
 * in two parts, the first so short that GELU_A + GELU_B z^2, once rounded, gives back exactly what it had added to GELU_A. */
#undef GELU_A
#undef GELU_A_REST
#undef GELU_B
#undef GELU_B_REST
#define GELU_A CHOOSE(-2.30224609375f, -2.302208198147127404809)
#define GELU_A_REST CHOOSE(3.78956065e-5f, 2.8025156751033374e-12)
#define GELU_B CHOOSE(-0.102943242f, -0.1029432395800235)
#define GELU_B_REST CHOOSE(2.01619854e-9f, 5.978177400718744e-18)
#undef GELU_FAR
#define GELU_FAR 24 /* u is over 1000 here */
static inline ALWAYS_INLINE V FN(gelu_forward)(V z, int half, const REAL *p) {
    const V a = v_set1(GELU_A), b = v_set1(GELU_B);
    if (half) return FN(times_sigmoid)(z, v_mul(z, v_fma(v_mul(z, z), b, v_set1((REAL)(GELU_A + GELU_A_REST)))), NULL);
    const V x = FN(clamp)(z, -GELU_FAR, GELU_FAR);
    V square_low, low;
    const V square = v_product(x, x, &square_low), sum = v_fma(b, square, a);
    V sum_low = v_residue(b, square, v_sub(a, sum));
    sum_low = v_add(sum_low, v_fma(b, square_low, v_fma(v_set1(GELU_B_REST), square, v_set1(GELU_A_REST))));
    const V u = v_product(x, sum, &low);
    low = v_fma(x, sum_low, low);
    return FN(times_sigmoid)(z, u, &low);
}
static inline ALWAYS_INLINE V FN(gelu_derivative)(V z, int half, const REAL *p) {
    const V a = v_set1((REAL)(GELU_A + GELU_A_REST)), x = FN(clamp)(z, -GELU_FAR, GELU_FAR), square = v_mul(x, x);
    const V minus_ln2 = v_set1((REAL)-0.69314718055994530942);
    const V slope = v_mul(v_mul(x, minus_ln2), v_fma(square, v_set1(3 * GELU_B), a));
    return FN(times_sigmoid_slope)(v_mul(x, v_fma(square, v_set1(GELU_B), a)), slope);
}

/* gelu_erf: z Phi(z), Phi the normal distribution. Phi(-a) = exp(-a^2/2) M(a), and (a + c) M(a) is a polynomial in
 * (a - c) / (a + c) = 1 - w (the Mills ratio is smooth on this map of [0, inf] to [-1, 1]). */
#undef NORMAL_EXP
#undef NORMAL_EXP_REST
#define NORMAL_EXP (-LOG2_E / 2)
#define NORMAL_EXP_REST (-LOG2_E_REST / 2)
/* Up to NORMAL_NEAR everything is in the normal range, and the derivative is below exp(SLOPE_LOWEST) beyond. */
#undef NORMAL_NEAR
#define NORMAL_NEAR CHOOSE(11, 34)
/* Phi(-a), and exp(-a^2/2) itself, within a few units of the last place for small a */
static inline ALWAYS_INLINE V FN(normal_tail_near)(V a, V *gauss) {
    const V w = v_mul(v_set1(2 * MILLS_CENTRE), v_reciprocal(v_add(a, v_set1(MILLS_CENTRE))));
    V low, n;
    const V high = FN(times_constant)(v_mul(a, a), NORMAL_EXP, NORMAL_EXP_REST, &low);
    const V p = FN(exp2_parts)(high, &low, &n);
    *gauss = v_scale_normal(p, n);
    const V mills = v_mul(w, v_set1(1 / (REAL)(2 * MILLS_CENTRE)));
    return v_mul(*gauss, v_mul(mills, POLYNOMIAL(v_sub(v_set1(1), w), MILLS)));
}
/* Phi(-|z|) as (high + *low) * 2^n. There are four factors in z Phi(z), each with its own rounding: all carry what was rounded
 * off along. */
#undef NORMAL_FAR
#define NORMAL_FAR CHOOSE(15, 40)
static inline ALWAYS_INLINE V FN(normal_tail)(V z, V *low, V *n) {
    const V one = v_set1(1), centre = v_set1(MILLS_CENTRE), twice = v_set1(2 * MILLS_CENTRE),
            one_by_twice = v_set1(1 / (REAL)(2 * MILLS_CENTRE));
    const V a = v_min(v_set1(NORMAL_FAR), v_abs(z)), below = v_add(a, centre), w = v_quotient(twice, below);
    V square_low, exponent_low;
    const V square = v_product(a, a, &square_low);
    const V exponent = FN(times_constant)(square, NORMAL_EXP, NORMAL_EXP_REST, &exponent_low);
    *n = v_round(exponent);
    const V f = v_add(v_sub(exponent, *n), v_fma(v_set1(NORMAL_EXP), square_low, exponent_low));
    const V beyond_one = POLYNOMIAL(f, EXP2_REST), gauss = v_fma(f, beyond_one, one);
    const V gauss_low = v_residue(f, beyond_one, v_sub(one, gauss));
    const REAL coefficients[] = CHOOSE(MILLS_F32, MILLS_F64);
    const int terms = CHOOSE(MILLS_F32_TERMS, MILLS_F64_TERMS);
    const V t = v_sub(one, w), factor = v_mul(w, one_by_twice);
    /* what the sum, the quotient and the difference lost */
    const V part = v_sub(below, centre), lost = v_add(v_sub(a, part), v_sub(centre, v_sub(below, part)));
    const V w_low = v_mul(v_fnma(w, lost, v_fnma(w, below, twice)), factor);
    const V t_low = v_sub(v_sub(v_sub(one, t), w), w_low), factor_low = v_mul(w_low, one_by_twice);
    const V first = v_set1(coefficients[0]), rest = FN(polynomial)(v_add(t, t_low), coefficients + 1, terms - 1);
    const V mills = v_fma(t, rest, first), mills_low = v_fma(t_low, rest, v_fma(t, rest, v_sub(first, mills)));
    V product_low, high_low;
    const V product = v_product(gauss, mills, &product_low);
    product_low = v_fma(gauss, mills_low, v_fma(gauss_low, mills, product_low));
    const V high = v_product(product, factor, &high_low);
    *low = v_fma(product, factor_low, v_fma(product_low, factor, high_low));
    return high;
}
static inline ALWAYS_INLINE V FN(gelu_erf_forward)(V z, int half, const REAL *p) {
    V low, n, gauss;
    if (half && __builtin_expect(!v_any(v_gt(v_set1(-NORMAL_NEAR), z)), 1)) {
        const V a = v_min(v_set1(NORMAL_NEAR), v_abs(z));
        return v_fnma(a, FN(normal_tail_near)(a, &gauss), v_max(v_set1(0), z));
    }
    const V high = FN(normal_tail)(z, &low, &n), x = v_max(v_set1(-NORMAL_FAR), z);
    const V left = v_scale(v_fma(x, high, v_mul(x, low)), n);
    const V far = v_max(v_set1(CHOOSE(-60, -200)), n); /* beyond, the tail is nothing beside 1 */
    const V right = v_mul(z, v_sub(v_sub(v_set1(1), v_scale_normal(high, far)), v_scale_normal(low, far)));
    return v_select(v_gt(v_set1(0), z), left, right);
}
static inline ALWAYS_INLINE V FN(gelu_erf_derivative)(V z, int half, const REAL *p) {
    V gauss;
    const V tail = FN(normal_tail_near)(v_min(v_set1(NORMAL_NEAR), v_abs(z)), &gauss);
    const V phi = v_mul(gauss, v_set1((REAL)0.39894228040143267794)); /* 1 / sqrt(2 pi) */
    const V distribution = v_select(v_gt(v_set1(0), z), tail, v_sub(v_set1(1), tail));
    const V slope = v_fma(FN(clamp)(z, -NORMAL_NEAR, NORMAL_NEAR), phi, distribution);
    return v_select(v_gt(v_set1(-NORMAL_NEAR), z), v_set1(0), slope);
}

/* Beyond these the sigmoid is 0 or 1 to the last bit of every type. */
#undef SIGMOID_LOWEST
#undef SIGMOID_HIGHEST
#define SIGMOID_LOWEST CHOOSE(-170.0f, -800.0)
#define SIGMOID_HIGHEST 80
static inline ALWAYS_INLINE V FN(sigmoid_times)(V factor, V z, int half) {
    if (half) return FN(times_sigmoid)(factor, v_mul(z, v_set1(-LOG2_E)), NULL);
    V low;
    const V u = FN(times_constant)(FN(clamp)(z, SIGMOID_LOWEST, SIGMOID_HIGHEST), -LOG2_E, -LOG2_E_REST, &low);
    return FN(times_sigmoid)(factor, u, &low);
}
static inline ALWAYS_INLINE V FN(silu_forward)(V z, int half, const REAL *p) { return FN(sigmoid_times)(z, z, half); }
static inline ALWAYS_INLINE V FN(silu_derivative)(V z, int half, const REAL *p) {
    const V t = FN(clamp)(z, SIGMOID_LOWEST, SIGMOID_HIGHEST);
    return FN(times_sigmoid_slope)(v_mul(t, v_set1(-LOG2_E)), t);
}

static inline ALWAYS_INLINE V FN(sigmoid_forward)(V z, int half, const REAL *p) { return FN(sigmoid_times)(v_set1(1), z, half); }
static inline ALWAYS_INLINE V FN(sigmoid_derivative)(V out, int half, const REAL *p) { return v_mul(out, v_sub(v_set1(1), out)); }

/* A polynomial where 1 - exp(-2|z|) would cancel, 1 - 2 / (exp(2|z|) + 1) beyond. */
static inline ALWAYS_INLINE V FN(tanh_forward)(V z, int half, const REAL *p) {
    const V a = v_abs(z), square = v_mul(z, z);
    const V near = v_fma(v_mul(z, square), POLYNOMIAL(square, TANH_REST), z);
    V power;
    const V w = FN(sigmoid_of_normal)(v_mul(v_min(v_set1(30), a), v_set1(2 * LOG2_E)), NULL, &power);
    return v_select(v_gt(a, v_set1((REAL)0.625)), v_copysign(v_fnma(v_set1(2), w, v_set1(1)), z), near);
}
static inline ALWAYS_INLINE V FN(tanh_derivative)(V out, int half, const REAL *p) {
    return v_mul(v_sub(v_set1(1), out), v_add(v_set1(1), out));
}

/* With a constant id these fold to the one function. */
#undef IF_BITS
#define IF_BITS(kind, value, otherwise) CONCATENATE(IF, kind)(value, otherwise)
#ifndef IF_FGE_RESERVE_BITS
#define IF_FGE_RESERVE_BITS(value, otherwise) value
#define IF_FGE_RESERVE_NONE(value, otherwise) otherwise
#define IF_FGE_RESERVE_Z(value, otherwise) otherwise
#define IF_FGE_RESERVE_OUT(value, otherwise) otherwise
#endif
static inline ALWAYS_INLINE V FN(activation_forward)(int id, V z, int half, const REAL *p) {
#define FGE_FORWARD_CASE(name, kind, ...) \
    case FGE_##name: return FN(name##_forward)(z, half, p);
    switch (id) { FGE_ACTIVATIONS(FGE_FORWARD_CASE) }
#undef FGE_FORWARD_CASE
    return z;
}
static inline ALWAYS_INLINE V FN(activation_derivative)(int id, V state, int half, const REAL *p) {
#define FGE_DERIVATIVE_CASE(name, kind, ...) \
    case FGE_##name: return IF_BITS(kind, v_set1(1), FN(name##_derivative)(state, half, p));
    switch (id) { FGE_ACTIVATIONS(FGE_DERIVATIVE_CASE) }
#undef FGE_DERIVATIVE_CASE
    return v_set1(1);
}
/* for those that reserve bits */
static inline ALWAYS_INLINE VM FN(activation_bit)(int id, V z, const REAL *p) {
#define FGE_BIT_CASE(name, kind, ...) \
    case FGE_##name: return IF_BITS(kind, FN(name##_bit)(z, p), v_gt(z, v_set1(0)));
    switch (id) { FGE_ACTIVATIONS(FGE_BIT_CASE) }
#undef FGE_BIT_CASE
    return v_gt(z, v_set1(0));
}
static inline ALWAYS_INLINE V FN(activation_masked)(int id, V gradient, VM bit, const REAL *p) {
#define FGE_MASKED_CASE(name, kind, ...) \
    case FGE_##name: return IF_BITS(kind, FN(name##_masked)(gradient, bit, p), gradient);
    switch (id) { FGE_ACTIVATIONS(FGE_MASKED_CASE) }
#undef FGE_MASKED_CASE
    return gradient;
}
#endif
