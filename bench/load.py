"""How busy other processes kept the machine during the benchmark."""

from __future__ import annotations

import os
from pathlib import Path

_STAT = Path("/proc/stat")


class ForeignLoad:
    """Counts from its creation; processes of ours must have ended when it is asked."""

    def __init__(self) -> None:
        self._before = _ticks()

    def share(self) -> float | None:
        """Processor time that others took, as a share of all there was; None where nobody counts it."""
        now = _ticks()
        if now is None or self._before is None:
            return None
        busy, total, own = (after - before for after, before in zip(now, self._before, strict=True))
        return max(0.0, busy - own) / total


def _ticks() -> tuple[float, float, float] | None:
    """Busy, total and our own processor time so far, in clock ticks."""
    if not _STAT.exists():
        return None
    user, nice, system, idle, waiting, *interrupts = map(int, _STAT.read_text().splitlines()[0].split()[1:9])
    busy = user + nice + system + sum(interrupts)  # the last of these is what a hypervisor took
    times = os.times()
    own = (times.user + times.system + times.children_user + times.children_system) * os.sysconf("SC_CLK_TCK")
    return busy, busy + idle + waiting, own
