"""What the documents say holds: examples run and print what is shown, names and links exist."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import fge

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/torch.md")
# What has examples; the pages of docs/ include the README's.
PAGES = [README, *(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))]

# An example, and what it prints where a block of text follows at once.
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
EXAMPLES = [example for page in PAGES for example in EXAMPLE.findall(page)]
FRAMEWORKS = ("paddle", "torch", "dask")


def block_of_text(section):
    """Its first."""
    return re.search(r"^```text\n(.*?)^```", section, re.DOTALL | re.MULTILINE).group(1)


def section_of(heading):
    """The text below a heading, up to the next of its rank or above."""
    rank = len(heading) - len(heading.lstrip("#"))
    return re.split(rf"^#{{1,{rank}}} ", README.split(f"\n{heading}\n")[1], flags=re.MULTILINE)[0]


def run(code, tmp_path):
    """As a newcomer does: a file of its own, away from the tree."""
    (tmp_path / "example.py").write_text(code)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FGE_")}
    environment["PYTHONPATH"] = str(pathlib.Path(fge.__file__).parent.parent)
    command = [sys.executable, "example.py"]
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.parametrize("code, output", EXAMPLES, ids=[f"example{i}" for i in range(len(EXAMPLES))])
def test_example_of_the_readme(code, output, tmp_path):
    for framework in FRAMEWORKS:
        if re.search(rf"^(import|from) (fge\.)?{framework}\b", code, re.MULTILINE):
            # looked for, not imported: that is left to the child
            for module in (framework, f"fge.{framework}"):
                if not importlib.util.find_spec(module):
                    pytest.skip(f"{module} isn't installed")
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert output, "an example shows what it prints"
    assert done.stdout == output


def test_there_are_examples():
    assert len(EXAMPLES) == sum(page.count("```python") for page in PAGES) >= 10


def first_column(table):
    return [row.split("|")[1].strip().strip("`") for row in table.splitlines() if row.startswith("| `")]


def test_the_table_of_activations_is_complete():
    section = section_of("## Activations and reserves").split("###")[0]
    assert first_column(section) == list(fge.activations())


def test_the_table_of_activations_tells_their_reserves():
    kinds = {"None": "none", "bits": "bits", "z": "z", "out": "out"}
    for row in section_of("## Activations and reserves").splitlines():
        if row.startswith("| `"):
            name, _, reserve, _ = (cell.strip() for cell in row.strip("|").split("|"))
            assert kinds[re.match(r"\w+", reserve).group()] == fge.reserve_kind(name.strip("`"))


def labels(text):
    """The words at the start of the lines that aren't indented."""
    return [line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")]


def test_show_config_is_as_shown(capsys):
    fge.show_config()
    section = section_of("## How to read show_config")
    shown = block_of_text(section)
    assert labels(capsys.readouterr().out) == labels(shown)
    assert set(re.findall(r"^- `(\w+)", section, re.MULTILINE)) == set(labels(shown))


def test_engines_instruction_sets_and_variables_are_named():
    section = section_of("## Engines")
    assert first_column(section) == ["FGE_ENGINE", "FGE_ISA", "FGE_NUM_THREADS"]
    engines, isas, _ = re.findall(r"^\| `.*", section, re.MULTILINE)
    assert all(f"`{engine}`" in engines for engine in ("auto", *fge.engines()))
    assert all(f"`{isa}`" in isas for isa in ("auto", *fge.isas()))


def test_messages_shown_are_those_raised():
    x, y = np.zeros((8, 4), np.float32), np.zeros((4, 128), np.float32)
    raised = []
    for arguments in (
        {"x": x, "y": y, "bias": np.zeros(127, np.float32)},
        {"x": x, "y": y.astype(np.float64)},
        {"x": x, "y": np.zeros((4, 4), np.float32), "out": x},
    ):
        with pytest.raises((TypeError, ValueError)) as error:
            fge.fused_gemm_epilogue(**arguments)
        raised.append(f"{error.type.__name__}: {error.value}")
    assert block_of_text(section_of("## Errors")).splitlines() == raised


def test_public_names_are_mentioned():
    text = "".join((ROOT / document).read_text() for document in DOCUMENTS)
    assert [name for name in fge.__all__ if name != "__version__" and name not in text] == []


def test_the_version_is_in_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(fge.__version__)}\b", changelog, re.MULTILINE)


def test_every_file_of_the_core_is_on_the_map():
    core = ROOT / "fge" / "core"
    named = set(re.findall(r"`(\w+\.[ch])`", CONTRIBUTING))
    stems = {pathlib.Path(name).stem for name in named}
    assert {path.stem for path in core.glob("*.[ch]")} <= stems
    assert [name for name in named if not (core / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text()
    anchors = {
        re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.*)", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif "://" not in target and not target.startswith("docs/"):
            assert (ROOT / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS)
def test_lines_are_short(document):
    assert [line for line in (ROOT / document).read_text().splitlines() if len(line) > 110] == []
