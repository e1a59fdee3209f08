# cython: language_level=3, freethreading_compatible=True
"""Hands the core the BLAS that scipy was built with, through scipy.linalg.cython_blas."""
from scipy.linalg.cython_blas cimport dgemm, sgemm

from scipy.linalg import cython_blas

from fge import _kernels


cdef extern from "core/blas.h":
    ctypedef struct fge_blas_routines:
        void *sgemm
        void *dgemm


cdef fge_blas_routines routines
routines.sgemm = <void *>sgemm
routines.dgemm = <void *>dgemm
_kernels.blas_use(<size_t>&routines, cython_blas.__file__)
