"""How the documentation site is built: `make docs`, without network, into docs/_build."""

from __future__ import annotations

import inspect
from pathlib import Path

import recal

DOCS = Path(__file__).parent

project = "recal"
author = "The recal developers"
release = version = recal.__version__
html_title = f"recal {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# Types in docstrings are words for people, not names to be looked up.
suppress_warnings = ["myst.header", "myst.xref_missing", "ref.python", "ref.ref", "ref.term"]
exclude_patterns = ["_build", "_templates"]

default_role = "literal"  # names in single backticks are code
autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say it in words
autodoc_default_options = {
    "members": True,
    "inherited-members": "BaseException,Module,BaseEstimator,ClassifierMixin,dict,int",
    "exclude-members": "state, set_state",
}
napoleon_google_docstring = False
napoleon_use_ivar = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "logo": {"text": f"recal {release}"},
    "navbar_center": [],  # the sidebar lists all pages under their headings
    "navigation_with_keys": True,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
templates_path = ["_templates"]
html_sidebars = {"**": ["all-pages.html"]}
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["recal.css"]

# The reference is written from the one list of public names, by the room each comes from.
ROOMS = {
    "Views, maps and pools": (
        "views",
        "plan",
        "maps",
        "files",
        "transforms",
        "collecting",
        "answers",
        "engine",
    ),
    "Calibrators": ("calibrators",),
    "Evaluating and deciding": ("metrics", "comparison", "decisions", "reporting"),
    "Exporting": ("export",),
    "Errors and warnings": ("errors",),
}
# Packages with further public names.
PACKAGES = ("calibrators", "collecting", "answers", "decisions")


def write_reference() -> None:
    """Write reference.rst: a table of names for each group of rooms, and a page for each name."""
    homes = {
        name: found.__module__.split(".")[1]
        for name in recal.__all__
        if not inspect.ismodule(found := getattr(recal, name))
    }
    public = set(homes)
    homes |= {
        f"{package}.{name}": package
        for package in PACKAGES
        for name in getattr(recal, package).__all__
        if name not in public and callable(getattr(getattr(recal, package), name))
    }
    homes |= {
        f"errors.{name}": "errors"
        for name, found in vars(recal.errors).items()
        if isinstance(found, type) and found.__module__ == "recal.errors"
    }
    lines = ["Reference", "=========", "", "Every public name; each loads on first use.", ""]
    for title, rooms in ROOMS.items():
        names = [
            f"recal.{name}" for name, room in homes.items() if room in rooms and name not in rooms
        ]
        modules = [f"recal.{name}" for name in ("metrics", "transforms") if name in rooms]
        lines += [
            title,
            "-" * len(title),
            "",
            ".. autosummary::",
            "   :toctree: api",
            "   :nosignatures:",
            "",
        ]
        lines += [f"   {name}" for name in [*names, *modules]] + [""]
    text = "\n".join(lines)
    target = DOCS / "reference.rst"
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")


write_reference()  # now, since Sphinx looks for pages before it lets extensions speak
