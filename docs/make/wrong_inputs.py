"""Run every mistake of tests/unit/cli/wrong_inputs.txt and write docs/wrong-inputs.md: python docs/make/wrong_inputs.py

What stands on the page was printed by the commands; the tests hold the same list to what it says.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shlex
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

from recal.cli.app import run

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "wrong-inputs.md"
_HEAD = """# Error messages

{count} common mistakes, each with the command and its message. Every message is printed on standard error. It names the
option or the file and says what to do. The exit code is 2 (130 after Ctrl-C). No files are written, and existing files
are kept. Warnings do not stop a command. If your own model, module or transformation fails, the message says so; set
`RECAL_DEBUG=1` to see the traceback.

The page is written by `python docs/make/wrong_inputs.py` from what the commands print.
"""


def cases() -> Any:
    """Return the module that holds the list and makes its files."""
    path = DOCS.parent / "tests" / "unit" / "cli" / "wrong_inputs.py"
    spec = importlib.util.spec_from_file_location("wrong_inputs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["wrong_inputs"] = module
    spec.loader.exec_module(module)
    return module


def page() -> str:
    """Return the page, with every command run in one new folder."""
    wrong = cases()
    lines = [_HEAD.format(count=len(wrong.CASES))]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        wrong.build(Path(folder))
        os.environ.pop("RECAL_DEBUG", None)
        for topic, found in groupby(wrong.CASES, key=lambda case: case.topic):
            lines += [f"## {topic}\n", "| mistake | typed | answer |", "|---|---|---|"]
            lines += [_row(wrong, case, folder) for case in found]
            lines.append("")
    return "\n".join(lines)


def _row(wrong: Any, case: Any, folder: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), wrong.circumstances(case.around):
        run(shlex.split(case.typed))
    said = " ".join((err.getvalue() or out.getvalue()).removeprefix("recal: ").split()).replace(folder, "FOLDER")
    mistake = case.mistake + (f" ({case.around})" if case.around and case.around not in case.mistake else "")
    return f"| {mistake} | `recal {_cell(case.typed)}` | {_cell(_shown(said))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _shown(text: str) -> str:
    """Return a sentence as code, which a page shows letter by letter: two dashes stay two dashes."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} written")


if __name__ == "__main__":
    main()
