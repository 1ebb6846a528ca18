"""Language models as classifiers of text: the scores of the answer options are the logits.

`multiple_choice` takes any function that scores answers and returns a model for `recal.collect`, so
that transformations of the question give views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.answers.scores import check_options
from recal.collecting.fingerprint import digest
from recal.collecting.models.base import Model, as_numpy
from recal.errors import InputError

Score = Callable[[list[str], Sequence[str]], Any]


class MultipleChoice(Model):
    """Prompts in, one score per answer option out."""

    gives_logits = True

    def __init__(self, score: Score, options: Sequence[str], template: str) -> None:
        if template.count("{input}") != 1:
            raise InputError(
                f"must hold {{input}} once, where the question goes, got {template!r}",
                argument="template",
            )
        self.score, self.options, self.template = score, check_options(options), template
        self.name = str(getattr(score, "__name__", type(score).__name__))
        self.classes = np.array(self.options)

    def fingerprint(self) -> str:
        return digest([self.score, list(self.options), self.template])

    def answer(self, batch: Any) -> NDArray[Any]:
        prompts = [self.template.replace("{input}", str(text)) for text in batch]
        scores = np.asarray(
            as_numpy(self.score(prompts, self.options), self.name), dtype=np.float64
        )
        if scores.shape != (len(prompts), len(self.options)):
            raise InputError(
                f"{self.name} gave scores of the shape {scores.shape} for {len(prompts)} prompts and "
                f"{len(self.options)} options; one row per prompt and one column per option are needed."
            )
        return scores


def multiple_choice(score: Score, options: Sequence[str], *, template: str = "{input}") -> Model:
    """Return a model from any function that scores answers: an API, a local language model, a
    search engine.

    Transformations change only the question; the template with its instructions is added
    afterwards, so a lossy view never loses the list of answers.

    Parameters
    ----------
    score : callable
        ``score(prompts, options)`` returns an array (n_prompts, n_options): log-probabilities, or
        any scores that are higher for likelier answers.
    options : sequence of str
        The answers, which become the classes.
    template : str
        Text around the question, with ``{input}`` in place of the question.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import collect
    >>> from recal.answers import multiple_choice
    >>> def score(prompts, options):  # stands for a language model
    ...     return np.array([[prompt.lower().count(option) for option in options] for prompt in prompts], dtype=float)
    >>> model = multiple_choice(score, ["cat", "dog"], template="Which animal is it? {input}")
    >>> views = collect(model, ["the cat and the dog and the cat", "a dog"], "tokendrop:0.3", labels=["cat", "dog"])
    >>> views.logits.tolist(), views.transforms
    ([[2.0, 1.0], [0.0, 1.0]], (DropTokens(share=0.3, seed=0, pad=0, special=()),))
    """
    return MultipleChoice(score, options, template)
