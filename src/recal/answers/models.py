"""Language models as classifiers of text: the scores of the answer options are the logits.

`multiple_choice` takes any function that scores answers, `language_model` a Hugging Face model and
`endpoint_model` a server. All three return models for `recal.collect`, so that transformations of
the question give views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.answers.endpoint import Endpoint, Ledger
from recal.answers.scores import MOST_FOR_MISSING, answer_rows, check_beginnings, check_options
from recal.collecting.fingerprint import digest
from recal.collecting.models.base import Model, as_numpy
from recal.errors import InputError

Score = Callable[[list[str], Sequence[str]], Any]


class MultipleChoice(Model):
    """Prompts in, one score per answer option out."""

    gives_logits = True

    def __init__(
        self, score: Score, options: Sequence[str], template: str, identity: Any = None
    ) -> None:
        if template.count("{input}") != 1:
            raise InputError(
                f"must hold {{input}} once, where the question goes, got {template!r}",
                argument="template",
            )
        self.score, self.options, self.template = score, check_options(options), template
        self.identity = (
            score if identity is None else identity
        )  # a server is identified by its address
        self.name = str(getattr(score, "__name__", type(score).__name__))
        self.classes = np.array(self.options)

    def fingerprint(self) -> str:
        return digest([self.identity, list(self.options), self.template])

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


def language_model(
    model: Any,
    tokenizer: Any,
    options: Sequence[str],
    *,
    template: str = "{input}",
    at_a_time: int = 8,
) -> Model:
    """Return a model that reads the scores of the answer tokens from a Hugging Face language model.

    The score of an option is the logit of its first token after the prompt, so options must begin
    with different tokens: letters, or words with the blank before them (" yes").
    """
    firsts = [tokenizer(option, add_special_tokens=False)["input_ids"][:1] for option in options]
    if not all(firsts) or len({first[0] for first in firsts}) != len(options):
        raise InputError(
            f"The options {list(options)} must begin with different tokens; use letters such as A, B, C."
        )

    from recal.collecting.models.torch import TorchModel

    torch_model = TorchModel(model)

    def score(prompts: list[str], _options: Sequence[str]) -> NDArray[Any]:
        rows = []
        order = np.argsort([len(prompt) for prompt in prompts], kind="stable")
        for start in range(0, len(order), at_a_time):
            encoded = tokenizer(
                [prompts[row] for row in order[start : start + at_a_time]],
                return_tensors="pt",
                padding=True,
                padding_side="left",
            )
            with torch_model.running():
                logits = model(
                    **{name: value.to(torch_model.device) for name, value in encoded.items()}
                ).logits[:, -1]
            rows.append(logits[:, [first[0] for first in firsts]].float().cpu().numpy())
        return np.concatenate(rows)[np.argsort(order)]

    score.__name__ = type(model).__name__
    return MultipleChoice(score, options, template)


def endpoint_model(
    url: str,
    model: str,
    options: Sequence[str],
    *,
    template: str = "{input}",
    ledger: Path | None = None,
    floor: float = MOST_FOR_MISSING,
    **settings: Any,
) -> Model:
    """Return a model that asks a server for the log-probabilities of the options.

    Parameters
    ----------
    url, model : the address, such as http://localhost:8000/v1, and the model's name there
    options, template : as in `multiple_choice`
    ledger : path, optional
        A file that stores the answers, so that you never pay twice for the same one.
    floor : float
        The probability of options that the server does not return.
    **settings : `max_tokens`, `top_logprobs`, `timeout`, `retries`, `concurrency`
        As in `recal.answers.Endpoint`.
    """
    server = Endpoint(url, model, **settings)
    check_beginnings(options, server.max_tokens)
    kept = None if ledger is None else Ledger(ledger)

    def score(prompts: list[str], names: Sequence[str]) -> NDArray[np.float64]:
        answers = Ledger() if kept is None else kept
        server.answer(prompts, answers)
        rows, _ = answer_rows([answers.answers[server.key_of(prompt)] for prompt in prompts], names)
        return np.where(np.isnan(rows), np.log(floor), rows)

    score.__name__ = model
    return MultipleChoice(
        score, options, template, identity=[url, model, server.max_tokens, server.top_logprobs]
    )
