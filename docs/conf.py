"""Sphinx: builds the site of this folder, with an API reference from the docstrings. `make docs` runs it.

The pages are plain Markdown, so that they also work where a repository is browsed. The site's navigation is here, and
not in the pages, for the same reason.
"""

import os
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx import addnodes
from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from omq import __version__  # noqa: E402

SOURCE = "https://github.com/omq-zmtp/omq/blob/main"
#: The pages below each page: the heading in the navigation, and the pages in their order.
NAVIGATION = {
    "README": {
        "Tutorials": [
            "tutorial/first-ten-minutes",
            "tutorial/services",
            "tutorial/feeds",
            "tutorial/broker",
            "tutorial/*",
        ],
        "How-to guides": ["howto/*"],
        "Reference": ["reference/api", "reference/options", "reference/errors", "reference/glossary", "reference/*"],
        "Explanation": ["explanation/architecture", "explanation/architecture-systems", "explanation/*"],
        "Project": ["examples/README", "CONTRIBUTING", "changelog"],
    },
    "reference/api": {"": ["reference/api/sockets", "reference/api/asyncio", "reference/api/*"]},
    "explanation/decisions": {"": ["explanation/decisions/*"]},
}
_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)")

project = "omq"
author = "The omq authors"
copyright = author
version = release = __version__
root_doc = "README"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
exclude_patterns = ["**/__pycache__"]
source_suffix = {".md": "markdown"}
suppress_warnings = ["myst.header"]

myst_enable_extensions = ["linkify"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4
myst_linkify_fuzzy_links = False

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
maximum_signature_line_length = 100
default_role = "code"  # docstrings quote with single backticks, as Markdown does
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

mermaid_height = "auto"
mermaid_init_config = {"startOnLoad": False, "deterministicIds": True}  # equal ids would mix pictures up

html_theme = "furo"
html_title = f"omq {__version__}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False


def programs() -> list[Path]:
    """Returns the example programs that document their output, which are shown as a whole."""
    return [path for path in sorted((DOCS / "examples").glob("*.py")) if "\nPrints:\n" in path.read_text()]


def adapt_page(app: Sphinx, name: str, content: list[str]) -> None:
    """Adds the navigation to a page, and directs its links to files that are not pages to the repository."""
    here = (DOCS / f"{name}.md").parent
    shown = programs() if name == "examples/README" else []

    def direct(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(here / link[1]))
        if target.suffix in (".md", ".png", ".svg") and target.is_relative_to(DOCS):
            return link[1]
        if target in shown:
            return f"#{target.stem}"
        return f"{SOURCE}/{target.relative_to(ROOT)}"

    text = _LINK.sub(direct, content[0])
    for path in shown:
        text += f"\n\n({path.stem})=\n## {path.name}\n\n```{{literalinclude}} {path.name}\n```\n"
    for caption, pages in NAVIGATION.get(name, {}).items():
        paths = "\n".join(f"/{page}" for page in pages)
        heading = f":caption: {caption}\n" if caption else ""
        text += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n{heading}\n{paths}\n```\n"
    content[0] = text


def mark_code(app: Sphinx, kind: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Marks the indented examples of a docstring as literal blocks of reStructuredText."""
    for number in range(len(lines) - 1, 1, -1):
        before = next((line for line in reversed(lines[:number]) if line), "")
        if lines[number].startswith("    ") and not lines[number - 1] and not before.startswith(" "):
            lines[number:number] = ["::", ""]


def skip_field(app: Sphinx, kind: str, name: str, thing: object, skip: bool, options: object) -> bool | None:
    """Skips the fields of named tuples, which have only a generated text; the class describes them."""
    return True if (getattr(thing, "__doc__", None) or "").startswith("Alias for field number") else None


def share_targets(app: Sphinx, tree: Any) -> None:
    """Links names of a module for asyncio that it shares with its blocking twin to the twin, which documents them."""
    for link in tree.findall(addnodes.pending_xref):
        module = link.get("py:module") or ""
        if module.startswith("omq.asyncio"):
            twin = module.replace(".asyncio", "")
            name = link["reftarget"]
            if getattr(import_module(module), name, None) is getattr(import_module(twin), name, app):
                link["py:module"] = twin


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Copies the first page to `index.html`."""
    if error is None and app.builder.format == "html":
        shutil.copyfile(app.outdir / "README.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Connects the functions above."""
    app.connect("source-read", adapt_page)
    app.connect("autodoc-process-docstring", mark_code, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip_field)
    app.connect("doctree-read", share_targets)
    app.connect("build-finished", add_index)
