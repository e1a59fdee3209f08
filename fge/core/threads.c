/* A small pool of threads. It exists beside OpenMP because a team of OpenMP's aborts the process where a thread can't be
 * created, hangs in a forked child, and spins long after the call against the threads of other libraries; ours does
 * with fewer threads, starts anew after fork and sleeps after SPIN_NANOSECONDS. */
#define _GNU_SOURCE
#include "threads.h"
#include "float_environment.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPIN_NANOSECONDS = 30000, WORKER_STACK = 512 * 1024, KEPT_BUFFERS = 64 };

/* --- number of threads ------------------------------------------------------------------------------------------- */

static atomic_int default_threads = 1, chosen_threads = 0;
static _Thread_local int threads_of_caller = 0;

static int bounded(int n) { return n < 1 ? 1 : n > FGE_MAX_THREADS ? FGE_MAX_THREADS : n; }

int fge_get_num_threads(void) {
    if (threads_of_caller > 0) return threads_of_caller;
    const int chosen = atomic_load(&chosen_threads);
    return chosen > 0 ? chosen : atomic_load(&default_threads);
}
void fge_set_num_threads(int n) { atomic_store(&chosen_threads, n <= 0 ? 0 : bounded(n)); }
void fge_threads_default(int n) { atomic_store(&default_threads, bounded(n)); }
int fge_threads_of_caller(int n) {
    const int before = threads_of_caller;
    threads_of_caller = n <= 0 ? 0 : bounded(n);
    return before;
}

/* --- scratch ----------------------------------------------------------------------------------------------------- */

/* In front of each buffer, so that giving back needs no look-up. */
typedef struct {
    size_t bytes;
    char pad[64 - sizeof(size_t)];
} buffer_head;

static pthread_mutex_t buffers_lock = PTHREAD_MUTEX_INITIALIZER;
static void *kept[KEPT_BUFFERS];
static int kept_count = 0;

static buffer_head *head_of(void *buffer) { return (buffer_head *)((char *)buffer - sizeof(buffer_head)); }

static void *take_buffer(size_t bytes) {
    void *buffer = NULL, *too_small = NULL;
    pthread_mutex_lock(&buffers_lock);
    for (int i = kept_count - 1; i >= 0; i--)
        if (head_of(kept[i])->bytes >= bytes) {
            buffer = kept[i];
            kept[i] = kept[--kept_count];
            break;
        }
    if (!buffer && kept_count) too_small = kept[--kept_count]; /* one buffer per thread is kept, of the largest size seen */
    pthread_mutex_unlock(&buffers_lock);
    if (too_small) free(head_of(too_small));
    if (buffer) return buffer;
    void *block = NULL;
    if (bytes > SIZE_MAX / 2 || posix_memalign(&block, 64, bytes + sizeof(buffer_head)) != 0) return NULL;
    ((buffer_head *)block)->bytes = bytes;
    return (char *)block + sizeof(buffer_head);
}
static void give_buffer(void *buffer) {
    if (!buffer) return;
    pthread_mutex_lock(&buffers_lock);
    const int keep = kept_count < KEPT_BUFFERS && head_of(buffer)->bytes <= ((size_t)16 << 20);
    if (keep) kept[kept_count++] = buffer;
    pthread_mutex_unlock(&buffers_lock);
    if (!keep) free(head_of(buffer));
}

fge_status fge_workspace_take(fge_workspace *w, int threads, size_t bytes_of_thread, size_t bytes_shared) {
    w->threads = 0;
    w->shared = NULL;
    threads = bounded(threads);
    for (; w->threads < threads; w->threads++) {
        void *buffer = take_buffer(bytes_of_thread);
        if (!buffer) break;
        w->of_thread[w->threads] = buffer;
    }
    if (w->threads > 0 && bytes_shared) w->shared = take_buffer(bytes_shared);
    if (w->threads > 0 && (w->shared || !bytes_shared)) return FGE_OK;
    fge_workspace_give_back(w);
    return FGE_NO_MEMORY;
}
void fge_workspace_give_back(fge_workspace *w) {
    for (int i = 0; i < w->threads; i++) give_buffer(w->of_thread[i]);
    give_buffer(w->shared);
    w->threads = 0;
    w->shared = NULL;
}

/* --- the pool ---------------------------------------------------------------------------------------------------- */

typedef struct {
    void (*task)(void *, int64_t, void *);
    void *context;
    int64_t count;
    const fge_workspace *workspace;
    atomic_llong next;  /* first task not yet taken */
    atomic_int seats;   /* of_thread[seats] is the next free scratch */
    atomic_int working; /* pool threads inside the job */
} job;

static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER; /* held by the caller whose job the pool runs */
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pool_wake = PTHREAD_COND_INITIALIZER;
static int pool_threads = 0;
static int pool_open_seats = 0;
static job *pool_job = NULL;
static atomic_uint pool_posted = 0; /* changes with every job, for those who spin */
static atomic_int forked = 0;
static fge_gomp_parallel shared_parallel = NULL;

static void work(job *j) {
    const int seat = atomic_fetch_add(&j->seats, 1);
    if (seat >= j->workspace->threads) return;
    const fge_float_environment before = fge_float_enter();
    for (int64_t i; (i = atomic_fetch_add(&j->next, 1)) < j->count;) j->task(j->context, i, j->workspace->of_thread[seat]);
    fge_float_leave(before);
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *worker(void *unused) {
    (void)unused;
    unsigned seen = 0;
    for (;;) {
        const int64_t until = nanoseconds() + SPIN_NANOSECONDS;
        while (atomic_load_explicit(&pool_posted, memory_order_acquire) == seen && nanoseconds() < until)
            for (int i = 0; i < 16; i++) relax();
        pthread_mutex_lock(&pool_lock);
        while (!pool_job || pool_open_seats == 0 || atomic_load(&pool_posted) == seen) pthread_cond_wait(&pool_wake, &pool_lock);
        seen = atomic_load(&pool_posted);
        job *mine = pool_job;
        pool_open_seats--;
        atomic_fetch_add(&mine->working, 1);
        pthread_mutex_unlock(&pool_lock);
        work(mine);
        atomic_fetch_sub_explicit(&mine->working, 1, memory_order_release);
    }
    return NULL;
}

static void after_fork_in_child(void) {
    owner = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool_wake = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    buffers_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    kept_count = 0; /* another thread may have been changing the list; the buffers stay behind */
    pool_threads = 0;
    pool_open_seats = 0;
    pool_job = NULL;
    atomic_store(&forked, 1);
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

/* With pool_lock held. Does with fewer where the system refuses a thread. */
static void grow_pool(int threads) {
    pthread_attr_t attributes;
    if (pool_threads >= threads || pthread_attr_init(&attributes) != 0) return;
    pthread_attr_setstacksize(&attributes, WORKER_STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (pool_threads < threads) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, worker, NULL) != 0) break;
        pool_threads++;
    }
    pthread_attr_destroy(&attributes);
}

static void gomp_body(void *data) { work((job *)data); }

static int share_openmp(void) { return shared_parallel && !atomic_load(&forked); }

void fge_threads_share(fge_gomp_parallel parallel) { shared_parallel = parallel; }
const char *fge_threads_kind(void) { return share_openmp() ? "the loaded OpenMP runtime" : "pool"; }

void fge_run(int64_t count, const fge_workspace *w, void (*task)(void *, int64_t, void *), void *context) {
    job j = {.task = task, .context = context, .count = count, .workspace = w};
    const int threads = w->threads < count ? w->threads : (int)count;
    if (threads > 1 && share_openmp()) {
        shared_parallel(gomp_body, &j, (unsigned)threads, 0);
        return;
    }
    /* a pool that is busy with another caller's job leaves this caller to its own thread */
    if (threads <= 1 || pthread_mutex_trylock(&owner) != 0) {
        work(&j);
        return;
    }
    pthread_mutex_lock(&pool_lock);
    grow_pool(threads - 1);
    pool_job = &j;
    pool_open_seats = threads - 1 < pool_threads ? threads - 1 : pool_threads;
    atomic_fetch_add_explicit(&pool_posted, 1, memory_order_release);
    if (pool_open_seats == 1) pthread_cond_signal(&pool_wake);
    else pthread_cond_broadcast(&pool_wake);
    pthread_mutex_unlock(&pool_lock);
    work(&j);
    pthread_mutex_lock(&pool_lock);
    pool_job = NULL;
    pool_open_seats = 0;
    pthread_mutex_unlock(&pool_lock);
    for (int turns = 0; atomic_load_explicit(&j.working, memory_order_acquire) > 0; turns++) {
        relax();
        if (turns > 1000) sched_yield();
    }
    pthread_mutex_unlock(&owner);
}
