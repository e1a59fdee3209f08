"""Threads, forks, limits and neighbours: each in a process of its own, which may not hang, abort or leak a setting.

The programs are in children.py; they check their results and raise, so that here only the exit code counts.
"""

import importlib.util
import platform
import shutil
import subprocess

import numpy as np
import pytest
from processes import run_child

import fge


@pytest.fixture(params=fge.engines())
def engine(request):
    """An environment that forces one engine in the child."""
    return {"FGE_ENGINE": request.param, "FGE_NUM_THREADS": "2"}


def importable(names):
    return pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in names.split(",")), reason=f"needs {names}"
    )


def orders(*names):
    """Import orders as parameters, skipped where a library isn't installed."""
    return [pytest.param(name, marks=importable(name)) for name in names]


@pytest.mark.parametrize("imports", orders("fge", "torch,fge", "fge,torch", "paddle,fge", "fge,paddle"))
def test_fork_after_use(imports, engine):
    run_child("fork_after_use", imports, env=engine)


@pytest.mark.parametrize("program", ("fork_before_use", "fork_from_a_thread"))
def test_forks_of_other_kinds(program, engine):
    run_child(program, env=engine)


@pytest.mark.parametrize("size", (512, 1))
def test_fork_while_others_call(size, engine):
    """In long calls, which multiply, and in short ones, which begin and end."""
    run_child("fork_while_others_call", size, env=engine)


@pytest.mark.parametrize("method", ("fork", "forkserver", "spawn"))
def test_multiprocessing(method, engine):
    run_child("multiprocessing_pool", method, env=engine)


def test_process_pool_executor(engine):
    run_child("process_pool_executor", env=engine)


@importable("torch")
def test_torch_data_loader(engine):
    run_child("torch_data_loader", env=engine)


@pytest.mark.parametrize("program", ("ends_right_after_a_call", "ends_while_threads_call"))
def test_the_interpreter_ends_cleanly(program, engine):
    """Exit code 0, and no complaint of a library on its way out."""
    assert run_child(program, env=engine).stderr == ""


@pytest.mark.parametrize("program", ("calls_at_exit", "calls_at_exit_only"))
def test_exit_handlers_may_call(program, engine):
    assert "checked at exit" in run_child(program, env=engine).stdout


def test_exit_codes_are_kept(engine):
    with pytest.raises(AssertionError, match="ended with 7"):
        run_child("exits_with", 7, env=engine)


def test_concurrent_callers(engine):
    run_child("concurrent_callers", env=engine)


def test_concurrent_settings(engine):
    run_child("concurrent_settings", env=engine)


def test_small_thread_stacks(engine):
    run_child("small_stacks", env=engine)


def test_more_threads_than_cpus(engine):
    run_child("many_more_threads_than_cpus", env=engine)


def test_calls_release_the_interpreter(engine):
    run_child("releases_the_interpreter", env=engine)


def test_interrupts_are_heard(engine):
    run_child("interrupted", env=engine)


@pytest.mark.parametrize("first_call", ("before", "after"))
def test_no_new_threads(first_call, engine):
    """The limit on processes is reached: fewer threads then, and the right result."""
    run_child("no_new_threads", first_call, env=engine)


@pytest.mark.parametrize("first_call", ("before", "after"))
@pytest.mark.parametrize("megabytes", (2, 40, 200))
def test_little_memory(first_call, megabytes, engine):
    """Allocations fail: MemoryError then, and the process lives on."""
    run_child("little_memory", first_call, megabytes, env=engine)


@pytest.mark.parametrize("imports", orders("torch,fge", "fge,torch", "paddle,fge", "fge,paddle"))
def test_alternating_with_another_library(imports, engine):
    run_child("alternates", imports, env=engine)


@pytest.mark.parametrize("other", orders("numpy", "torch"))
def test_settings_stay_apart(other, engine):
    run_child("settings_stay_apart", other, env=engine)


@pytest.mark.parametrize(
    "settings, expected",
    (
        ({"FGE_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"FGE_NUM_THREADS": "1", "OMP_NUM_THREADS": "3"}, 1),
        ({"FGE_NUM_THREADS": "3", "OMP_NUM_THREADS": "1"}, 3),
        ({"OMP_NUM_THREADS": "3,2"}, 3),
    ),
    ids=str,
)
def test_environment_sets_the_number_of_threads(settings, expected):
    run_child("default_threads", expected, env=settings)


@pytest.mark.parametrize("variable", ("FGE_NUM_THREADS", "OMP_NUM_THREADS"))
@pytest.mark.parametrize("value", ("", "0", "-1", "many", "1000000", "99999999999999999999"))
def test_odd_settings_do_no_harm(variable, value):
    run_child("survives_odd_settings", env={variable: value})


def test_affinity_limits_the_default():
    run_child("default_threads_on_one_cpu")


@pytest.mark.parametrize("version", ("v1", "v2"))
def test_quota_limits_the_default(version):
    prefix = ("unshare", "--map-root-user", "--mount")
    mountable = (
        shutil.which("unshare")
        and not subprocess.run(
            [*prefix, "mount", "-t", "tmpfs", "tmpfs", "/sys/fs/cgroup"], capture_output=True
        ).returncode
    )
    if not mountable:
        pytest.skip("needs a mount namespace")
    run_child("default_threads_with_a_quota", version, prefix=prefix)


def test_failing_calls_keep_no_references():
    run_child("failing_calls_keep_no_references")


def test_settings_survive_exceptions():
    before = fge.get_num_threads()
    with pytest.raises(ValueError), fge.threads(before + 1):
        assert fge.get_num_threads() == before + 1
        fge.fused_gemm_epilogue(*[np.ones((2, 3))] * 2)
    assert fge.get_num_threads() == before


def test_thread_contexts_nest():
    before = fge.get_num_threads()
    with fge.threads(3):
        with fge.threads(2):
            assert fge.get_num_threads() == 2
        assert fge.get_num_threads() == 3
    assert fge.get_num_threads() == before


def test_none_restores_the_default():
    before = fge.get_num_threads()
    fge.set_num_threads(before + 2)
    assert fge.get_num_threads() == before + 2
    fge.set_num_threads(None)
    assert fge.get_num_threads() == before


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="sets a register of x86-64")
def test_denormals_that_the_process_turned_off():
    run_child("denormals_that_the_process_turned_off")
