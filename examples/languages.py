"""Which language is it? py3langid, trained by others on 140 languages, on lines of Debian's translated man pages.

Needs: pip install py3langid, and man pages: apt install manpages-de manpages-fr manpages-es manpages-pl manpages-it ...
Run:   python examples/languages.py
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import numpy as np
from ending import end_in_a_decision, parser

from recal import collect

MOST = 150  # lines of each language


def main() -> None:
    typed = parser(__doc__)
    typed.add_argument("--pages", type=Path, default=Path("/usr/share/man"), help="the folder of man pages")
    options = typed.parse_args()
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        sys.exit("This example needs py3langid: pip install py3langid")
    # Scores as they are: as probabilities, those of unlikely languages would be rounded to 0.
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=False)
    known = sorted(set(identifier.nb_classes))
    lines, languages = read_lines(options.pages, known)

    def model(texts: np.ndarray) -> np.ndarray:
        ranked = [dict(identifier.rank(text)) for text in texts]
        return np.array([[scores[language] for language in known] for scores in ranked])

    views = collect(
        model,
        lines,
        "cut:0.2+cut:0.2:side=start+cut:0.4+tokendrop:0.1-0.6:4+chardrop:0.05-0.3:4",
        labels=languages,
        classes=known,
    )
    end_in_a_decision(views, what="lines", record=options.record)


def read_lines(pages: Path, known: list[str]) -> tuple[list[str], list[str]]:
    """Return short lines of running text, and the folder in which each page lay as its language."""
    rng = np.random.default_rng(0)
    lines, languages = [], []
    for folder in sorted(path for path in pages.iterdir() if path.is_dir()):
        language = folder.name.partition("_")[0].partition(".")[0]
        if language in known:
            found = sorted({line for page in folder.rglob("*.gz") for line in running_text(page)})
            chosen = rng.choice(len(found), min(MOST, len(found)), replace=False)
            lines += [found[place] for place in chosen]
            languages += [language] * len(chosen)
    if len(set(languages)) < 3:
        sys.exit(
            f"{pages} holds translated man pages in {len(set(languages))} languages; three or more are needed. On "
            "Debian: apt install manpages-de manpages-fr manpages-es manpages-pl manpages-it manpages-ja manpages-ru"
        )
    return lines, languages


def running_text(page: Path) -> list[str]:
    """Lines of 15 to 60 characters without roff's commands."""
    try:
        text = gzip.decompress(page.read_bytes()).decode("utf-8")
    except (OSError, UnicodeDecodeError, EOFError):
        return []
    plain = [re.sub(r"\\f.|\\[-&e ]|\\\(..|\\", "", line).strip() for line in text.splitlines() if line[:1] not in ".'"]
    return [line for line in plain if 15 <= len(line) <= 60 and sum(c.isalpha() for c in line) > 0.7 * len(line)]


if __name__ == "__main__":
    main()
