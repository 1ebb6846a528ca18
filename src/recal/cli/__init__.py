"""The command line: parses, calls, prints; no logic. A command is one file here and one line in `app.COMMANDS`."""

from __future__ import annotations


def main() -> None:
    """The `recal` command."""
    from recal.cli.app import run

    raise SystemExit(run())
