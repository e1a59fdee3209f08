"""`fge.torch` in processes: memory, threads, forks, DataLoader workers, training on two processes, import order.

The programs are in torch_children.py; they check their results and raise, so that here only the exit code counts.
"""

import concurrent.futures
import importlib.util
import os
import sys

import processes
import pytest


def run(program, *arguments):
    pytest.importorskip("torch")
    processes.run_python("-W", "ignore", processes.TESTS / "torch_children.py", program, *arguments)


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")


@linux
@pytest.mark.parametrize("program", ("operands_are_not_copied", "reserve_is_all_that_is_saved"))
def test_memory(program):
    run(program)


def test_concurrent_callers():
    run("concurrent_callers")


@linux
@pytest.mark.parametrize("when", ("at once", "late"))
def test_same_threads_as_torch(when):
    run("same_threads_as_torch", when)


@forks
@pytest.mark.parametrize("program", ("fork_after_use", "data_loader"))
def test_forks(program):
    run(program)


@pytest.mark.parametrize("program", ("data_parallel", "tensor_parallel", "sharded_operands"))
def test_two_processes_have_the_gradients_of_one(program, tmp_path):
    torch = pytest.importorskip("torch")
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("no gloo in this build of PyTorch")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: run(program, rank, tmp_path / "rendezvous"), range(2)))


# fge.torch imports both others
@pytest.mark.parametrize(
    "order", (("fge.torch",), ("fge", "torch", "fge.torch"), ("torch", "fge", "fge.torch")), ids=" ".join
)
def test_import_order(order):
    run("import_order", *order)


@pytest.mark.parametrize("order", (("paddle", "fge.torch"), ("fge.torch", "paddle")), ids=" ".join)
def test_import_order_beside_paddle(order):
    if importlib.util.find_spec("paddle") is None:
        pytest.skip("paddle isn't installed")
    run("import_order", *order)


def test_fge_alone_needs_no_torch():
    processes.run_python("-c", "import sys, fge\nassert 'torch' not in sys.modules")


def test_missing_torch_says_what_to_install():
    processes.run_python(processes.TESTS / "torch_children.py", "missing_torch")
