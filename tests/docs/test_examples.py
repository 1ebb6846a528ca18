"""Every example that people read runs: the README's blocks and the docstrings."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import recal

ROOT = Path(__file__).parents[2]
SOURCE = Path(recal.__file__).parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
# The commands of these pages run, too: see test_tutorial.py and test_walks.py.
for name in ("tutorial.md", "images.md", "texts.md", "tables.md", "sounds-and-series.md"):
    PAGES.remove(ROOT / "docs" / name)
_FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    return _FENCE.findall(page.read_text())


def run_script(script: Path, folder: Path, *arguments: str) -> str:
    path = os.pathsep.join(filter(None, [str(SOURCE.parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:recal", str(script), *arguments],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name
)
def test_the_python_blocks_of_a_page_run_one_after_the_other(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page)))
    run_script(script, tmp_path)


def test_the_readme_prints_what_it_shows(tmp_path):
    """The numbers may differ by a point between releases of scikit-learn."""
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(ROOT / "README.md")))
    shown = re.search(
        r"^```text\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert shown is not None
    texts = [" ".join(text.split()) for text in (shown[1], run_script(script, tmp_path))]
    assert re.sub(r"[\d.]+", "#", texts[0]) == re.sub(r"[\d.]+", "#", texts[1])
    shares = [float(re.search(r"Accept ([\d.]+)%", text)[1]) for text in texts]
    assert shares[0] == pytest.approx(shares[1], abs=1.0)


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_commands_on_the_pages_have_the_options_that_are_shown():
    from recal.cli.app import COMMANDS, build_command

    options = {
        name: {word for one in build_command(name).params for word in (*one.opts, "--help")}
        for name in COMMANDS
    }
    shown = 0
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text().replace("\\\n", " ")
        for name, rest in re.findall(r"^recal (\w+)(.*)$", text, re.MULTILINE):
            assert name in options, f"{page.name}: recal {name}"
            used = set(re.findall(r"(?<!\S)--[a-z-]+", rest.split(" #")[0]))
            if name != "fit":  # its options depend on the method
                assert used <= options[name], f"{page.name}: recal {name}{rest}"
            shown += len(used)
    assert shown > 50


# Examples are short: they fit a few rows, and warnings about that are not what they show.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_examples_in_docstrings_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    results = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if ">>>" in path.read_text():  # the others need not be imported
            parts = ("recal", *path.relative_to(SOURCE).with_suffix("").parts)
            name = ".".join(part for part in parts if part != "__init__")
            results[name] = doctest.testmod(
                import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE
            )
    assert [name for name, result in results.items() if result.failed or not result.attempted] == []
    assert len(results) > 50
