/* All kernels of one instruction set. Included by kernels_*.c, which name the set (FGE_ISA_*) and the table to define
 * (FGE_KERNELS, FGE_KERNELS_NAME), and are compiled with the flags of that set. */
#include <string.h>
#include <time.h>

#include "activation.h"
#include "half.h"
#include "problem.h"
#if defined(FGE_ISA_AVX512) || defined(FGE_ISA_AVX2)
#include <immintrin.h>
#endif

/* two vectors side by side in the epilogue, see activation_wide.h */
#if defined(FGE_ISA_AVX512) || defined(FGE_ISA_AVX2)
#define FGE_WIDE 1
#else
#define FGE_WIDE 0
#endif

#define ALWAYS_INLINE __attribute__((always_inline))
#define CONCATENATE_(a, b) a##_##b
#define CONCATENATE(a, b) CONCATENATE_(a, b)
#define FN(name) CONCATENATE(name, REAL_SUFFIX)

#define REAL float
#define REAL_IS_F32 1
#define REAL_SUFFIX f32
#define REAL_DTYPE FGE_FLOAT32
#include "kernels_of_real.h"
#undef REAL
#undef REAL_IS_F32
#undef REAL_SUFFIX
#undef REAL_DTYPE

#define REAL double
#define REAL_IS_F32 0
#define REAL_SUFFIX f64
#define REAL_DTYPE FGE_FLOAT64
#include "kernels_of_real.h"
#undef REAL
#undef REAL_IS_F32
#undef REAL_SUFFIX
#undef REAL_DTYPE

/* Multiply-adds on registers alone, for `seconds`: what the micro-kernel could reach. */
static double measure_peak(int is_f32, double seconds) {
    struct timespec start, now;
    double done = 0, elapsed;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        done += is_f32 ? peak_f32() : peak_f64();
        clock_gettime(CLOCK_MONOTONIC, &now);
        elapsed = (double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec);
    } while (elapsed < seconds);
    return done / elapsed;
}

static void convert(const void *from, int from_dtype, void *to, int to_dtype, int64_t count) {
    fge_operand row = {.data = from, .rows = 1, .cols = count, .row_stride = count, .col_stride = 1, .dtype = from_dtype};
    fge_epilogue store = {.out = to, .out_stride = count, .out_dtype = to_dtype, .q = count};
    float block[1024];
    for (int64_t j = 0; j < count; j += 1024) {
        const int64_t n = fge_min(1024, count - j);
        read_f32(&row, 0, 1, j, n, block, 1024, FGE_FLOAT32, NULL);
        epilogue_f32(&store, block, 1024, 1, n, 0, j);
    }
}

#define FGE_KERNELS_FIELDS \
    .f32 = {mr_f32,         nr_f32,     sizeof(float),     FGE_FLOAT32,       epilogue_f32, read_f32, \
            pack_a_f32,     pack_b_f32, pack_a_across_f32, pack_b_across_f32, tile_f32,     vector_stream_f32, \
            vector_dots_f32}, \
    .f64 = {mr_f64,         nr_f64,     sizeof(double),    FGE_FLOAT64,       epilogue_f64, read_f64, \
            pack_a_f64,     pack_b_f64, pack_a_across_f64, pack_b_across_f64, tile_f64,     vector_stream_f64, \
            vector_dots_f64}, \
    .peak = measure_peak, .convert = convert

#if !defined(FGE_KERNELS_PAIRS)
#define FGE_KERNELS_PAIRS .bf16 = NULL
#endif
const fge_kernels FGE_KERNELS = {.name = FGE_KERNELS_NAME, FGE_KERNELS_FIELDS, FGE_KERNELS_PAIRS};
