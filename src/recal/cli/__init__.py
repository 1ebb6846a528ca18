"""The command line: parses, calls, prints; no logic.

A command is one file here and one line in `app.COMMANDS`.
"""

from __future__ import annotations


def main() -> None:
    """The `recal` command."""
    try:
        from recal.cli.app import run
    except KeyboardInterrupt:  # Ctrl-C before `run` starts; `run` itself handles later ones
        raise SystemExit(130) from None
    raise SystemExit(run())
