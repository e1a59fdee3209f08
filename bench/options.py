"""The command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import shapes
from bench.peers import PEERS
from bench.shapes import Shape
from bench.task import ACTIVATIONS, DTYPES, OPERATIONS

SUBJECT = "fge"
RESULTS = Path(__file__).parent / "results"


#: Whom the targets compare with.
TARGET_PEERS = {"numpy", "torch"}


@dataclass(frozen=True)
class Options:
    """What to measure and how long."""

    subject: str
    peers: tuple[str, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    operations: tuple[str, ...]
    activations: tuple[str, ...]
    threads: tuple[int, ...]
    rounds: int
    slice_seconds: float
    epilogue: bool
    targets: bool
    output: Path


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line; ends the process where it makes no sense."""
    given = _parser().parse_args(arguments)
    targets = given.targets
    if targets is None:
        targets = TARGET_PEERS <= set(given.peers)
    return Options(
        subject=given.subject,
        peers=given.peers,
        shapes=given.shapes or (shapes.QUICK if given.quick else shapes.DEFAULT),
        dtypes=given.dtypes,
        operations=given.ops,
        activations=given.activations,
        threads=given.threads or ((1, 2) if targets else (_usable_cpus(),)),
        rounds=given.rounds or (3 if given.quick else 7),
        slice_seconds=0.03 if given.quick else 0.1,
        epilogue=given.epilogue,
        targets=targets,
        output=given.output,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Compares fge with other libraries, in processes that take turns.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--peers", type=_names(PEERS), default="numpy", help=f"whom to compare with: {','.join(PEERS)}")
    add("--shapes", type=_checked(shapes.parse), help="M,K,N;M,K,N (default: layers of known models)")
    add("--dtypes", type=_names(DTYPES), default="float32", help=",".join(DTYPES))
    add("--ops", type=_names(OPERATIONS), default="forward,backward", help=",".join(OPERATIONS))
    add("--activations", type=_names(ACTIVATIONS), default="relu,gelu", help=",".join(ACTIVATIONS))
    add(
        "--threads",
        type=_checked(_threads),
        help="numbers of threads: 1,2 (default: the CPUs; for targets 1,2)",
    )
    add("--rounds", type=_checked(_positive), help="turns that each contender takes (default: 7)")
    add("--quick", action="store_true", help="two shapes, three short rounds: a look, not a result")
    add("--epilogue", action="store_true", help="also show what each step of the epilogue costs")
    add(
        "--targets",
        action=argparse.BooleanOptionalAction,
        help="measure all that the targets need, and judge them (default: where numpy and torch are peers)",
    )
    add("--output", type=Path, default=RESULTS, help="directory for the JSON and plots")
    add("--subject", choices=(SUBJECT, *PEERS), default=SUBJECT, help="who is compared with the peers")
    return parser


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _checked(parse_text: Callable) -> Callable:
    """argparse shows the text of this error only."""

    def parse_or_explain(text: str):
        try:
            return parse_text(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_or_explain


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse_names(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
        return names

    return _checked(parse_names)


def _positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a positive number")
    return int(text)


def _threads(text: str) -> tuple[int, ...]:
    return tuple(sorted({_positive(part) for part in text.split(",")}))
