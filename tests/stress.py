"""Eight Python threads with problems of their own, for a time: `make stress SECONDS=60 SEED=1`.

The problems are those of fuzz.py, on the engine of each dtype. Each thread checks every result of its own, forward and
backward, while the others call.
"""

import argparse
import itertools
import pathlib
import re
import threading
import time

from fuzz import check_on_default_path, problems
from hypothesis import HealthCheck, Phase, given, seed, settings

CALLERS = 8
PROBLEMS_OF_A_CALLER = 150


def draw(count: int, number: int) -> list:
    """Problems to go round in; drawing is hypothesis's, which isn't made for many threads, so it comes first."""
    drawn = []

    def keep(problem):
        drawn.append(problem)

    once = settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )
    seed(number)(once(given(problems())(keep)))()
    return drawn


def resident_kib() -> int | None:
    """Resident memory of this process, where /proc tells."""
    status = pathlib.Path("/proc/self/status")
    return int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) if status.exists() else None


def stress(seconds: float, number: int) -> int:
    """Problems checked; raises the first failure."""
    tried, failures, end = itertools.count(), [], time.monotonic() + seconds

    def caller(own):
        for problem in itertools.cycle(own):
            if failures or time.monotonic() > end:
                return
            try:
                check_on_default_path(problem)
            except BaseException as failure:
                failures.append((problem, failure))
            next(tried)

    drawn = draw(CALLERS * PROBLEMS_OF_A_CALLER, number)
    threads = [threading.Thread(target=caller, args=(drawn[first::CALLERS],)) for first in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        problem, failure = failures[0]
        raise AssertionError(f"{problem}") from failure
    return next(tried)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    stress(asked.seconds / 4, asked.seed)  # until pools and scratch are there
    before = resident_kib()
    count = stress(asked.seconds, asked.seed)
    print(f"{count} problems checked by {CALLERS} threads in {asked.seconds:g} s, no fault")
    if before is not None:
        print(f"resident memory {before >> 10} MiB before, {resident_kib() >> 10} MiB after")
