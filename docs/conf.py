"""Settings of the documentation site.

python -m sphinx -W -b html docs build/site
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # `extension` is a module beside this file
os.environ["NO_COLOR"] = "1"  # pages show the help of commands
logging.getLogger("parallel_envs").setLevel(logging.WARNING)  # not every start of a worker

from inventories import PROJECTS  # noqa: E402  # a module beside this file

project = "parallel_envs"
author = "The parallel_envs authors"
copyright = "2026, the parallel_envs authors"  # noqa: A001  # the name that Sphinx reads
version = release = "0.1.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx"]
extensions += ["sphinx_copybutton", "sphinx_design", "sphinx_gallery.gen_gallery", "extension"]
root_doc = "index"
exclude_patterns = ["tutorials"]
html_theme = "furo"
html_title = "parallel_envs"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "scorer.js")
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}

# ---- pages -----------------------------------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # pages that are included begin with a heading of their own
highlight_language = "none"  # blocks without a language are output
copybutton_exclude = ".linenos, .gp, .go"

# ---- other projects: what we link to is in files, so no network is needed --------------------------------------------

intersphinx_mapping = {name: (url, f"inventories/{name}.inv") for name, url in PROJECTS.items()}

# ---- docstrings ------------------------------------------------------------------------------------------------------

default_role = "code"  # `name` in a docstring is code
autodoc_mock_imports = ["stable_baselines3"]  # the site is built without it
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings describe the arguments, and the source has the types
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# ---- tutorials: programs that the build runs -------------------------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "gallery",  # written by the build
    "filename_pattern": r"/\d_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
    "abort_on_example_error": True,
}
