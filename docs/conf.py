"""Sphinx configuration. Neither the build nor the site loads anything from the network."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from generated_pages import CONTENTS, MODULES, list_linked_pages, write_pages  # noqa: E402

import hetcal  # noqa: E402

project = "hetcal"
author = "The hetcal developers"
project_copyright = author
release = version = hetcal.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton"]
exclude_patterns = ["_templates"]
source_suffix = {".md": "myst-nb"}
nitpicky = True
# Links to other packages would need their inventories from the network.
nitpick_ignore_regex = [
    (r"py:.*", r"(numpy|scipy|sklearn|pandas|matplotlib|dask|distributed|onnx)\..*"),
    (r"py:.*", r"(torch|torchmetrics|lightning|mlflow|evaluate)\..*"),
    (r"py:mod", r"hetcal\..*"),
]

myst_enable_extensions = ["fieldlist"]
myst_heading_anchors = 4

# Every build executes the notebooks, in a temporary folder. It fails if a cell raises an exception or warns.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_output_stderr = "warn"
nb_merge_streams = True
# The kernel and the command `hetcal` are those of this Python.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

# The docstrings describe the types, so signatures omit them.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_mock_imports = [
    "torch",
    "torchmetrics",
    "lightning",
    "evaluate",
    "datasets",
    "mlflow",
    "tqdm",
    "triton",
    "dask",
    "distributed",
    "onnx",
    "pyarrow",
    "pandas",
]
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

# GitHub chooses between a light and a dark image with HTML, furo with classes.
_PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img alt="([^"]*)" src="([^"]+)">\s*</picture>'
)
_THEMED_IMAGES = "".join(
    f"```{{image}} \\{group}\n:alt: \\2\n:class: only-{theme}\n```\n\n"
    for theme, group in (("light", 3), ("dark", 1))
)


def setup(app: Any) -> None:
    """Write the generated pages and register the event handlers."""
    write_pages(HERE / "generated", HERE.parent)
    app.connect("source-read", _adapt_markdown)
    app.connect("missing-reference", _find_public_name)
    app.connect("autodoc-skip-member", _skip_metadata_routing)


def _adapt_markdown(_app: Any, page: str, source: list[str]) -> None:
    """Add what Sphinx needs but GitHub would show as text: tables of contents and anchors."""
    source[0] = source[0].replace("\n\n```\n", "\n```\n")  # doctest needs this blank line, the page does not
    if page == "index":
        source[0] += CONTENTS
    if page == "reproduction/index":
        source[0] += list_linked_pages(source[0])
    source[0] = _PICTURE.sub(_THEMED_IMAGES, source[0])
    source[0] = re.sub(r'^<a id="([\w-]+)"></a>$', r"(\1)=", source[0], flags=re.MULTILINE)


def _skip_metadata_routing(_app: Any, _kind: str, name: str, *_: Any) -> bool | None:
    # Every estimator inherits these from scikit-learn, and their docstrings link to scikit-learn's site.
    return True if name.startswith("set_") and name.endswith("_request") else None


def _find_public_name(_app: Any, env: Any, node: Any, content: Any) -> Any:
    """Resolve a reference by its last part, if that is a public name: `base.Calibrator` by `Calibrator`."""
    if node.get("refdomain") != "py":
        return None
    objects, name = env.get_domain("py").objects, node["reftarget"].split(".")[-1]
    candidates = [f"hetcal.{name}", *(f"hetcal.{module}.{name}" for module in MODULES)]
    target = next((objects[candidate] for candidate in candidates if candidate in objects), None)
    if target is None:
        return None
    from sphinx.util.nodes import make_refnode

    return make_refnode(_app.builder, node["refdoc"], target.docname, target.node_id, content)
