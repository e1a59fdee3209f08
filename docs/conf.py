"""Sphinx builds the pages from Markdown: ``make docs``. Parts that the README or CONTRIBUTING.md tell are included."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent

project = "fge"
copyright = "the authors of fge"
release = re.search(r'"(.+?)"', (ROOT / "fge" / "_version.py").read_text()).group(1)

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
# Included parts start at the rank that they have in the README.
suppress_warnings = ["myst.header"]

html_theme = "furo"
html_title = f"fge {release}"
html_static_path = []
exclude_patterns = ["_build", "benchmarks/README.md"]
