"""The micro-kernels keep their sums in registers: a register tile that is a little too large is slow, not wrong."""

import pathlib
import shutil

import pytest

import fge


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump reads the machine code")
@pytest.mark.skipif("avx2" not in fge.isas(), reason="the script knows x86's registers")
def test_inner_loops_do_not_touch_the_stack(monkeypatch):
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parents[1]))
    from bench import spills

    found = [loop for loop in spills.loops() if loop.registers != "portable"]
    assert {loop.function for loop in found} >= {"tile_f32", "tile_f64"}
    assert [loop for loop in found if loop.spills] == []
