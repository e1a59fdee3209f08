"""Running the programs of children.py, each in an interpreter of its own that can't take this one down."""

import os
import pathlib
import signal
import subprocess
import sys

import fge

TESTS = pathlib.Path(__file__).parent
TIMEOUT = 120  # against hangs; every program ends within a few seconds

# What would change the programs' defaults.
SETTINGS = (
    "FGE_ENGINE",
    "FGE_ISA",
    "FGE_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)


def run_python(*arguments, env=None, timeout=TIMEOUT, prefix=()):
    """Run `python *arguments` with the fge and the modules of this process; fail with its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    package = pathlib.Path(fge.__file__).parent.parent
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (package, TESTS)))
    environment.update(env or {})
    command = [*prefix, sys.executable, *map(str, arguments)]
    pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # A session of its own, so that processes forked by a hanging program end with it.
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
            ending = f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            ending = f"hung for {timeout} s"
    assert process.returncode == 0, f"{' '.join(command)} {ending}:\n{stdout}\n{stderr}"
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def run_child(program, *arguments, **options):
    """Run one function of children.py by name."""
    return run_python(TESTS / "children.py", program, *arguments, **options)
