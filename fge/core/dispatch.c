#include "dispatch.h"
#include "blas.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#endif

/* --- the machine ------------------------------------------------------------------------------------------------- */

static int64_t cache_size(int name, int64_t otherwise) {
    const long bytes = sysconf(name);
    return bytes > 0 ? bytes : otherwise;
}
fge_caches fge_cache_sizes(void) {
    static fge_caches sizes;
    static atomic_int known = 0;
    if (!atomic_load_explicit(&known, memory_order_acquire)) {
        fge_caches found = {32 << 10, 512 << 10, 8 << 20}; /* where the system doesn't say */
#ifdef _SC_LEVEL1_DCACHE_SIZE
        found.l1 = cache_size(_SC_LEVEL1_DCACHE_SIZE, found.l1);
        found.l2 = cache_size(_SC_LEVEL2_CACHE_SIZE, found.l2);
        found.l3 = cache_size(_SC_LEVEL3_CACHE_SIZE, found.l3);
#endif
        sizes = found; /* racing callers write the same */
        atomic_store_explicit(&known, 1, memory_order_release);
    }
    return sizes;
}

#if defined(__x86_64__)
/* Linux gives a process the state of AMX tiles (18) when it asks (arch_prctl(2); Documentation/arch/x86/xstate.rst). */
static int amx_allowed(void) {
#if defined(__linux__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}
static const char *avx512_missing(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512f")) return "avx512f";
    if (!__builtin_cpu_supports("avx512bw")) return "avx512bw";
    if (!__builtin_cpu_supports("avx512dq")) return "avx512dq";
    if (!__builtin_cpu_supports("avx512vl")) return "avx512vl";
    return NULL;
}
static const char *avx512_bf16_missing(void) {
    if (avx512_missing()) return avx512_missing();
    return __builtin_cpu_supports("avx512bf16") ? NULL : "avx512_bf16";
}
static const char *amx_missing(void) {
    unsigned a, b, c, d;
    if (avx512_bf16_missing()) return avx512_bf16_missing();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & (1u << 24)) || !(d & (1u << 22))) return "amx_bf16";
    static atomic_int allowed = -1;
    if (atomic_load(&allowed) < 0) atomic_store(&allowed, amx_allowed());
    return atomic_load(&allowed) ? NULL : "the operating system's permission for AMX tiles";
}
static const char *avx2_missing(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2")) return "avx2";
    if (!__builtin_cpu_supports("fma")) return "fma";
    return NULL;
}
#endif
static const char *nothing_missing(void) { return NULL; }

typedef struct {
    const fge_kernels *kernels;
    const char *(*missing)(void);
} isa;
static const isa isas[] = {
/* the first that can run is the best */
#if defined(__x86_64__)
    {&fge_kernels_amx, amx_missing},          {&fge_kernels_avx512_bf16, avx512_bf16_missing},
    {&fge_kernels_avx512, avx512_missing},    {&fge_kernels_avx2, avx2_missing},
#endif
    {&fge_kernels_portable, nothing_missing},
};
enum { ISA_COUNT = sizeof isas / sizeof isas[0], AUTO = -1 };

int fge_isa_count(void) { return ISA_COUNT; }
const char *fge_isa_name(int i) { return isas[i].kernels->name; }
const char *fge_isa_missing(int i) { return isas[i].missing(); }

/* --- forcing ----------------------------------------------------------------------------------------------------- */

static const fge_engine *const engines[] = {&fge_engine_native, &fge_engine_blas};
enum { ENGINE_COUNT = sizeof engines / sizeof engines[0], BLAS = 1 };
static atomic_int forced_engine = AUTO, forced_isa = AUTO;

int fge_force_engine(const char *name) {
    int found = strcmp(name, "auto") == 0 ? AUTO : ENGINE_COUNT;
    for (int i = 0; i < ENGINE_COUNT; i++)
        if (strcmp(name, engines[i]->name) == 0) found = i;
    if (found == ENGINE_COUNT || (found == BLAS && !fge_blas_ready())) return 0;
    if (found == BLAS && fge_blas_enter(1)) fge_blas_leave(); /* settle now, see blas.c */
    atomic_store(&forced_engine, found);
    return 1;
}
int fge_force_isa(const char *name) {
    int found = strcmp(name, "auto") == 0 ? AUTO : ISA_COUNT;
    for (int i = 0; i < ISA_COUNT; i++)
        if (strcmp(name, fge_isa_name(i)) == 0 && !fge_isa_missing(i)) found = i;
    if (found == ISA_COUNT) return 0;
    atomic_store(&forced_isa, found);
    return 1;
}
const char *fge_forced_engine(void) {
    const int i = atomic_load(&forced_engine);
    return i == AUTO ? "auto" : engines[i]->name;
}
const char *fge_forced_isa(void) {
    const int i = atomic_load(&forced_isa);
    return i == AUTO ? "auto" : fge_isa_name(i);
}

/* --- choosing ---------------------------------------------------------------------------------------------------- */

const fge_kernels *fge_kernels_now(void) {
    static atomic_int best = AUTO;
    const int forced = atomic_load(&forced_isa);
    if (forced != AUTO) return isas[forced].kernels;
    int i = atomic_load(&best);
    if (i == AUTO) {
        for (i = 0; fge_isa_missing(i); i++) {}
        atomic_store(&best, i);
    }
    return isas[i].kernels;
}

static const fge_engine *engine_now(const fge_kernels *kernels, const char **why) {
    const int forced = atomic_load(&forced_engine);
    *why = "forced by FGE_ENGINE or fge.engine()";
    if (forced != AUTO) return engines[forced];
    if (kernels != &fge_kernels_portable) {
        *why = "micro-kernels of our own, epilogue on the tile in L1";
        return &fge_engine_native;
    }
    if (fge_blas_ready()) {
        *why = "no micro-kernels for this CPU's vector units: BLAS is faster than the portable ones";
        return &fge_engine_blas;
    }
    *why = "no BLAS: portable micro-kernels";
    return &fge_engine_native;
}

int fge_choose(const fge_gemm *gemm, fge_choice *choice) {
    (void)gemm;
    const char *why;
    choice->kernels = fge_kernels_now();
    choice->engine = engine_now(choice->kernels, &why);
    return 1;
}

void fge_explain(int dtype, const char **engine, const char **isa_name, const char **why) {
    const fge_kernels *kernels = fge_kernels_now();
    const fge_engine *chosen = engine_now(kernels, why);
    *engine = chosen->name;
    *isa_name = kernels->name;
    if (chosen != &fge_engine_native || atomic_load(&forced_engine) != AUTO || !fge_is_half(dtype)) return;
    const fge_pair_kernels *pairs = dtype == FGE_BFLOAT16 ? kernels->bf16 : kernels->f16;
    *why = pairs ? pairs->what : "widened to float32 while packed, micro-kernels of our own, epilogue on the tile in L1";
}
