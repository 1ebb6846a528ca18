"""Texts without some of their letters or sentences. These take strings; token ids have neither."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from recal.transforms.content import choose, key_of
from recal.transforms.text import TokenTransform

# A sentence ends at a full stop and its kin before a blank, or at a line's end.
_SENTENCE = re.compile(r"[^\n]*?[.!?…]+[\"'”’)\]]*(?=\s)\s*|[^\n。！？]*[。！？]+\s*|[^\n]+\n*|\n+")


class StringTransform(TokenTransform):
    """Splits a string into pieces that together are the string, and leaves some of them out."""

    __slots__ = ()

    strings_only: ClassVar[bool] = True
    pad: ClassVar[int] = 0  # type: ignore[misc]
    special: ClassVar[tuple[float, ...]] = ()  # type: ignore[misc]

    def _text(self, text: str) -> str:
        pieces = self._pieces(text)
        free = [place for place, piece in enumerate(pieces) if piece.strip()]
        if self.is_identity or len(free) < 2:
            return text
        key = np.array([key_of(text.encode(), f"{self.kind}:{self.seed}".encode())], dtype=np.uint64)
        lost = set(np.array(free)[choose(key, len(free), self.share)[0]].tolist())
        return "".join(piece for place, piece in enumerate(pieces) if place not in lost)

    @abstractmethod
    def _pieces(self, text: str) -> list[str]:
        """Return parts that together are the text."""


@dataclass(frozen=True, slots=True)
class DropCharacters(StringTransform):
    """Leave out ``round(share * characters)`` characters of a text, blanks not counted and never lost.

    Examples
    --------
    >>> from recal.transforms import DropCharacters
    >>> DropCharacters(0.2)(["calibrated confidence"])
    ['calirate confiene']
    """

    kind: ClassVar[str] = "chardrop"
    assumes: ClassVar[str] = "the label can be read from a text with misprints"
    strengths: ClassVar[tuple[float, float]] = (0.02, 0.4)

    share: float
    seed: int = 0

    def _pieces(self, text: str) -> list[str]:
        return list(text)


@dataclass(frozen=True, slots=True)
class DropSentences(StringTransform):
    """Leave out ``round(share * sentences)`` sentences or lines of a text, at least one; a single one stays.

    Examples
    --------
    >>> from recal.transforms import DropSentences
    >>> DropSentences(0.3)(["It rains. The cat is wet. It does not mind."])
    ['It rains. The cat is wet. ']
    """

    kind: ClassVar[str] = "sentencedrop"
    assumes: ClassVar[str] = "the label does not rest on a single sentence"

    share: float
    seed: int = 0

    def _pieces(self, text: str) -> list[str]:
        return _SENTENCE.findall(text)
