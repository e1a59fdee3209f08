/* BLAS with one thread per call, while its own thread number stays what the rest of the process set it to.
 *
 * OpenBLAS built on its own threads has one thread number per process: changing it around our calls would race with
 * every other user of it (scikit-learn issue 31884). So on Linux the library is loaded a second time, from a copy in
 * memory, and the number of that private copy is set to 1 for good: its pool never wakes, its calls don't queue behind
 * one lock. MKL has a thread number per thread. Where neither is to be had the number is changed around our calls, under
 * a count, and fge_blas_threading says so. */
#define _GNU_SOURCE
#include "blas.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if !defined(_WIN32)
#include <dlfcn.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
/* The private copy's own symbols come first in it; AddressSanitizer can't be with a library loaded so. */
#if defined(__SANITIZE_ADDRESS__)
#define BIND_TO_ITSELF 0
#else
#define BIND_TO_ITSELF RTLD_DEEPBIND
#endif
#endif

fge_blas_routines fge_blas;
static char linked_with[4096];
static int given = 0;

static const char *threading = "not used yet";
static char description[256];

/* Thread numbers of the loaded library, where they have to be changed around calls. */
static int (*get_threads)(void);
static void (*set_threads)(int);
static int (*set_threads_local)(int); /* MKL: of the calling thread; answers the one before */
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static int inside = 0, threads_before = 0;
static int left_by_fork = 0; /* this process was forked inside others' calls: the number is still theirs */

void fge_blas_use(const fge_blas_routines *routines, const char *library) {
    fge_blas = *routines;
    snprintf(linked_with, sizeof linked_with, "%s", library ? library : "");
    given = 1;
}
int fge_blas_ready(void) { return given; }

/* Names differ by who built the library: scipy's wheels prefix them. */
static void *symbol(void *library, const char *name) {
    char prefixed[64];
    snprintf(prefixed, sizeof prefixed, "scipy_%s", name);
    void *found = dlsym(library, prefixed);
    return found ? found : dlsym(library, name);
}

static int routines_from(void *library, fge_blas_routines *r) {
    *(void **)&r->sgemm = symbol(library, "sgemm_");
    *(void **)&r->dgemm = symbol(library, "dgemm_");
    return r->sgemm && r->dgemm;
}

/* OpenBLAS's own, see room_for. */
static void *(*take_work_buffer)(int);
static void (*give_work_buffer)(void *);
static void work_buffers_of(void *library) {
    *(void **)&take_work_buffer = symbol(library, "blas_memory_alloc");
    *(void **)&give_work_buffer = symbol(library, "blas_memory_free");
}

static void describe(void *library) {
    const char *(*config)(void), *(*core)(void);
    *(void **)&config = symbol(library, "openblas_get_config");
    *(void **)&core = symbol(library, "openblas_get_corename");
    if (config) snprintf(description, sizeof description, "%s (kernel %s)", config(), core ? core() : "unknown");
}

#if defined(__linux__)
#define THREADS_VARIABLE "OPENBLAS_NUM_THREADS"
/* The file `path` loaded once more, apart from the one in use; NULL where that fails. */
static void *load_private(const char *path) {
    void *library = NULL;
    struct stat status;
    const int from = open(path, O_RDONLY | O_CLOEXEC);
    const int copy = memfd_create("fge-blas", MFD_CLOEXEC);
    if (from >= 0 && copy >= 0 && fstat(from, &status) == 0) {
        off_t at = 0;
        while (at < status.st_size && sendfile(copy, from, &at, (size_t)(status.st_size - at)) > 0) {}
        if (at == status.st_size) {
            char name[64], before[64];
            snprintf(name, sizeof name, "/proc/self/fd/%d", copy);
            /* OpenBLAS starts its threads while it is loaded, and ends the process where it can't: let there be none.
             * Changing the environment is safe where nothing else reads it meanwhile, which nobody can promise: it happens
             * once, where the engine is forced, or else in the first call that needs BLAS. */
            const char *set = getenv(THREADS_VARIABLE);
            snprintf(before, sizeof before, "%s", set ? set : "");
            setenv(THREADS_VARIABLE, "1", 1);
            library = dlopen(name, RTLD_NOW | RTLD_LOCAL | BIND_TO_ITSELF);
            if (set) setenv(THREADS_VARIABLE, before, 1);
            else unsetenv(THREADS_VARIABLE);
        }
    }
    if (from >= 0) close(from);
    if (copy >= 0) close(copy);
    return library;
}
#endif

static void settle(void) {
#if !defined(_WIN32)
    void *user = linked_with[0] ? dlopen(linked_with, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *routine = user ? symbol(user, "sgemm_") : NULL;
    if (!routine) {
        threading = "its own choice: the library behind scipy.linalg.cython_blas was not found";
        return;
    }
    describe(user);
    *(void **)&set_threads_local = dlsym(user, "MKL_Set_Num_Threads_Local");
    if (set_threads_local) {
        threading = "one thread per call (MKL's thread-local number)";
        return;
    }
    void (*set)(int);
    *(void **)&set = symbol(user, "openblas_set_num_threads");
    *(void **)&get_threads = symbol(user, "openblas_get_num_threads");
    if (!set || !get_threads) {
        threading = "its own choice: neither OpenBLAS nor MKL";
        return;
    }
#if defined(__linux__)
    Dl_info where;
    if (dladdr(routine, &where) && where.dli_fname) {
        void *copy = load_private(where.dli_fname);
        void (*set_of_copy)(int) = NULL;
        if (copy) *(void **)&set_of_copy = symbol(copy, "openblas_set_num_threads");
        fge_blas_routines of_copy;
        if (set_of_copy && routines_from(copy, &of_copy)) {
            set_of_copy(1);
            work_buffers_of(copy);
            fge_blas = of_copy;
            threading = "one thread per call (a private copy of OpenBLAS; the process's own is left alone)";
            return;
        }
    }
#endif
    set_threads = set;
    work_buffers_of(user);
    threading = "one thread per call (OpenBLAS's number is 1 for the whole process during calls)";
#endif
}

static pthread_once_t settled = PTHREAD_ONCE_INIT;

/* OpenBLAS takes a work buffer per thread when it first needs one, and tries for ever where it gets none. So those of `threads`
 * threads are taken and given back here, which it keeps for later, once a probe has shown that there is room. A library without
 * these functions is only probed. */
enum { WORK_BUFFER = 40 << 20, MOST_BUFFERS = 64 };
static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;

static int room_for(int threads) {
    static int known_threads = 0;
    pthread_mutex_lock(&taking);
    const int more = threads - known_threads;
    void *probe = more > 0 ? malloc((size_t)WORK_BUFFER * (size_t)more) : NULL;
    free(probe);
    if (probe && take_work_buffer && give_work_buffer && threads <= MOST_BUFFERS) {
        void *buffers[MOST_BUFFERS];
        for (int i = 0; i < threads; i++) buffers[i] = take_work_buffer(0);
        for (int i = 0; i < threads; i++) give_work_buffer(buffers[i]);
        known_threads = threads;
    }
    pthread_mutex_unlock(&taking);
    return more <= 0 || probe;
}

int fge_blas_enter(int threads) {
    pthread_once(&settled, settle);
    if (!room_for(threads)) return 0;
    if (!set_threads) return 1;
    pthread_mutex_lock(&guard);
    if (inside++ == 0) {
        if (!left_by_fork) threads_before = get_threads();
        left_by_fork = 0;
        set_threads(1);
    }
    pthread_mutex_unlock(&guard);
    return 1;
}
void fge_blas_leave(void) {
    if (!set_threads) return;
    pthread_mutex_lock(&guard);
    if (--inside == 0) set_threads(threads_before);
    pthread_mutex_unlock(&guard);
}

/* The threads that held these locks at the fork aren't in the child. */
static void after_fork_in_child(void) {
    taking = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    guard = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    left_by_fork = left_by_fork || inside > 0;
    inside = 0;
}
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

int fge_blas_enter_thread(void) { return set_threads_local ? set_threads_local(1) : 0; }
void fge_blas_leave_thread(int before) {
    if (set_threads_local) set_threads_local(before);
}

const char *fge_blas_threading(void) { return threading; }
const char *fge_blas_description(void) { return description[0] ? description : NULL; }
