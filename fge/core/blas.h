/* The BLAS behind engine "blas": its routines, and how each call of ours stays on the calling thread. */
#ifndef FGE_BLAS_H
#define FGE_BLAS_H

/* Fortran interface, 32-bit integers. */
typedef struct {
    void (*sgemm)(char *, char *, int *, int *, int *, float *, float *, int *, float *, int *, float *, float *, int *);
    void (*dgemm)(char *, char *, int *, int *, int *, double *, double *, int *, double *, int *, double *, double *, int *);
} fge_blas_routines;
extern fge_blas_routines fge_blas;

/* The routines of a BLAS that is loaded already, and the path of a library that is linked with it (or NULL). */
void fge_blas_use(const fge_blas_routines *routines, const char *linked_with);
int fge_blas_ready(void);
/* Around the products of one call on up to `threads` threads; 0 where there is no memory for it. The first one settles how
 * BLAS is kept to one thread. */
int fge_blas_enter(int threads);
void fge_blas_leave(void);
/* Around each task, on the thread that runs it: leave takes what enter answered. */
int fge_blas_enter_thread(void);
void fge_blas_leave_thread(int before);
/* How that was settled, as words for show_config, and the library's own description of itself (may be NULL). */
const char *fge_blas_threading(void);
const char *fge_blas_description(void);
#endif
