/* What this CPU has, which engine and instruction set serve a product, and why. */
#ifndef FGE_DISPATCH_H
#define FGE_DISPATCH_H
#include "engine.h"

typedef struct {
    int64_t l1, l2, l3; /* bytes of data cache of one core (l3: shared) */
} fge_caches;
fge_caches fge_cache_sizes(void);

typedef struct {
    const fge_engine *engine;
    const fge_kernels *kernels;
} fge_choice;
/* 0 where FGE_ENGINE or FGE_ISA ask for what can't run here. */
int fge_choose(const fge_gemm *gemm, fge_choice *choice);

/* For the bindings: forcing a path and telling what there is. Unknown or unavailable names answer 0; "auto" ends forcing. */
int fge_force_engine(const char *name);
int fge_force_isa(const char *name);
const char *fge_forced_engine(void);
const char *fge_forced_isa(void);
int fge_isa_count(void);
const char *fge_isa_name(int i);
const char *fge_isa_missing(int i); /* NULL: this CPU can run it; otherwise what it lacks */
/* Which engine and kernels serve large products of this dtype now, and why. */
void fge_explain(int dtype, const char **engine, const char **isa, const char **why);
const fge_kernels *fge_kernels_now(void);
#endif
