/* Threads of our own and the scratch memory they work in. */
#ifndef FGE_THREADS_H
#define FGE_THREADS_H
#include <stddef.h>
#include <stdint.h>
#include "fge.h"

enum { FGE_MAX_THREADS = 256 };

/* Memory for one call: taken before anything is written, given back after. Kept between calls, so that a loop of calls
 * doesn't pay for fresh pages each time. */
typedef struct {
    int threads;
    void *of_thread[FGE_MAX_THREADS];
    void *shared;
} fge_workspace;

/* Room for up to `threads` threads, at least one; fewer where memory is short. Buffers are aligned to 64 bytes. */
fge_status fge_workspace_take(fge_workspace *w, int threads, size_t bytes_of_thread, size_t bytes_shared);
void fge_workspace_give_back(fge_workspace *w);

/* Calls task(context, i, scratch) once for each i below `count`, in any order, on up to w->threads threads of which the
 * caller is one. Which thread runs which task is left to chance: a task's result must not depend on it. */
void fge_run(int64_t count, const fge_workspace *w, void (*task)(void *context, int64_t i, void *scratch), void *context);

/* What serves fge_run: "pool" or the OpenMP runtime that fge_threads_share was given. */
const char *fge_threads_kind(void);
/* Run on the team of an OpenMP runtime that is already loaded (its GOMP_parallel), so that its idle threads and ours
 * are the same threads; NULL: back to our own. Not used in a forked child, where such a team no longer exists. */
typedef void (*fge_gomp_parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
void fge_threads_share(fge_gomp_parallel parallel);

/* The number for this Python (or other) thread alone; 0: that of fge_set_num_threads. Answers the one before. */
int fge_threads_of_caller(int n);
void fge_threads_default(int n); /* what 0 in fge_set_num_threads means */
#endif
