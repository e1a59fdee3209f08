"""Shows that the micro-kernels' inner loops keep their sums in registers: `python -m bench.spills`.

Disassembles the built extension with objdump, finds the innermost loops of multiply-adds in each `tile` function, and
counts the vector instructions in them that touch the stack. Exits with 1 where there are any; the portable kernels,
whose lanes at the edges go through memory, are only listed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from fge import _kernels

#: Functions that hold inner loops, and what they multiply with.
FUNCTIONS = {
    "tile_f32": r"vfmadd\w+ps|mulps",
    "tile_f64": r"vfmadd\w+pd|mulpd",
    "tile": r"vdpbf16ps",
    "tile_bf16": r"tdpbf16ps",
    "tile_f16": r"tdpbf16ps",
}
LEAST_MULTIPLICATIONS = 2
REGISTERS = {"zmm": "AVX-512", "ymm": "AVX2", "tmm": "AMX", "xmm": "portable"}


@dataclass(frozen=True)
class Loop:
    """An innermost loop: its function, the widest registers in it, and counts of its instructions."""

    function: str
    registers: str
    instructions: int
    multiplications: int
    spills: int


def disassembly() -> dict[str, list[list[tuple[int, str]]]]:
    """Bodies of the functions of interest: lists of (address, instruction). Static functions share names."""
    command = ["objdump", "--disassemble", "--no-show-raw-insn", "--wide", _kernels.__file__]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    bodies: dict[str, list[list[tuple[int, str]]]] = {}
    body: list[tuple[int, str]] | None = None
    for line in text.splitlines():
        if title := re.match(r"[0-9a-f]+ <(\w+?)(?:\.\w+)*>:$", line):
            name = title[1]
            body = [] if name in FUNCTIONS else None
            if body is not None:
                bodies.setdefault(name, []).append(body)
        elif body is not None and (row := re.match(r"\s*([0-9a-f]+):\s+(.*)", line)):
            body.append((int(row[1], 16), row[2].strip()))
    return bodies


def innermost_loops(body: list[tuple[int, str]]) -> Iterator[list[str]]:
    """Instructions between the target of a jump backwards and the jump, where no other such loop lies inside."""
    place = {address: i for i, (address, _) in enumerate(body)}
    ranges = []
    for i, (address, instruction) in enumerate(body):
        jump = re.match(r"j\w+\s+([0-9a-f]+)\b", instruction)
        if jump and (target := int(jump[1], 16)) <= address and target in place:
            ranges.append((place[target], i))
    for first, last in ranges:
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in ranges):
            yield [instruction for _, instruction in body[first : last + 1]]


def loops() -> Iterator[Loop]:
    """Every inner loop of the micro-kernels."""
    for function, bodies in disassembly().items():
        for body in bodies:
            for instructions in innermost_loops(body):
                multiplications = sum(bool(re.match(FUNCTIONS[function], line)) for line in instructions)
                if multiplications < LEAST_MULTIPLICATIONS:
                    continue
                text = "\n".join(instructions)
                registers = next((kind for name, kind in REGISTERS.items() if f"%{name}" in text), "none")
                spills = sum(
                    bool(re.search(r"\(%rsp", line) and re.search(r"%[xyzt]mm", line))
                    for line in instructions
                )
                yield Loop(function, registers, len(instructions), multiplications, spills)


def main() -> int:
    """Print a row for each kind of loop, the largest of them and all spills."""
    found = list(loops())
    if not found:
        print("no inner loops found: was the extension stripped of its symbols?")
        return 1
    kinds = Counter((loop.registers, loop.function) for loop in found)
    print(
        f"{'registers':10} {'function':10} {'loops':>5}  {'largest: instructions':>21} {'multiplications':>15} {'spills':>6}"
    )
    for (registers, function), count in sorted(kinds.items()):
        alike = [loop for loop in found if (loop.registers, loop.function) == (registers, function)]
        largest = max(alike, key=lambda loop: loop.multiplications)
        spills = sum(loop.spills for loop in alike)
        print(
            f"{registers:10} {function:10} {count:5}  {largest.instructions:21} {largest.multiplications:15} {spills:6}"
        )
    return int(any(loop.spills for loop in found if loop.registers != "portable"))


if __name__ == "__main__":
    sys.exit(main())
