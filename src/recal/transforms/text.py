"""Transformations of text: tokens are dropped or masked in strings, byte strings or arrays of token
ids.

The tokens of a string are the words between blanks. Token ids have the shape (n, tokens); `pad`
marks places without a token, and ids in `special` (such as a separator) are never changed. Texts of
different lengths come as an object array of arrays of ids, or as `bytes`, and need no padding. The
choice of tokens follows from `seed` and the text itself. At least one token of a text remains.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.transforms import arrays
from recal.transforms.base import (
    BuiltIn,
    Keys,
    Numbers,
    SpecText,
    Strengths,
    choose,
    content_keys,
    key_of,
)

# A sentence ends at a full stop or similar mark before a blank, or at the end of a line.
_SENTENCE = re.compile(r"[^\n]*?[.!?…]+[\"'”’)\]]*(?=\s)\s*|[^\n。！？]*[。！？]+\s*|[^\n]+\n*|\n+")


class TokenTransform(BuiltIn):
    """Splits texts into tokens and drops some of them; subclasses may choose other tokens or change
    them instead.
    """

    share: float
    seed: int
    pad: int
    special: tuple[float, ...]
    modality = "text"
    strengths = Strengths(0.05, 0.7, identity=0)
    traceable = False
    strings_only = False
    """Whether token ids and bytes, which have no letters or sentences, are refused."""
    joint = " "
    """The separator between the tokens of a string."""

    def __call__(self, texts: Any, /) -> Any:
        if isinstance(texts, list | tuple) and all(isinstance(text, str | bytes) for text in texts):
            return [self._one(text) for text in texts]
        if isinstance(texts, np.ndarray) and texts.dtype.kind in "UO" and texts.ndim == 1:
            changed = [self._one(text) for text in texts]
            if texts.dtype.kind == "U":
                return np.array(changed) if changed else texts.copy()
            result = np.empty(len(texts), dtype=object)
            result[:] = changed
            return result
        if not self.strings_only and (isinstance(texts, np.ndarray) or arrays.is_tensor(texts)):
            return arrays.apply(self._ids, texts, traceable=False)
        inputs = "a list of strings"
        if not self.strings_only:
            inputs += " or an array of token ids (n, tokens)"
        raise InputError(
            f"{self.kind} needs {inputs}, got {type(texts).__name__}. For a single text pass [text]."
        )

    def _one(self, text: Any) -> Any:
        if isinstance(text, str):
            return self._text(text)
        if isinstance(text, bytes) and not self.strings_only:
            return self._row(np.frombuffer(text, dtype=np.uint8)).tobytes()
        is_row = isinstance(text, np.ndarray) and text.ndim == 1 and text.dtype.kind in "iu"
        if is_row and not self.strings_only:
            return self._row(text)
        inputs = "strings" if self.strings_only else "strings, bytes or arrays of token ids"
        raise InputError(f"{self.kind} needs {inputs}, but there is {text!r}.")

    def _text(self, text: str) -> str:
        tokens = self._tokens(text)
        free = np.flatnonzero([bool(token.strip()) for token in tokens])
        if self.is_identity or not len(free):
            return text
        key = key_of(text.encode(), f"{self.kind}:{self.seed}".encode())
        hit = free[self._hit(np.array([key], dtype=np.uint64), len(free))[0]]
        if not len(hit):
            return text
        return self.joint.join(self._changed(np.array(tokens, dtype=object), hit))

    def _row(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Transform one row without padding; it becomes shorter if tokens are dropped."""
        if self.is_identity or len(ids) < 2:
            return ids.copy()
        free = np.flatnonzero(~np.isin(ids, np.array(self.special, dtype=np.int64)))
        hit = self._hit(content_keys(ids[None], self.kind, self.seed), len(free))[0]
        return self._changed(ids, free[hit])

    def _ids(self, ids: NDArray[Any]) -> NDArray[Any]:
        if ids.dtype.kind not in "iu" or ids.ndim != 2:
            raise InputError(
                f"Token ids are whole numbers of the shape (n, tokens), got dtype {ids.dtype}, shape {ids.shape}."
            )
        result = ids.copy()
        if self.is_identity:
            return result
        fixed = np.isin(ids, np.array([self.pad, *self.special], dtype=np.int64))
        for row, key in enumerate(content_keys(ids, self.kind, self.seed)):
            free = np.flatnonzero(~fixed[row])
            if len(free):
                changed = self._changed(ids[row], free[self._hit(key[None], len(free))[0]])
                lost = ids.shape[1] - len(changed)
                # Pad on the side that is padded already.
                padding = (lost, 0) if ids[row, 0] == self.pad else (0, lost)
                result[row] = np.pad(changed, padding, constant_values=self.pad)
        return result

    def _tokens(self, text: str) -> list[str]:
        """Return the parts of a string; blank parts are never dropped or changed."""
        return text.split()

    def _hit(self, keys: Keys, size: int) -> NDArray[np.bool_]:
        """Mark the tokens to drop or change, (n_keys, size)."""
        return choose(keys, size, self.share)

    def _changed(self, tokens: NDArray[Any], hit: NDArray[np.intp]) -> NDArray[Any]:
        """Return words, or ids, with the marked ones dropped or replaced."""
        return np.delete(tokens, hit)


@dataclass(frozen=True)
class DropTokens(TokenTransform):
    """Drop `share` of the tokens; the remaining ids close up, and `pad` fills the row on its padded
    side.

    A model that takes an attention mask must get a new one, for instance ``ids != pad`` in
    `preprocess`.

    Examples
    --------
    >>> from recal.transforms import DropTokens
    >>> DropTokens(0.4)(["a small cat on the mat"])
    ['a small cat mat']
    """

    kind = "tokendrop"
    assumes = "the label does not rest on single words; a lost 'not' turns a sentence round"

    share: float
    seed: int = 0
    pad: int = 0
    special: Numbers = ()


@dataclass(frozen=True)
class MaskTokens(TokenTransform):
    """Replace `share` of the tokens by `mask`, or by `mask_id` in arrays of ids and in bytes."""

    kind = "tokenmask"
    assumes = "the label does not rest on single words, and the model has met the mask before"

    share: float
    seed: int = 0
    pad: int = 0
    special: Numbers = ()
    mask: Annotated[str, SpecText()] = "[MASK]"
    mask_id: int = -1

    def _changed(self, tokens: NDArray[Any], hit: NDArray[np.intp]) -> NDArray[Any]:
        are_words = tokens.dtype == object
        if not are_words and self.mask_id < 0:
            raise InputError(
                "Masking token ids needs the mask's id, which depends on the tokenizer: "
                "write for instance 'tokenmask:0.2:mask_id=103'."
            )
        changed = tokens.copy()
        changed[hit] = self.mask if are_words else self.mask_id
        return changed


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
    strings_only = True
    joint = ""

    share: float
    seed: int = 0

    def _tokens(self, text: str) -> list[str]:
        return list(text)


@dataclass(frozen=True)
class DropSentences(TokenTransform):
    """Leave out ``round(share * sentences)`` sentences or lines of a text, at least one; a single
    sentence stays.

    Examples
    --------
    >>> from recal.transforms import DropSentences
    >>> DropSentences(0.3)(["It rains. The cat is wet. It does not mind."])
    ['It rains. The cat is wet. ']
    """

    kind = "sentencedrop"
    assumes = "the label does not rest on a single sentence"
    strings_only = True
    joint = ""

    share: float
    seed: int = 0

    def _tokens(self, text: str) -> list[str]:
        return _SENTENCE.findall(text)


@dataclass(frozen=True)
class Cut(TokenTransform):
    """Leave out the last, or first, ``round(share * tokens)`` tokens: at least one, never all.

    Words keep their order and their neighbours, so a sentence stays a sentence up to the cut. Rows
    of ids are filled with `pad`, as in `DropTokens`.

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
    pad: int = 0
    special: Numbers = ()

    def _hit(self, keys: Keys, size: int) -> NDArray[np.bool_]:
        count = min(max(round(self.share * size), 1), size - 1)
        hit = np.zeros((len(keys), size), dtype=bool)
        hit[:, size - count :] = self.side == "end"
        hit[:, :count] |= self.side == "start"
        return hit
