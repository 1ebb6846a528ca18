"""Run the tutorial and write what it prints into docs/tutorial.md: python docs/make/tutorial.py

A block ```python is saved and run, a block ```console holds commands after `$ ` and what they
printed. Nothing on the page was typed by hand that a program printed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from recal.cli.app import run

PAGE = Path(__file__).parents[1] / "tutorial.md"
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def rewrite(text: str) -> str:
    """Return the page with every command's output as it is now, each run in one new folder."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        environment = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        sys.path.insert(0, folder)
        try:
            return _BLOCK.sub(lambda block: _again(block[1], block[2]), text)
        finally:
            sys.path.remove(folder)
            sys.modules.pop("digits", None)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def _again(language: str, body: str) -> str:
    if language == "python":
        name = re.match(r"# (\w+\.py)", body)
        if name:
            Path(name[1]).write_text(body)
        shown = _printed(lambda: exec(compile(body, "tutorial", "exec"), {"__name__": "__main__"}))
        return f"```python\n{body}```" + (f"\n\n```text\n{shown}```" if shown and not name else "")
    commands = [line[2:] for line in body.splitlines() if line.startswith("$ ")]
    return (
        "```console\n"
        + "".join(f"$ {command}\n{_command(command)}" for command in commands)
        + "```"
    )


def _command(command: str) -> str:
    words = shlex.split(command)
    if words[0] != "recal":
        return ""  # pip install, which is not run here
    return _printed(lambda: run(words[1:]))


def _printed(action) -> str:  # type: ignore[no-untyped-def]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        action()
    lines = [line.rstrip() for line in (err.getvalue() + out.getvalue()).strip("\n").splitlines()]
    return "".join(f"{line}\n" for line in lines)


def without_output(text: str) -> str:
    """Return the page without what its python blocks printed: every block of plain text."""
    return re.sub(r"\n\n```text\n[^`]*```", "", text)


def main() -> None:
    PAGE.write_text(rewrite(without_output(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"{PAGE} written")


if __name__ == "__main__":
    main()
