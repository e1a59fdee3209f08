"""Whether two contenders computed the same thing: some values of every output, compared between processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

VALUES = 256

#: Relative distance that different orders of summation and intermediate roundings may leave. It is wide: the
#: question is whether the same function was computed; accuracy is what the tests are for.
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}


def probe(outputs: Sequence[np.ndarray]) -> list[list[float]]:
    """Values from the same places of each output, whoever asks."""
    values = []
    for output in outputs:
        places = np.random.default_rng(0).integers(output.size, size=VALUES)
        values.append(output.reshape(-1)[places].astype(np.float64).tolist())
    return values


def disagreement(ours: list[list[float]], theirs: list[list[float]], dtype: str) -> str | None:
    """What differs, or None."""
    if len(ours) != len(theirs):
        return f"{len(ours)} outputs against {len(theirs)}"
    for number, (a, b) in enumerate(zip(map(np.array, ours), map(np.array, theirs), strict=True)):
        distance = float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0))
        if not distance <= TOLERANCE[dtype]:  # NaN disagrees
            return f"output {number} differs by {distance:.1e} (relative)"
    return None
