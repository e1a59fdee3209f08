"""Whose threads a call runs on beside PyTorch: those of the OpenMP runtime that PyTorch uses, where that is safe.

PyTorch's idle threads spin for a while after each of its operators. On threads of our own a call would compete
with them for the processors; on the same ones it finds them awake.
"""

import ctypes
import os
import sys

import torch

from fge import _kernels

_PF_FORKNOEXEC = 0x40  # Linux: forked, and has not executed another program since


def share():
    """Run calls on PyTorch's OpenMP threads from now on, where that is safe; answers whether they do.

    After a fork it isn't: the threads stay behind in the parent, and GNU OpenMP waits for them for ever. The core
    sees to processes that fork after this call; those forked before are recognised here.
    """
    address = 0 if _forked() else _gomp_parallel()
    _kernels.share_openmp(address)
    return address != 0


def _forked():
    """Whether this process is a fork of another; also where that can't be known."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = (
                file.read().rpartition(b")")[2].split()
            )  # what precedes holds the name, with any characters
        return bool(int(fields[6]) & _PF_FORKNOEXEC)
    except (OSError, IndexError, ValueError):
        return True


def _gomp_parallel():
    """The address of GOMP_parallel in the runtime that PyTorch's kernels are bound to, or 0.

    The dynamic linker looks in the program's global scope first, then among the libraries that libtorch_cpu
    depends on. LLVM's and Intel's runtimes have that function too.
    """
    if sys.platform != "linux":
        return 0
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    for name in (None, library):
        try:
            function = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return ctypes.cast(function, ctypes.c_void_p).value
    return 0
