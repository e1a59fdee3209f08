"""What a wheel may run on: instructions beyond x86-64's baseline are in the files that were compiled for them alone,
which `dispatch.c` enters only where the CPU has them. Nothing was compiled with -march=native.
"""

import bisect
import pathlib
import platform
import re
import shutil
import subprocess

import pytest

import fge

LIBRARIES = sorted(pathlib.Path(fge.__file__).parent.glob("*.so"))
GUARDED = re.compile(r"(kernels_avx\w+|pairs_\w+)\.c$")
# AVX and its successors begin with v; BMI and AMX have names of their own.
BEYOND = re.compile(
    r"(v\w+|andn|bextr|blsi|blsr|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|ldtilecfg|sttilecfg|tile\w+|tdp\w+)$"
)
BASELINE = {"verr", "verw"}

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64")
    or not (shutil.which("objdump") and shutil.which("readelf")),
    reason="x86-64 with binutils",
)


def functions(library):
    """(address, size, source file) of each, in order."""
    found, source = [], ""
    listing = subprocess.run(["readelf", "-sW", library], capture_output=True, text=True, check=True).stdout
    for line in listing.partition(".symtab")[2].splitlines():
        fields = line.split()
        if len(fields) >= 7 and fields[3] == "FILE":
            source = fields[7] if len(fields) > 7 else ""
        elif len(fields) >= 8 and fields[3] == "FUNC" and fields[6] != "UND":
            found.append(
                (int(fields[1], 16), int(fields[2], 0), source if fields[4] == "LOCAL" else "global")
            )
    return sorted(found)


def instructions(library):
    """(address, mnemonic) of each."""
    command = ["objdump", "-d", "--no-show-raw-insn", library]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for match in re.finditer(r"^ +([0-9a-f]+):\t(\w+)", listing, re.MULTILINE):
        yield int(match[1], 16), match[2]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name.partition(".")[0])
def test_instructions_beyond_the_baseline_are_guarded(library):
    known = functions(library)
    if not known:
        pytest.skip("stripped of its symbols")
    starts = [start for start, _, _ in known]
    used = {}
    for address, mnemonic in instructions(library):
        if BEYOND.match(mnemonic) and mnemonic not in BASELINE:
            place = bisect.bisect_right(starts, address) - 1
            start, size, source = known[place] if place >= 0 else (0, 0, "")
            used.setdefault(source if address < start + size else "between functions", set()).add(mnemonic)
    assert {source: names for source, names in used.items() if not GUARDED.search(source)} == {}
    if library.name.startswith("_kernels"):  # and the test sees those that there are
        assert {"kernels_avx2.c", "kernels_avx512.c", "pairs_amx.c"} <= used.keys()
