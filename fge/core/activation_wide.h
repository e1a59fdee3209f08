/* Every activation once more, on two vectors at a time. One vector's chain of dependent operations is longer than what the CPU
 * looks ahead over; two chains side by side keep its units busy. Included once per REAL after simd.h and activation.h: WIDE is a
 * pair of V, activation.h is read again with V and its operations meaning pairs, and FN(x_wide) is the function x on WIDE. */
#undef WIDE
#undef WIDE_MASK
#define WIDE CONCATENATE(pair, REAL_SUFFIX)
#define WIDE_MASK CONCATENATE(pair_of_masks, REAL_SUFFIX)
typedef struct {
    V of[2];
} WIDE;
typedef struct {
    VM of[2];
} WIDE_MASK;

#define FGE_WIDE_FUNCTION(type) static inline ALWAYS_INLINE type
#define FGE_WIDE_1(op) \
    FGE_WIDE_FUNCTION(WIDE) FN(wide_##op)(WIDE a) { return (WIDE){{v_##op(a.of[0]), v_##op(a.of[1])}}; }
#define FGE_WIDE_2(op) \
    FGE_WIDE_FUNCTION(WIDE) FN(wide_##op)(WIDE a, WIDE b) { return (WIDE){{v_##op(a.of[0], b.of[0]), v_##op(a.of[1], b.of[1])}}; }
#define FGE_WIDE_3(op) \
    FGE_WIDE_FUNCTION(WIDE) FN(wide_##op)(WIDE a, WIDE b, WIDE c) { \
        return (WIDE){{v_##op(a.of[0], b.of[0], c.of[0]), v_##op(a.of[1], b.of[1], c.of[1])}}; \
    }
// clang-format off
FGE_WIDE_1(round) FGE_WIDE_1(abs) FGE_WIDE_1(reciprocal)
FGE_WIDE_2(add) FGE_WIDE_2(sub) FGE_WIDE_2(mul) FGE_WIDE_2(quotient) FGE_WIDE_2(max) FGE_WIDE_2(min) FGE_WIDE_2(copysign)
FGE_WIDE_2(scale_normal)
FGE_WIDE_3(fma) FGE_WIDE_3(fnma) FGE_WIDE_3(residue)
    // clang-format on
    FGE_WIDE_FUNCTION(WIDE) FN(wide_set1)(REAL x) {
    return (WIDE){{v_set1(x), v_set1(x)}};
}
FGE_WIDE_FUNCTION(WIDE_MASK) FN(wide_gt)(WIDE a, WIDE b) { return (WIDE_MASK){{v_gt(a.of[0], b.of[0]), v_gt(a.of[1], b.of[1])}}; }
FGE_WIDE_FUNCTION(WIDE) FN(wide_keep)(WIDE_MASK m, WIDE a) {
    return (WIDE){{v_keep(m.of[0], a.of[0]), v_keep(m.of[1], a.of[1])}};
}
FGE_WIDE_FUNCTION(WIDE) FN(wide_select)(WIDE_MASK m, WIDE a, WIDE b) {
    return (WIDE){{v_select(m.of[0], a.of[0], b.of[0]), v_select(m.of[1], a.of[1], b.of[1])}};
}
FGE_WIDE_FUNCTION(WIDE) FN(wide_product)(WIDE a, WIDE b, WIDE *rest) {
    return (WIDE){{v_product(a.of[0], b.of[0], &rest->of[0]), v_product(a.of[1], b.of[1], &rest->of[1])}};
}
FGE_WIDE_FUNCTION(WIDE) FN(wide_scale)(WIDE x, WIDE n) {
    const V limit = v_set1(FGE_NEAR_TINY);
    if (__builtin_expect(!(v_bits(v_gt(limit, n.of[0])) | v_bits(v_gt(limit, n.of[1]))), 1)) return FN(wide_scale_normal)(x, n);
    return (WIDE){{v_scale(x.of[0], n.of[0]), v_scale(x.of[1], n.of[1])}};
}
FGE_WIDE_FUNCTION(int) FN(wide_any)(WIDE_MASK m) { return (v_bits(m.of[0]) | v_bits(m.of[1])) != 0; }
FGE_WIDE_FUNCTION(WIDE_MASK) FN(wide_both)(WIDE_MASK m, WIDE_MASK o) {
    return (WIDE_MASK){{v_both(m.of[0], o.of[0]), v_both(m.of[1], o.of[1])}};
}
FGE_WIDE_FUNCTION(WIDE) FN(load_wide)(const REAL *from) { return (WIDE){{v_load(from), v_load(from + W)}}; }
#undef FGE_WIDE_1
#undef FGE_WIDE_2
#undef FGE_WIDE_3
#undef FGE_WIDE_FUNCTION

#pragma push_macro("V")
#undef V
#pragma push_macro("VM")
#undef VM
#pragma push_macro("v_set1")
#undef v_set1
#pragma push_macro("v_reciprocal")
#undef v_reciprocal
#pragma push_macro("v_any")
#undef v_any
#pragma push_macro("v_both")
#undef v_both
#pragma push_macro("v_add")
#undef v_add
#pragma push_macro("v_sub")
#undef v_sub
#pragma push_macro("v_mul")
#undef v_mul
#pragma push_macro("v_quotient")
#undef v_quotient
#pragma push_macro("v_fma")
#undef v_fma
#pragma push_macro("v_fnma")
#undef v_fnma
#pragma push_macro("v_max")
#undef v_max
#pragma push_macro("v_min")
#undef v_min
#pragma push_macro("v_gt")
#undef v_gt
#pragma push_macro("v_select")
#undef v_select
#pragma push_macro("v_round")
#undef v_round
#pragma push_macro("v_scale")
#undef v_scale
#pragma push_macro("v_scale_normal")
#undef v_scale_normal
#pragma push_macro("v_keep")
#undef v_keep
#pragma push_macro("v_abs")
#undef v_abs
#pragma push_macro("v_copysign")
#undef v_copysign
#pragma push_macro("v_residue")
#undef v_residue
#pragma push_macro("v_product")
#undef v_product
#pragma push_macro("FN")
#undef FN
#define V WIDE
#define VM WIDE_MASK
#define FN(name) CONCATENATE(name##_wide, REAL_SUFFIX)
#define v_set1(x) CONCATENATE(wide_set1, REAL_SUFFIX)(x)
#define v_add(a, b) CONCATENATE(wide_add, REAL_SUFFIX)(a, b)
#define v_sub(a, b) CONCATENATE(wide_sub, REAL_SUFFIX)(a, b)
#define v_mul(a, b) CONCATENATE(wide_mul, REAL_SUFFIX)(a, b)
#define v_quotient(a, b) CONCATENATE(wide_quotient, REAL_SUFFIX)(a, b)
#define v_fma(a, b, c) CONCATENATE(wide_fma, REAL_SUFFIX)(a, b, c)
#define v_fnma(a, b, c) CONCATENATE(wide_fnma, REAL_SUFFIX)(a, b, c)
#define v_max(a, b) CONCATENATE(wide_max, REAL_SUFFIX)(a, b)
#define v_min(a, b) CONCATENATE(wide_min, REAL_SUFFIX)(a, b)
#define v_gt(a, b) CONCATENATE(wide_gt, REAL_SUFFIX)(a, b)
#define v_select(m, a, b) CONCATENATE(wide_select, REAL_SUFFIX)(m, a, b)
#define v_round(a) CONCATENATE(wide_round, REAL_SUFFIX)(a)
#define v_scale(x, n) CONCATENATE(wide_scale, REAL_SUFFIX)(x, n)
#define v_scale_normal(x, n) CONCATENATE(wide_scale_normal, REAL_SUFFIX)(x, n)
#define v_keep(m, a) CONCATENATE(wide_keep, REAL_SUFFIX)(m, a)
#define v_abs(a) CONCATENATE(wide_abs, REAL_SUFFIX)(a)
#define v_copysign(a, s) CONCATENATE(wide_copysign, REAL_SUFFIX)(a, s)
#define v_residue(a, b, c) CONCATENATE(wide_residue, REAL_SUFFIX)(a, b, c)
#define v_product(a, b, rest) CONCATENATE(wide_product, REAL_SUFFIX)(a, b, rest)
#define v_reciprocal(a) CONCATENATE(wide_reciprocal, REAL_SUFFIX)(a)
#define v_both(m, o) CONCATENATE(wide_both, REAL_SUFFIX)(m, o)
#define v_any(m) CONCATENATE(wide_any, REAL_SUFFIX)(m)
#include "activation.h"
#undef v_any
#pragma pop_macro("v_any")
#undef v_both
#pragma pop_macro("v_both")
#undef v_reciprocal
#pragma pop_macro("v_reciprocal")
#undef V
#pragma pop_macro("V")
#undef VM
#pragma pop_macro("VM")
#undef v_set1
#pragma pop_macro("v_set1")
#undef v_add
#pragma pop_macro("v_add")
#undef v_sub
#pragma pop_macro("v_sub")
#undef v_mul
#pragma pop_macro("v_mul")
#undef v_quotient
#pragma pop_macro("v_quotient")
#undef v_fma
#pragma pop_macro("v_fma")
#undef v_fnma
#pragma pop_macro("v_fnma")
#undef v_max
#pragma pop_macro("v_max")
#undef v_min
#pragma pop_macro("v_min")
#undef v_gt
#pragma pop_macro("v_gt")
#undef v_select
#pragma pop_macro("v_select")
#undef v_round
#pragma pop_macro("v_round")
#undef v_scale
#pragma pop_macro("v_scale")
#undef v_scale_normal
#pragma pop_macro("v_scale_normal")
#undef v_keep
#pragma pop_macro("v_keep")
#undef v_abs
#pragma pop_macro("v_abs")
#undef v_copysign
#pragma pop_macro("v_copysign")
#undef v_residue
#pragma pop_macro("v_residue")
#undef v_product
#pragma pop_macro("v_product")
#undef FN
#pragma pop_macro("FN")
