"""Responses of chat completions, as a server sends them or as the Batch API stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recal.answers.scores import IDS, OptionScores, answer_rows, row_ids
from recal.errors import FileError, InputError
from recal.files.tables import text_of

LABELS = ("label", "target", "answer", "correct_answer")
# What each reader of a log returns: the scores, and the right options if the log has them.
Labelled = tuple[OptionScores, list[str] | None]


def body_of(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the chat completion of a line: the line itself, or the part that the Batch API wraps."""
    response = line if isinstance(line.get("choices"), list) else line.get("response")
    body = response.get("body", response) if isinstance(response, dict) else None
    return body if isinstance(body, dict) else None


def read_responses(
    path: Path, lines: list[dict[str, Any]], options: Sequence[str] | None, *, by_id: bool
) -> Labelled:
    """Read chat completions, or older completions, with logprobs.

    The id of a completion names the response and not the question, so it counts only for labels
    that are joined `by_id`.
    """
    if options is None:
        raise InputError(f"Name the options that {path} answers with, such as --options A,B,C,D.")
    answers = [token_positions(body_of(line) or {}) for line in lines]
    if not any(answers):
        raise FileError(
            f"{path} holds no logprobs. Ask the model with logprobs=true and top_logprobs=20, and log the whole "
            "response."
        )
    rows, named = answer_rows(answers, options)
    labels = [next((line[name] for name in LABELS if name in line), None) for line in lines]
    names = [name for name in IDS if name != "id" or by_id or "choices" not in lines[0]]
    ids, has_ids = row_ids(lines, names)
    models = sorted(
        {str(body["model"]) for line in lines if "model" in (body := body_of(line) or {})}
    )
    how = (("options", *options), *([("model", *models)] if models else []))
    scores = OptionScores(ids, rows, tuple(options), named=named, has_ids=has_ids, asked=how)
    return scores, None if None in labels else [text_of(label) for label in labels]


def has_failed(line: Mapping[str, Any]) -> bool:
    """Whether a line of the Batch API says that a request failed; a filtered one was refused."""
    response, error = line.get("response"), line.get("error")
    status = response.get("status_code", 200) if isinstance(response, dict) else 200
    body = body_of(line) or {}
    error = error or body.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return (bool(error) or status != 200) and code != "content_filter"


def token_positions(body: Mapping[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """Return each token of a completion with the likeliest tokens at its position; empty if there
    are no logprobs.

    Chat completions hold ``logprobs.content``; older completions hold parallel lists ``tokens`` and
    ``top_logprobs``.
    """
    choices = body.get("choices") or [{}]
    logprobs = choices[0].get("logprobs") if isinstance(choices[0], dict) else None
    if not isinstance(logprobs, dict):
        return []
    try:
        content, tokens = logprobs.get("content"), logprobs.get("tokens")
        entries: Iterable[tuple[Any, Any, Any]] = []
        if isinstance(content, list):
            tops = [
                {other["token"]: other["logprob"] for other in one.get("top_logprobs") or []}
                for one in content
            ]
            entries = [(one["token"], one["logprob"], top) for one, top in zip(content, tops)]
        elif isinstance(tokens, list):
            entries = zip(
                tokens,
                logprobs["token_logprobs"],
                logprobs.get("top_logprobs") or [{}] * len(tokens),
            )
        positions = []
        for token, own, top in entries:
            likeliest = {str(other): float(value) for other, value in (top or {}).items()}
            if own is not None:
                likeliest.setdefault(str(token), float(own))
            positions.append((str(token), likeliest))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(
            f"A response has logprobs in an unknown form: {type(error).__name__} {error}."
        ) from error
    return positions
