"""Text that users read keeps to the field's words: a short list of words stays out of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BANNED = (
    r"(dis)?honest(y|ly)?|surer|surest|too shy|another world|amiss|roads|less is better|"
    r"gone on with|would hardly|hangs? on (a )?(single|few)|answers? answers|nobody named|"
    r"errors promised|promised errors|thousand million|is there already|mends?|mended|"
    r"cannot be told|how sure|too sure|(that|those|they|it|views) pays?|"
    r"over-(confident|fits?|fitted|fitting)|"
    r"for want of|in vain|of now|such as they are|in truth|these very|next to nothing|"
    r"whatever (the|a) model is worth|rubbish|strangers?|amid|thrown together"
)
WORDS = re.compile(rf"\b(?:{BANNED})\b", re.IGNORECASE)
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
]
MODULES = sorted((ROOT / "src" / "recal").rglob("*.py")) + sorted((ROOT / "examples").glob("*.py"))


def test_pages_use_the_fields_words():
    words = {}
    for page in PAGES:
        text = re.sub(
            r"`[^`]*`|\]\([^)]*\)", " ", page.read_text(encoding="utf-8")
        )  # names in code, and links
        words[str(page.relative_to(ROOT))] = _banned(text)
    assert {page: banned for page, banned in words.items() if banned} == {}


def test_messages_help_and_docstrings_use_the_fields_words():
    found = {}
    for path in MODULES:
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        texts = (node.value for node in tree if isinstance(node, ast.Constant))
        shown = "\n|\n".join(text for text in texts if isinstance(text, str))
        found[str(path.relative_to(ROOT))] = _banned(re.sub(r"`[^`]*`", " ", shown))
    assert {path: banned for path, banned in found.items() if banned} == {}


def _banned(text: str) -> list[str]:
    return [found.group() for found in WORDS.finditer(" ".join(text.split()))]
