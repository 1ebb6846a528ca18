"""Text that users read keeps to the field's words: a short list of words stays out of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Each with what to write instead.
BANNED = {
    r"(dis)?honest(y|ly)?": "calibrated, miscalibrated",
    r"surer|surest": "more confident, most confident",
    r"too shy": "underconfident",
    r"another world": "inputs that differ from the held-out ones",
    r"amiss": "wrong",
    r"roads": "ways, or a heading such as 'Where to go next'",
    r"less is better": "lower is better",
    r"gone on with": "resumed",
    r"would hardly": "a probability",
    r"hangs? on (a )?(single|few)": "depends on individual samples",
    r"answers? answers": "returned",
    r"nobody named": "default",
    r"errors promised|promised errors": "errors expected",
    r"thousand million": "billion",
    r"is there already": "already exists",
    r"mends?|mended": "repair, fix, correct",
    r"cannot be told": "is ambiguous, is unknown",
    r"how sure|too sure": "confidence, overconfident",
    r"(that|those|they|it|views) pays?": "help, lower the loss",
    r"over-(confident|fits?|fitted|fitting)": "overconfident, overfit",
    r"for want of|in vain|of now|such as they are|in truth|these very": "a plain phrase",
    r"next to nothing": "almost nothing",
    r"whatever (the|a) model is worth": "for any model",
    r"rubbish|strangers?|amid|thrown together": "a plain word",
}
WORDS = re.compile("|".join(rf"\b(?:{words})\b" for words in BANNED), re.IGNORECASE)
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
