"""The site: ``make docs`` builds the Markdown of this folder with Sphinx and MyST into build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

import rbdata

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "rbdata"
author = "the authors of rbdata"
copyright = "the authors of rbdata, MIT licence"
release = version = rbdata.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "plain_markdown"]
exclude_patterns = ["extensions"]
default_role = "code"  # docstrings name things in single backticks
smartquotes = False  # options begin with two hyphens

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
toc_object_entries = False

html_theme = "furo"
html_title = f"rbdata {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
