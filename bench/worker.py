"""One contender in a process of its own, told over stdin what to run; one JSON object a line, each way.

Between requests it blocks on stdin, and it answers a slice only when its own threads sleep, so that the next
contender has the machine to itself.
"""

from __future__ import annotations

import gc
import io
import json
import os
import sys
import time
from dataclasses import replace
from importlib import metadata
from types import ModuleType

from bench import inputs, peers, shapes
from bench.agreement import probe
from bench.peers.work import Unavailable, Work
from bench.resident import growth
from bench.task import Task

#: A pool without work spins before it sleeps, some for 0.2 s. One that never sleeps is waited for this long.
SETTLE_STEP_SECONDS = 5e-3
SETTLE_LIMIT_SECONDS = 0.3


class Worker:
    """Answers requests for one contender; a public method is a request."""

    def __init__(self, peer: ModuleType):
        self._peer = peer
        self._prepared: dict[Task, Work] = {}

    def describe(self) -> dict:
        """Its version and what is behind it."""
        return {"version": _version(self._peer.DISTRIBUTION), "about": self._peer.about()}

    def prepare(self, task: dict) -> dict:
        """Makes a task ready and calls it once; answers with values of its results."""
        parsed = Task.from_json(task)
        try:
            work = self._peer.prepare(parsed, inputs.make(parsed.shape, parsed.dtype))
            values = probe(work.check())
        except Exception as error:  # noqa: BLE001 - said in the report
            return _refusal(error)
        self._prepared[parsed] = work
        return {"probe": values}

    def slice(self, task: dict, budget: float) -> dict:
        """Seconds per call, over about ``budget`` seconds."""
        seconds = self._prepared[Task.from_json(task)].measure(budget)
        _wait_for_sleep()
        return {"seconds": seconds}

    def memory(self, task: dict) -> dict:
        """Bytes that one call adds to the process at its peak."""
        parsed = Task.from_json(task)
        warm_up = replace(parsed, shape=shapes.CALL)  # starts the threads, whose stacks aren't the call's
        try:
            self._peer.prepare(warm_up, inputs.make(warm_up.shape, warm_up.dtype)).call()
            work = self._peer.prepare(parsed, inputs.make(parsed.shape, parsed.dtype))
            return {"bytes": growth(work.call)}
        except Exception as error:  # noqa: BLE001 - said in the report
            return _refusal(error)

    def forget(self) -> dict:
        """Releases what was prepared."""
        self._prepared.clear()
        inputs.make.cache_clear()
        gc.collect()
        return {}


def main(name: str) -> None:
    """Serves until stdin ends."""
    answers = _claim_stdout()
    gc.disable()  # its pauses belong to nobody
    worker = Worker(peers.load(name))
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(worker, request.pop("request"))(**request)
        print(json.dumps(answer), file=answers, flush=True)


def _refusal(error: Exception) -> dict:
    """A contender may fail in ways of its own: that is said, and the others go on."""
    if isinstance(error, Unavailable):
        return {"unavailable": str(error)}
    return {"unavailable": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def _claim_stdout() -> io.TextIOBase:
    """Keeps stdout for answers; whatever a library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _wait_for_sleep() -> None:
    deadline = time.monotonic() + SETTLE_LIMIT_SECONDS
    while time.monotonic() < deadline:
        before = time.process_time()
        time.sleep(SETTLE_STEP_SECONDS)
        if time.process_time() - before < 0.1 * SETTLE_STEP_SECONDS:
            return


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # built in place, not installed
        return getattr(sys.modules.get(distribution), "__version__", "unknown")
