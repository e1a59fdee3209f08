/* Rounding to nearest and denormals kept, whatever the process has set: a library that was linked with -ffast-math turns
 * denormals off in the thread that loads it, and only there. */
#ifndef FGE_FLOAT_ENVIRONMENT_H
#define FGE_FLOAT_ENVIRONMENT_H
#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned fge_float_environment;
enum { FGE_FLOAT_FLAGS = 0x3F, FGE_FLOAT_DEFAULT = 0x1F80 };

static inline fge_float_environment fge_float_enter(void) {
    const unsigned before = _mm_getcsr();
    if ((before & ~FGE_FLOAT_FLAGS) != FGE_FLOAT_DEFAULT) _mm_setcsr(FGE_FLOAT_DEFAULT);
    return before;
}
static inline void fge_float_leave(fge_float_environment before) {
    if ((before & ~FGE_FLOAT_FLAGS) != FGE_FLOAT_DEFAULT) _mm_setcsr(before);
}

#elif defined(__aarch64__)
typedef uint64_t fge_float_environment;

static inline fge_float_environment fge_float_enter(void) {
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    if (before) __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return before;
}
static inline void fge_float_leave(fge_float_environment before) {
    if (before) __asm__ volatile("msr fpcr, %0" : : "r"(before));
}

#else
typedef int fge_float_environment;
static inline fge_float_environment fge_float_enter(void) { return 0; }
static inline void fge_float_leave(fge_float_environment before) { (void)before; }
#endif
#endif
