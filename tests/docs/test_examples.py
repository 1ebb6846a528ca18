"""Every example that people read runs: the README's blocks and the docstrings."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import recal

ROOT = Path(__file__).parents[2]
SOURCE = Path(recal.__file__).parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
PAGES.remove(ROOT / "docs" / "tutorial.md")  # its commands run, too: see test_tutorial.py
_FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    return _FENCE.findall(page.read_text())


def modules() -> list[str]:
    """Modules whose source holds an example; the others need not be imported."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if ">>>" in path.read_text():
            parts = ("recal", *path.relative_to(SOURCE).with_suffix("").parts)
            found.append(".".join(part for part in parts if part != "__init__"))
    return found


def run_script(script: Path, folder: Path, *arguments: str) -> None:
    path = os.pathsep.join(filter(None, [str(SOURCE.parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:recal", str(script), *arguments],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_the_python_blocks_of_a_page_run_one_after_the_other(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page)))
    run_script(script, tmp_path)


def stripes(folder: Path, rng: np.random.Generator) -> None:
    """Write Fashion-MNIST's four files with made-up pictures: a bright stripe for each class, and noise."""
    for part, count in (("train", 600), ("t10k", 400)):
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        images = rng.integers(0, 120, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 + 2 * label : 4 + 2 * label] += 100
        for name, array in ((f"{part}-images-idx3", images), (f"{part}-labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (folder / f"{name}-ubyte").write_bytes(header + array.tobytes())


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda script: script.name)
def test_the_example_scripts_run(script, tmp_path):
    arguments = []
    if "--data" in script.read_text():  # it asks for files that the reader has to fetch
        stripes(tmp_path, np.random.default_rng(0))
        arguments = ["--data", str(tmp_path), "--epochs", "2"]
    run_script(script, tmp_path, *arguments)


def test_the_readme_begins_with_the_two_commands_and_a_picture():
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line]
    assert lines[2].startswith("make demo")
    assert lines[3].startswith("make test")
    assert lines[5].startswith("![")
    assert blocks(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_commands_in_the_readme_exist():
    from recal.cli.app import COMMANDS

    named = set(re.findall(r"^recal (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named
    assert named <= set(COMMANDS)


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_docstrings_run(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0
