"""The package on processors that a wheel may meet, emulated by qemu-user: an instruction that such a processor lacks ends
the program. Of the package as it is installed, so a wheel's own files where `make wheel` runs this.
"""

import platform
import re
import shutil
import subprocess

import pytest
from processes import TESTS, run_python

QEMU = shutil.which("qemu-x86_64")
PROBLEMS = 100

pytestmark = [
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64") or not QEMU, reason="x86-64 with qemu-user"),
    pytest.mark.timeout(900),
]


def emulates_avx2():
    version = subprocess.run([QEMU, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.search(r"version (\d+)\.(\d+)", version).groups())) >= (7, 2)


@pytest.fixture(params=[("Nehalem", ["portable"]), ("Haswell", ["avx2", "portable"])], ids=lambda cpu: cpu[0])
def cpu(request):
    """(name, the instruction sets that fge must find)."""
    if "avx2" in request.param[1] and not emulates_avx2():
        pytest.skip("this qemu doesn't know AVX2")
    return request.param


def run_emulated(name, *arguments):
    return run_python(*arguments, prefix=(QEMU, "-cpu", name), timeout=800)


def test_the_instruction_sets_of_the_processor_are_found(cpu):
    name, isas = cpu
    assert run_emulated(name, "-c", "import fge; print(*sorted(fge.isas()))").stdout.split() == isas


def test_random_problems(cpu):
    printed = run_emulated(cpu[0], TESTS / "fuzz.py", "--seconds", 1, "--round", PROBLEMS).stdout
    assert int(printed.split()[0]) >= PROBLEMS
