"""Commands as a user types them."""

from __future__ import annotations

import json
import shlex
from typing import Any

from recal.cli.app import run


def typed(line: str) -> int:
    """Run what was typed after `recal`, and return the exit code."""
    return run(shlex.split(line))


def answer(capsys, line: str) -> Any:
    """Run what was typed after `recal` with --json, and return the value that it prints."""
    capsys.readouterr()
    assert typed(f"{line} --json") == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)
