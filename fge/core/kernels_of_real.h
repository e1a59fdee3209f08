/* The kernels of one accumulator type, REAL. Included twice by kernels.h. */
#include "simd.h"
#include "tile_sizes.h"
#include "activation.h"
#if FGE_WIDE
#include "activation_wide.h"
#endif
#include "convert.h"
#include "epilogue.h"
#include "operand.h"
#include "microkernel.h"

enum { FN(mr) = MR, FN(nr) = NR };

/* 12 independent chains, enough for the latency of any multiply-add unit; answers the operations done. */
static double FN(peak)(void) {
    enum { CHAINS = 12, TURNS = 100000 };
    V sums[CHAINS];
    const V factor = v_set1((REAL)0.999), term = v_set1((REAL)0.001);
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) sums[i] = v_set1((REAL)i);
    for (int turn = 0; turn < TURNS; turn++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) sums[i] = v_fma(sums[i], factor, term);
    V all = v_set1(0);
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) all = v_add(all, sums[i]);
    REAL parts[W];
    v_store(parts, all);
    static volatile REAL sink;
    sink = parts[0];
    (void)sink;
    return 2.0 * W * CHAINS * TURNS;
}
