"""The parent's end of the workers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.task import Task

ROOT = Path(__file__).resolve().parent.parent

#: The directory of this package comes last on the path, so that an installed fge is measured rather than a
#: source tree that may not be built.
_START = """
import sys
sys.path[:] = [entry for entry in sys.path if entry] + [sys.argv[1]]
from bench.worker import main
main(sys.argv[2])
"""

_THREAD_VARIABLES = (
    "FGE_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class WorkerDied(Exception):
    """A contender's process ended by itself; the text is the last that it wrote."""


class Process:
    """One worker, and the questions that it answers."""

    def __init__(self, contender: str, threads: int):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(ROOT), contender],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=_environment(threads),
        )

    def describe(self) -> dict:
        """See ``Worker.describe``."""
        return self._ask(request="describe")

    def prepare(self, task: Task) -> dict:
        """See ``Worker.prepare``."""
        return self._ask(request="prepare", task=task.to_json())

    def slice(self, task: Task, budget: float) -> float:
        """Seconds per call."""
        return self._ask(request="slice", task=task.to_json(), budget=budget)["seconds"]

    def memory(self, task: Task) -> dict:
        """See ``Worker.memory``."""
        return self._ask(request="memory", task=task.to_json())

    def forget(self) -> None:
        """Releases the worker's operands."""
        self._ask(request="forget")

    def close(self) -> None:
        """Ends the worker: it leaves when its stdin does."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _ask(self, **request) -> dict:
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerDied(self._last_words()) from None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerDied(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"the process ended with status {status}"


def _environment(threads: int) -> dict[str, str]:
    environment = dict(os.environ)
    environment.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    # It forces a kernel on OpenBLAS that isn't the one this machine's users get.
    environment.pop("OPENBLAS_CORETYPE", None)
    return environment


class Processes:
    """The workers, started when first asked for and ended together."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], Process] = {}

    def close(self) -> None:
        """Ends all of them."""
        for process in self._running.values():
            process.close()
        self._running.clear()

    def get(self, contender: str, threads: int) -> Process:
        """The worker of this contender."""
        key = contender, threads
        if key not in self._running:
            self._running[key] = Process(contender, threads)
        return self._running[key]

    def discard(self, contender: str, threads: int) -> None:
        """Drops a worker that died; the next ``get`` starts another."""
        self._running.pop((contender, threads)).close()

    def forget(self) -> None:
        """Releases the operands of all of them."""
        for key, process in list(self._running.items()):
            try:
                process.forget()
            except WorkerDied:
                self.discard(*key)
