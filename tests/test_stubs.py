"""The type stubs agree with the modules in names, parameters and defaults, and satisfy a strict user of mypy."""

import ast
import importlib
import inspect
import os
import pathlib
import subprocess
import sys

import pytest

import fge

PACKAGE = pathlib.Path(fge.__file__).parent
STUBS = sorted(PACKAGE.glob("*.pyi"))
# What Cython adds to every module that it compiles.
ALLOWED = r"fge\.\w+\.__(pyx_capi|reduce_cython|setstate_cython|test)__"

USER = """
import io
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fge

Array = NDArray[np.float32]

x: Array = np.ones((8, 4), np.float32)
y: Array = np.ones((4, 128), np.float32)
bias: Array = np.ones(128, np.float32)
out: Array
reserve: NDArray[Any] | None
out, reserve = fge.fused_gemm_epilogue(x, y, bias, False, False, "relu", save_reserve=True, out=None)
gradients: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
gradients = fge.fused_gemm_epilogue_grad(x, y, reserve, out, activation="relu")
some: tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None]
some = fge.fused_gemm_epilogue_grad(x, y, reserve, out, activation="relu", needs=(False, True, True))

names: tuple[str, ...] = fge.activations() + fge.engines() + fge.isas()
kind: str = fge.reserve_kind("relu")
shape: tuple[int, int] = fge.relu_bits_shape(8, 128)
count: int = fge.get_num_threads()
fge.set_num_threads(count)
fge.set_num_threads(None)
scopes: list[AbstractContextManager[None]] = [fge.threads(2), fge.engine("blas"), fge.isa("portable")]
with fge.threads(2):
    fge.show_config(io.StringIO())
settings: dict[str, Any] = fge.config()
mask: NDArray[np.bool_] = fge.unpack_relu_bits(np.zeros((8, 16), np.uint8), 128)
words: NDArray[np.uint16] = fge.bfloat16_to_uint16(fge.bfloat16_from_uint16(np.zeros(3, np.uint16)))
version: str = fge.__version__
"""

# Each line is wrong, and must be refused.
MISUSES = """
fge.fused_gemm_epilogue([[1.0]], y)
fge.fused_gemm_epilogue(x, y, activation=None)
fge.fused_gemm_epilogue(x, y, bias, False, False, "relu", True)
fge.fused_gemm_epilogue_grad(x, y, out_grad=out)
fge.set_num_threads("2")
fge.threads()
"""


def stubbed(path):
    """name -> the signatures that a stub gives it; overloads give several."""
    functions = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(node.args)
    return functions


def public_callables(module):
    # torch.compile adds functions of its own to a module it traced, under names no source can hold
    public = {
        name: value
        for name, value in vars(module).items()
        if name.isidentifier() and not name.startswith("_") and callable(value)
    }
    return [name for name, value in public.items() if getattr(value, "__module__", None) == module.__name__]


def parameters_of_stub(arguments):
    """(name, kind, default) of each parameter, the default as an expression or None."""
    positional = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    result = [(a.arg, "POSITIONAL_OR_KEYWORD", d) for a, d in zip(positional, defaults)]
    result += [(a.arg, "KEYWORD_ONLY", d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    return [(name, kind, d and ast.literal_eval(d)) for name, kind, d in result]


def parameters_at_run_time(function):
    empty = inspect.Parameter.empty
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind.name, None if p.default is empty else p.default) for p in parameters]


@pytest.mark.parametrize("path", STUBS, ids=lambda path: path.stem)
def test_names_and_parameters(path):
    module = importlib.import_module(f"fge.{path.stem}")
    functions = stubbed(path)
    assert sorted(public_callables(module)) == sorted(functions)
    for name, overloads in functions.items():
        actual = parameters_at_run_time(getattr(module, name))
        if len(overloads) == 1:
            assert parameters_of_stub(overloads[0]) == actual, name
            continue
        for arguments in overloads:  # each leaves out some parameters, or their defaults
            order = [parameter for parameter, _, _ in actual]
            kinds = {parameter: kind for parameter, kind, _ in actual}
            stated = parameters_of_stub(arguments)
            assert [p for p, _, _ in stated] == [p for p in order if p in [q for q, _, _ in stated]], name
            assert all(kinds[parameter] == kind for parameter, kind, _ in stated), name


def test_every_compiled_module_and_public_function_has_a_stub():
    stubs = {path.stem for path in STUBS}
    assert {"_kernels", "_blas"} <= stubs
    for name in fge.__all__:
        value = getattr(fge, name)
        if callable(value):
            module = value.__module__.rpartition(".")[2]
            assert name in stubbed(PACKAGE / f"{module}.pyi"), name


def test_the_package_is_marked_as_typed():
    assert (PACKAGE / "py.typed").exists()


def run_mypy(tmp_path, *arguments):
    """Away from the tree, so that fge is found as an installed package is, and no cache is left in it."""
    pytest.importorskip("mypy")
    paths = {"PYTHONPATH": str(PACKAGE.parent), "MYPYPATH": "", "MYPY_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", *arguments]
    environment = {**os.environ, **paths}
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


def test_a_strict_user_passes(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    done = run_mypy(tmp_path, "mypy", "--strict", "user.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_misuse_is_refused(tmp_path):
    (tmp_path / "user.py").write_text(USER + MISUSES)
    done = run_mypy(tmp_path, "mypy", "--strict", "user.py")
    first = USER.count("\n") + 2
    wrong = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert wrong == set(range(first, first + MISUSES.strip().count("\n") + 1)), done.stdout


def test_stubtest_agrees(tmp_path):
    (tmp_path / "allowed").write_text(ALLOWED)
    options = ("--allowlist", "allowed", "--ignore-unused-allowlist")
    done = run_mypy(tmp_path, "mypy.stubtest", *options, *(f"fge.{path.stem}" for path in STUBS))
    assert done.returncode == 0, done.stdout + done.stderr
