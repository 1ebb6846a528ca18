"""Transformations of text: words or characters of strings are dropped.

The tokens of a string are the words between blanks. Which ones are dropped follows from `seed` and
the text itself. At least one token of a text remains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.transforms.base import BuiltIn, Keys, Strengths, choose, count_of, key_of


class TokenTransform(BuiltIn):
    """Splits texts into tokens and drops some of them; subclasses may choose other tokens."""

    share: float
    seed: int
    modality = "text"
    strengths = Strengths(0.05, 0.7, identity=0)
    traceable = False
    joint = " "
    """The separator between the tokens of a string."""

    def __call__(self, texts: Any, /) -> Any:
        is_array = isinstance(texts, np.ndarray) and texts.ndim == 1
        if not is_array and not isinstance(texts, list | tuple):
            rule = f"{self.kind} needs a list of strings, got {type(texts).__name__}"
            raise InputError(rule, remedy="For a single text pass [text]")
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise InputError(f"{self.kind} needs strings, but there is {wrong[0]!r}.")
        changed = [self._text(text) for text in texts]
        return np.array(changed, dtype=object) if is_array else changed

    def _text(self, text: str) -> str:
        tokens = self._tokens(text)
        free = np.flatnonzero([bool(token.strip()) for token in tokens])
        if self.is_identity or not len(free):
            return text
        key = key_of(text.encode(), f"{self.kind}:{self.seed}".encode())
        hit = free[self._hit(np.array([key], dtype=np.uint64), len(free))[0]]
        if not len(hit):
            return text
        return self.joint.join(np.delete(np.array(tokens, dtype=object), hit))

    def _tokens(self, text: str) -> list[str]:
        """Return the parts of a string; blank parts are never dropped."""
        return text.split()

    def _hit(self, keys: Keys, size: int) -> NDArray[np.bool_]:
        """Mark the tokens to drop, (n_keys, size)."""
        return choose(keys, size, self.share)


@dataclass(frozen=True)
class DropTokens(TokenTransform):
    """Drop `share` of the words.

    Examples
    --------
    >>> from recal.transforms import DropTokens
    >>> DropTokens(0.4)(["a small cat on the mat"])
    ['a small cat mat']
    """

    kind = "tokendrop"
    assumes = "the label does not rest on single words; a lost 'not' reverses a sentence"

    share: float
    seed: int = 0


@dataclass(frozen=True)
class DropCharacters(TokenTransform):
    """Leave out ``round(share * characters)`` characters of a text; blanks are neither counted nor
    dropped.

    Examples
    --------
    >>> from recal.transforms import DropCharacters
    >>> DropCharacters(0.2)(["calibrated confidence"])
    ['calirate confiene']
    """

    kind = "chardrop"
    assumes = "the label can be read from a text with misprints"
    strengths = Strengths(0.02, 0.4, identity=0)
    joint = ""

    share: float
    seed: int = 0

    def _tokens(self, text: str) -> list[str]:
        return list(text)


@dataclass(frozen=True)
class Cut(TokenTransform):
    """Leave out the last, or first, ``round(share * tokens)`` tokens: at least one, never all.

    Words keep their order and their neighbours, so a sentence stays a sentence up to the cut.

    Examples
    --------
    >>> from recal.transforms import Cut
    >>> Cut(0.3)(["a small cat on the mat"]), Cut(0.3, side="start")(["a small cat on the mat"])
    (['a small cat on'], ['cat on the mat'])
    """

    kind = "cut"
    assumes = "the words at that end alone do not make the label"
    keeps_information = True
    strengths = Strengths(0.05, 0.3, identity=0)
    seed: ClassVar[int] = 0  # type: ignore[misc]  # nothing is drawn

    share: float
    side: Literal["end", "start"] = "end"

    def _hit(self, keys: Keys, size: int) -> NDArray[np.bool_]:
        count, places = count_of(self.share, size), np.arange(size)
        hit = places < count if self.side == "start" else places >= size - count
        return np.tile(hit, (len(keys), 1))
