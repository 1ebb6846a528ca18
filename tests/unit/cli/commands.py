"""Commands as a user types them."""

from __future__ import annotations

import shlex

from recal.cli.app import run


def typed(line: str) -> int:
    """Run what was typed after `recal`, and return the exit code."""
    return run(shlex.split(line))
