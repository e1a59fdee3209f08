"""The results as a whole, and the JSON of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.measurements import Measurements
from bench.options import Options
from bench.plan import Plan
from bench.targets import Verdict


@dataclass(frozen=True)
class Results:
    """What was asked for, on which machine, by whom, and what came out."""

    options: Options
    plan: Plan
    machine: dict
    #: Per contender and number of threads: version and what is behind it; or why it isn't there.
    contenders: dict[tuple[str, int], dict]
    measurements: Measurements
    verdicts: list[Verdict]
    #: Bytes per second of memory, by number of threads.
    bandwidth: dict[int, float]
    #: What other processes took of the processors meanwhile.
    foreign_load: float | None


def write_json(results: Results, path: Path) -> None:
    """Every sample, so that other statistics can be made of them."""
    measured = results.measurements
    document = {
        "options": {**asdict(results.options), "output": None},
        "machine": results.machine,
        "foreign_load": results.foreign_load,
        "bandwidth": results.bandwidth,
        "contenders": [
            {"name": name, "threads": threads, **found}
            for (name, threads), found in results.contenders.items()
        ],
        "runs": [
            {**run.to_json(), "median_seconds": measured.median(run), "seconds": seconds}
            for run, seconds in measured.seconds.items()
        ],
        "unavailable": [{**run.to_json(), "reason": reason} for run, reason in measured.unavailable.items()],
        "comparisons": [
            {
                "ours": comparison.ours.to_json(),
                "theirs": comparison.theirs.to_json(),
                "ratio": ratio._asdict(),
                "disagreement": measured.disagreements.get(comparison),
            }
            for comparison in results.plan.comparisons
            if (ratio := measured.ratio(comparison))
        ],
        "targets": [{**asdict(verdict), "outcome": verdict.outcome.value} for verdict in results.verdicts],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
