"""Contenders in processes of their own that are asked in turns, A B A B A B."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from time import perf_counter


class Contenders:
    """A process per kind, which runs ``worker(end, kind, *arguments)`` and answers requests at its end of a pipe."""

    def __init__(self, worker: Callable, kinds: Sequence[str], *arguments):
        context = multiprocessing.get_context("spawn")
        self._ends, self._processes = {}, []
        for kind in kinds:
            self._ends[kind], theirs = context.Pipe()
            process = context.Process(target=worker, args=(theirs, kind, *arguments), daemon=True)
            process.start()
            theirs.close()  # so that a worker that dies is noticed
            self._processes.append(process)

    def __enter__(self) -> Contenders:
        return self

    def __exit__(self, *error) -> None:
        for end in self._ends.values():
            end.close()
        for process in self._processes:
            process.join()

    def ask(self, request: str) -> dict:
        """kind -> its answer, one after the other."""
        answers = {}
        for kind, end in self._ends.items():
            end.send(request)
            answers[kind] = end.recv()
        return answers


def answer(end, **answers: Callable[[], object]) -> None:
    """A worker's part: answers requests by name until the other end is closed."""
    while True:
        try:
            request = end.recv()
        except EOFError:
            return
        end.send(answers[request]())


def seconds_per_step(step: Callable[[], object], seconds: float) -> float:
    """Of a slice of that length, after a step that brings caches and threads back."""
    step()
    steps, start = 0, perf_counter()
    while perf_counter() - start < seconds:
        step()
        steps += 1
    return (perf_counter() - start) / steps


def seconds_per_call(call: Callable[[], object], calls: int = 300) -> float:
    """Of that many calls, after one."""
    call()
    start = perf_counter()
    for _ in range(calls):
        call()
    return (perf_counter() - start) / calls
