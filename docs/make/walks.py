"""Measure the walks of docs/walks.md with an installed recal, and write the table of times anew.

Run:   python docs/make/walks.py --recal VENV/bin/recal
"""

from __future__ import annotations

import argparse
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[1] / "walks.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recal", default="recal", help="the command to measure")
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        prepare(page, Path(place))
        for title, commands in re.findall(
            r"^## ([^\n]+)\n(?:(?!^## ).)*?^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL
        ):
            seconds = [measure([options.recal, *shlex.split(line)[1:]], place) for line in commands.splitlines()]
            row = re.compile(rf"^(\| \[{re.escape(title)}\].*\| )[^|]*\|$", re.MULTILINE | re.IGNORECASE)
            page, found = row.subn(rf"\g<1>{' + '.join(f'{one:.1f}' for one in seconds)} |", page)
            assert found == 1, f"the table has no row for {title}"
            print(title, seconds)
    PAGE.write_text(page, encoding="utf-8")


def prepare(page: str, place: Path) -> None:
    """Make the models and data, as the page's Python blocks do, with this Python."""
    script = place / "prepare.py"
    script.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)))
    subprocess.run([sys.executable, str(script)], cwd=place, check=True, stdout=subprocess.DEVNULL)


def measure(command: list[str], place: str) -> float:
    """Return the CPU seconds of a command: walls depend on what else a machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


if __name__ == "__main__":
    main()
