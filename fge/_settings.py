"""What a user sets and sees of the whole process: threads, engines, and `show_config`."""

import contextlib
import os
import platform
import sys
import warnings

from fge import _cpus, _kernels
from fge._version import __version__

ENGINES = ("native", "blas")


# --- threads ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def threads(n):
    """`with fge.threads(n):` calls from this Python thread use up to n threads. Nests; other Python threads are not
    affected. TypeError or ValueError for an n that isn't a positive int."""
    before = _kernels.threads_of_caller(n)
    try:
        yield
    finally:
        _kernels.restore_threads_of_caller(before)


def _environment_threads():
    """FGE_NUM_THREADS, then OMP_NUM_THREADS (whose first number counts), then the CPUs that the process may use."""
    for name in ("FGE_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").strip()
        if not text:
            continue
        first = text.split(",")[0].strip()
        if first.isdecimal() and int(first) > 0:
            return int(first), name
        if name == "FGE_NUM_THREADS":
            warnings.warn(
                f"FGE_NUM_THREADS is {text!r}, not a positive whole number; it is ignored",
                RuntimeWarning,
                stacklevel=2,
            )
    return _cpus.usable(), "CPUs that the process may use"


# --- engines ---------------------------------------------------------------------------------------------------------


def engines():
    """Names of the engines that can run here."""
    return ENGINES


def isas():
    """Names of the instruction sets that this CPU can run, the best first."""
    return tuple(name for name, missing in _kernels.isas() if missing is None)


def _check_name(name, source):
    if not isinstance(name, str):
        raise TypeError(f"{source} is {name!r}; it must be the name of one, as a str")


def _force_isa(name, source):
    _check_name(name, source)
    if not _kernels.force_isa(name):
        lacking = dict(_kernels.isas())
        if name in lacking:
            raise RuntimeError(
                f"{source} is {name!r}, but this CPU lacks {lacking[name]}; it has {', '.join(isas())}"
            )
        raise ValueError(f"{source} is {name!r}; it must be auto or one of {', '.join(lacking)}")


def _force_engine(name, source):
    _check_name(name, source)
    if not _kernels.force_engine(name):
        raise ValueError(f"{source} is {name!r}; it must be auto or one of {', '.join(ENGINES)}")


@contextlib.contextmanager
def engine(name):
    """`with fge.engine("blas"):` every call in the process runs on that engine ("auto" ends forcing)."""
    before = _kernels.forced()[0]
    _force_engine(name, "engine")
    try:
        yield
    finally:
        _kernels.force_engine(before)


@contextlib.contextmanager
def isa(name):
    """`with fge.isa("avx2"):` every call in the process uses the kernels of that instruction set."""
    before = _kernels.forced()[1]
    _force_isa(name, "isa")
    try:
        yield
    finally:
        _kernels.force_isa(before)


def engine_error():
    return f"no engine for FGE_ENGINE={_kernels.forced()[0]}, FGE_ISA={_kernels.forced()[1]}"


# --- what there is ---------------------------------------------------------------------------------------------------


def config():
    """What `show_config` prints, as a dict."""
    threading, blas = _kernels.blas_settle()
    forced_engine, forced_isa = _kernels.forced()
    return {
        "fge": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "instruction sets": {
            name: "yes" if missing is None else f"no: this CPU lacks {missing}"
            for name, missing in _kernels.isas()
        },
        "caches": _kernels.cache_sizes(),
        "forced": {"FGE_ENGINE": forced_engine, "FGE_ISA": forced_isa},
        "engines": {
            dtype: dict(zip(("engine", "isa", "why"), _kernels.explain(dtype)))
            for dtype in ("float32", "float64", "float16", "bfloat16")
        },
        "blas": {"library": blas or "unknown", "threads": threading},
        "threads": {
            "number": _kernels.get_num_threads(),
            "default from": _default_source,
            "run on": _kernels.threads_kind(),
        },
    }


def show_config(file=None):
    """Print the CPU's instruction sets, which engine serves each dtype and why, BLAS and its kernel, and the threads."""
    file = sys.stdout if file is None else file
    c = config()
    lines = [f"fge {c['fge']}, Python {c['python']}, {c['machine']}"]
    lines.append("instruction sets")
    lines += [f"  {name:11} {state}" for name, state in c["instruction sets"].items()]
    lines.append("caches      " + ", ".join(f"{name} {size >> 10} KiB" for name, size in c["caches"].items()))
    lines.append("forced      " + ", ".join(f"{name}={value}" for name, value in c["forced"].items()))
    lines.append(f"engines     {', '.join(ENGINES)}")
    lines += [f"  {dtype:9} {e['engine']} ({e['isa']}): {e['why']}" for dtype, e in c["engines"].items()]
    lines.append(f"BLAS        {c['blas']['library']}")
    lines.append(f"            {c['blas']['threads']}")
    t = c["threads"]
    lines.append(f"threads     {t['number']} (from {t['default from']}), run on {t['run on']}")
    print("\n".join(lines), file=file)


_default_number, _default_source = _environment_threads()
_kernels.set_default_threads(_default_number)
_force_engine(os.environ.get("FGE_ENGINE", "auto") or "auto", "FGE_ENGINE")
_force_isa(os.environ.get("FGE_ISA", "auto") or "auto", "FGE_ISA")
