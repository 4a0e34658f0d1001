"""Settings of the site that `make docs` builds. Nothing is fetched, neither now nor by a reader."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from generated_pages import CONTENTS, ROOMS, list_linked_pages, write_pages  # noqa: E402

import hetcal  # noqa: E402

project = "hetcal"
author = "The hetcal developers"
project_copyright = author
release = version = hetcal.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton"]
exclude_patterns = ["_templates"]
source_suffix = {".md": "markdown"}
nitpicky = True
# Names of other packages: their pages are elsewhere, and looking them up would need a network.
nitpick_ignore_regex = [
    (r"py:.*", r"(numpy|scipy|sklearn|torch|matplotlib|dask|distributed|onnx|pandas)\..*"),
    (r"py:mod", r"hetcal\..*"),
]

myst_enable_extensions = ["fieldlist"]
myst_heading_anchors = 4

# Signatures without types: those that matter are in the docstrings, in words.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch", "tqdm", "triton", "dask", "distributed", "onnx", "pyarrow", "pandas"]
numpydoc_show_class_members = False
autosummary_generate = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"hetcal {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False


def setup(app: Any) -> None:
    """Write the pages that come from code, then let Sphinx read."""
    write_pages(HERE / "generated", HERE.parent)
    app.connect("source-read", _adapt)
    app.connect("missing-reference", _find_public_name)
    app.connect("autodoc-skip-member", _skip_routing)


def _adapt(_app: Any, page: str, source: list[str]) -> None:
    """What Sphinx needs and GitHub would show as it is: the contents, and anchors of its own kind."""
    source[0] = source[0].replace("\n\n```\n", "\n```\n")  # doctest's blank line before the end of a block
    if page == "index":
        source[0] += CONTENTS
    if page == "reproduction/index":
        source[0] += list_linked_pages(source[0])
    source[0] = re.sub(r'^<a id="([\w-]+)"></a>$', r"(\1)=", source[0], flags=re.MULTILINE)


def _skip_routing(_app: Any, _kind: str, name: str, *_: Any) -> bool | None:
    # scikit-learn gives these to every estimator; their text is its own and links into its site.
    return True if name.startswith("set_") and name.endswith("_request") else None


def _find_public_name(_app: Any, env: Any, node: Any, content: Any) -> Any:
    """Link a name that a docstring calls by its home, or by its last part, to where it is documented."""
    if node.get("refdomain") != "py":
        return None
    objects, last = env.get_domain("py").objects, node["reftarget"].split(".")[-1]
    places = [f"hetcal.{last}", *(f"hetcal.{room}.{last}" for room in ROOMS)]
    found = next((objects[place] for place in places if place in objects), None)
    if found is None:
        return None
    from sphinx.util.nodes import make_refnode

    return make_refnode(_app.builder, node["refdoc"], found.docname, found.node_id, content)
