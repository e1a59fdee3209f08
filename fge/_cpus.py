"""How many CPUs this process may use: its affinity, and the quota of the cgroups it is in."""

import math
import os


def usable(root="/"):
    """CPUs in the affinity mask, at most the cgroup quota rounded up; at least 1. `root` is for tests."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        count = os.cpu_count() or 1
    quota = _cgroup_quota(root)
    return max(1, min(count, math.ceil(quota)) if quota else count)


def _read(path):
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _cgroup_quota(root):
    """CPUs' worth of time that the tightest cgroup around this process grants, or None. Version 2 keeps "quota period" in
    cpu.max (quota "max": none), version 1 cpu.cfs_quota_us (-1: none) and cpu.cfs_period_us (Linux's cgroup documents)."""
    quotas = []
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = os.path.join(root, "sys/fs/cgroup", "" if not controllers else "cpu")
        # a process in a container sees its own cgroup at the mount's root, whatever the path says
        place = path.strip("/")
        while True:
            quotas.append(_quota_at(os.path.join(mount, place), version_2=not controllers))
            if not place:
                break
            place = os.path.dirname(place)
    quotas = [quota for quota in quotas if quota]
    return min(quotas) if quotas else None


def _quota_at(folder, version_2):
    if version_2:
        quota, _, period = _read(os.path.join(folder, "cpu.max")).partition(" ")
    else:
        quota, period = (
            _read(os.path.join(folder, "cpu.cfs_quota_us")),
            _read(os.path.join(folder, "cpu.cfs_period_us")),
        )
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None
