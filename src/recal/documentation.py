"""Where the documentation is on this machine, for editors, assistants and people without a network."""

from __future__ import annotations

from pathlib import Path


def docs_dir() -> Path:
    """Return the folder with the documentation as Markdown files; `index.md` is the first page.

    An installed package brings its own copy. In a clone it is the folder `docs`.

    Examples
    --------
    >>> import recal
    >>> (recal.docs_dir() / "tutorial.md").is_file()
    True
    """
    installed = Path(__file__).parent / "_docs"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "docs"
