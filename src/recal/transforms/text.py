"""Text: tokens dropped or masked, in strings (words between blanks), byte strings or arrays of token ids.

Token ids have the shape (n, tokens); `pad` marks what is no token, and ids in `special` (such as a separator) are never
touched. Texts of different lengths come as an object array of arrays of ids, or as `bytes`, and need no padding. Which
tokens are hit follows from `seed` and the text itself. At least one token of a text remains.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.transforms import arrays
from recal.transforms.base import BuiltIn, Word
from recal.transforms.randomness import Keys, choose, content_keys, key_of


class TokenTransform(BuiltIn):
    """Tells strings from ids, chooses tokens, and leaves to subclasses what happens to them."""

    __slots__ = ()

    share: float
    seed: int
    pad: int
    special: tuple[float, ...]
    modality: ClassVar[str] = "text"
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.05, 0.7)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    traceable: ClassVar[bool] = False
    strings_only: ClassVar[bool] = False
    """Whether token ids and bytes, which have no letters or sentences, are refused."""

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
        wanted = "a list of strings" if self.strings_only else "a list of strings or an array of token ids (n, tokens)"
        raise InputError(f"{self.kind} needs {wanted}, got {type(texts).__name__}. For a single text pass [text].")

    def _one(self, text: Any) -> Any:
        if isinstance(text, str):
            return self._text(text)
        if isinstance(text, bytes) and not self.strings_only:
            return self._row_alone(np.frombuffer(text, dtype=np.uint8)).tobytes()
        if isinstance(text, np.ndarray) and text.ndim == 1 and text.dtype.kind in "iu" and not self.strings_only:
            return self._row_alone(text)
        wanted = "strings" if self.strings_only else "strings, bytes or arrays of token ids"
        raise InputError(f"{self.kind} needs {wanted}, but there is {text!r}.")

    def _row_alone(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Transform one row that no other row's length has filled up; what is dropped makes it shorter."""
        if self.is_identity or len(ids) < 2:
            return ids.copy()
        free = np.flatnonzero(~np.isin(ids, np.array(self.special, dtype=np.int64)))
        return self._changed(ids, free[self._hit(content_keys(ids[None], self.kind, self.seed), len(free))[0]])

    def _changed(self, ids: NDArray[Any], hit: NDArray[np.intp]) -> NDArray[Any]:
        return np.delete(ids, hit)

    def _text(self, text: str) -> str:
        words = text.split()
        if self.is_identity or not words:
            return text
        key = np.array([key_of(text.encode(), f"{self.kind}:{self.seed}".encode())], dtype=np.uint64)
        hit = self._hit(key, len(words))[0]
        return " ".join(self._words(words, hit)) if hit.any() else text

    def _ids(self, ids: NDArray[Any]) -> NDArray[Any]:
        if ids.dtype.kind not in "iu" or ids.ndim != 2:
            raise InputError(
                f"Token ids are whole numbers of the shape (n, tokens), got dtype {ids.dtype}, shape {ids.shape}."
            )
        result = ids.copy()
        if self.is_identity:
            return result
        fixed = np.isin(ids, np.array([self.pad, *self.special], dtype=np.int64))
        keys = content_keys(ids, self.kind, self.seed)
        for row, key in enumerate(keys):
            free = np.flatnonzero(~fixed[row])
            if len(free):
                self._row(result[row], free[self._hit(key[None], len(free))[0]])
        return result

    def _hit(self, keys: Keys, size: int) -> NDArray[np.bool_]:
        """Mark the tokens to be hit, (n_keys, size)."""
        return choose(keys, size, self.share)

    def _words(self, words: list[str], hit: NDArray[np.bool_]) -> list[str]:
        raise NotImplementedError

    def _row(self, row: NDArray[Any], hit: NDArray[np.intp]) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class DropTokens(TokenTransform):
    """Drop `share` of the tokens; ids close up and the row is filled with `pad` on the side where it is padded.

    A model that takes an attention mask must get a new one, for instance ``ids != pad`` in `preprocess`.

    Examples
    --------
    >>> from recal.transforms import DropTokens
    >>> DropTokens(0.4)(["a small cat on the mat"])
    ['a small cat mat']
    """

    kind: ClassVar[str] = "tokendrop"
    assumes: ClassVar[str] = "the label does not rest on single words; a lost 'not' turns a sentence round"

    share: float
    seed: int = 0
    pad: int = 0
    special: tuple[float, ...] = ()

    def _words(self, words: list[str], hit: NDArray[np.bool_]) -> list[str]:
        return [word for word, lost in zip(words, hit) if not lost]

    def _row(self, row: NDArray[Any], hit: NDArray[np.intp]) -> None:
        kept = np.delete(row, hit)
        padded_left = row[0] == self.pad
        row[:] = self.pad
        if padded_left:
            row[len(row) - len(kept) :] = kept
        else:
            row[: len(kept)] = kept


@dataclass(frozen=True, slots=True)
class MaskTokens(TokenTransform):
    """Replace `share` of the tokens by `mask`, or by `mask_id` in arrays of ids and in bytes."""

    kind: ClassVar[str] = "tokenmask"
    assumes: ClassVar[str] = "the label does not rest on single words, and the model has met the mask before"

    share: float
    seed: int = 0
    pad: int = 0
    special: tuple[float, ...] = ()
    mask: Annotated[str, Word()] = "[MASK]"
    mask_id: int = -1

    def _words(self, words: list[str], hit: NDArray[np.bool_]) -> list[str]:
        return [self.mask if lost else word for word, lost in zip(words, hit)]

    def _changed(self, ids: NDArray[Any], hit: NDArray[np.intp]) -> NDArray[Any]:
        changed = ids.copy()
        self._row(changed, hit)
        return changed

    def _row(self, row: NDArray[Any], hit: NDArray[np.intp]) -> None:
        if self.mask_id < 0:
            raise InputError(
                "Masking token ids needs the mask's id, which depends on the tokenizer: "
                "write for instance 'tokenmask:0.2:mask_id=103'."
            )
        row[hit] = self.mask_id


@dataclass(frozen=True, slots=True)
class Cut(TokenTransform):
    """Leave out the last, or first, ``round(share * tokens)`` tokens: at least one, never all.

    Words keep their order and their neighbours, so a sentence stays a sentence up to the cut. Ids are filled up with
    `pad` as by `DropTokens`.

    Examples
    --------
    >>> from recal.transforms import Cut
    >>> Cut(0.3)(["a small cat on the mat"]), Cut(0.3, side="start")(["a small cat on the mat"])
    (['a small cat on'], ['cat on the mat'])
    """

    kind: ClassVar[str] = "cut"
    assumes: ClassVar[str] = "the words at that end alone do not make the label"
    keeps_information: ClassVar[bool] = True
    strengths: ClassVar[tuple[float, float]] = (0.05, 0.3)
    seed: ClassVar[int] = 0  # type: ignore[misc]  # nothing is drawn

    share: float
    side: Literal["end", "start"] = "end"
    pad: int = 0
    special: tuple[float, ...] = ()

    def _hit(self, keys: Keys, size: int) -> NDArray[np.bool_]:
        count = min(max(round(self.share * size), 1), size - 1)
        hit = np.zeros((len(keys), size), dtype=bool)
        hit[:, size - count :] = self.side == "end"
        hit[:, :count] |= self.side == "start"
        return hit

    def _words(self, words: list[str], hit: NDArray[np.bool_]) -> list[str]:
        return [word for word, lost in zip(words, hit) if not lost]

    def _row(self, row: NDArray[Any], hit: NDArray[np.intp]) -> None:
        DropTokens._row(self, row, hit)  # type: ignore[arg-type]


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
