"""Builds the extensions. Metadata is in pyproject.toml.

Kernels are compiled once per instruction set, each with the flags of its own; which one runs is chosen at run time, so
that a wheel serves every CPU of its platform.
"""

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CORE = "fge/core"
COMMON = [
    "threads",
    "gemm",
    "vector",
    "engine_native",
    "engine_blas",
    "blas",
    "dispatch",
    "activation",
    "call",
    "elementwise",
    "glu",
    "operator",
]
X86 = platform.machine().lower() in ("x86_64", "amd64")
ISA_FLAGS = {"kernels_portable": []}
if X86:
    ISA_FLAGS["kernels_avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    ISA_FLAGS["kernels_avx512"] = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"]
    ISA_FLAGS["kernels_avx512_bf16"] = ISA_FLAGS["kernels_avx512"] + ["-mavx512bf16"]
    ISA_FLAGS["pairs_avx512"] = ISA_FLAGS["kernels_avx512"] + ["-mavx512bf16"]
    ISA_FLAGS["pairs_amx"] = ISA_FLAGS["pairs_avx512"] + ["-mamx-tile", "-mamx-bf16"]
# contraction of a * b + c is written out where it is wanted: error-free products rely on the rest staying apart
C_FLAGS = [
    "-std=gnu11",
    "-O3",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
]
DEBUG_FLAGS = os.environ.get("FGE_CFLAGS", "").split()


class BuildWithIsas(build_ext):
    """Adds objects that are compiled with flags of their own to the extension that holds the core."""

    def compile_for_isa(self, source):
        return self.compiler.compile(
            [f"{CORE}/{source}.c"],
            output_dir=self.build_temp,
            extra_preargs=C_FLAGS + ISA_FLAGS[source] + DEBUG_FLAGS,
            depends=[os.path.join(CORE, name) for name in os.listdir(CORE)],
        )

    def build_extension(self, ext):
        if ext.name == "fge._kernels":
            with ThreadPoolExecutor() as pool:  # each waits for a compiler
                for objects in pool.map(self.compile_for_isa, ISA_FLAGS):
                    ext.extra_objects += objects
        super().build_extension(ext)


def extension(name, sources, more_flags=()):
    return Extension(
        name,
        sources,
        include_dirs=[numpy.get_include(), "fge"],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=C_FLAGS + list(more_flags) + DEBUG_FLAGS,
        extra_link_args=(["-lpthread"] if sys.platform != "win32" else []) + DEBUG_FLAGS,
        depends=[os.path.join(CORE, name) for name in os.listdir(CORE)],
    )


extensions = [
    extension("fge._kernels", ["fge/_kernels.pyx"] + [f"{CORE}/{name}.c" for name in COMMON]),
    extension("fge._blas", ["fge/_blas.pyx"]),
    # Paddle's C++ exceptions unwind through this extension's frames
    extension("fge._paddle", ["fge/_paddle.pyx"], more_flags=["-fexceptions"]),
    extension("fge._torch", ["fge/_torch.pyx"]),
]

setup(
    ext_modules=cythonize(extensions, compiler_directives={"language_level": "3"}),
    cmdclass={"build_ext": BuildWithIsas},
)
