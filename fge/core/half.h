/* float16 and bfloat16 to float and back, rounding to nearest even, one element at a time: the fallback behind the
 * vector conversions in convert.h and the remainder of their loops. Layouts are those of IEEE 754 binary16 and of the
 * upper half of binary32. */
#ifndef FGE_HALF_H
#define FGE_HALF_H
#include <stdint.h>
#include <string.h>

static inline float fge_float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline uint32_t fge_bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static inline float fge_widen_bf16(uint16_t h) { return fge_float_of((uint32_t)h << 16); }

static inline uint16_t fge_round_bf16(float f) {
    const uint32_t bits = fge_bits_of(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40); /* NaN: quiet, payload's top kept */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float fge_widen_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31) return fge_float_of(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0));
    if (exponent) return fge_float_of(sign | (exponent + 112) << 23 | fraction << 13);
    const float small = (float)fraction * 0x1p-24f; /* zero and denormals, exactly */
    return fge_float_of(sign | fge_bits_of(small));
}

static inline uint16_t fge_round_f16(float f) {
    const uint32_t bits = fge_bits_of(f), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff));
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* 65520 and up */
    if (size < 0x38800000u) /* below 2^-14: adding 0.5 lines the float's last bit up with 2^-24 and rounds there */
        return (uint16_t)(sign | (fge_bits_of(fge_float_of(size) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (size - 0x38000000u + 0xfff + (size >> 13 & 1)) >> 13);
}
#endif
