"""Logs of language models as Views: lm-evaluation-harness samples, OpenAI-style responses, tables of options."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.answers.scores import JoinedViews, OptionScores, answer_row, join_scores, unique_ids
from recal.answers.tables import read_table
from recal.errors import FileError, InputError
from recal.views import Views

_IDS = ("custom_id", "doc_hash", "id", "question_id", "doc_id")
_LABELS = ("label", "target", "answer", "correct_answer")
_LINES = (".jsonl", ".json", ".ndjson")
# Probabilities may sum to a little more than 1 by rounding.
_ROUNDING = 1e-6


def read_log(
    path: str | os.PathLike[str],
    *,
    views: Mapping[str, str | os.PathLike[str]] | None = None,
    options: Sequence[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    label_column: str | None = None,
    floor: float | None = None,
) -> Views:
    """Read the scores of answer options from a log; other runs over the same questions become views.

    The format is recognised: samples of lm-evaluation-harness (`--log_samples`), chat completions with
    ``logprobs.content[].top_logprobs``, one per line or as the Batch API writes them, or a table with one column per
    option.

    Parameters
    ----------
    path : the log: .jsonl, .csv, .tsv or .parquet
    views : mapping of name to path, optional
        Logs of other prompts, or of other ways to ask the same questions.
    options : sequence of str, optional
        The answers, such as A, B, C, D. Needed for responses; also the columns of a table.
    labels : path, optional
        A table with the right option of each question, joined by `custom_id` or `id`, or row by row.
    label_column : str, optional
        The column of the right option.
    floor : float, optional
        The probability of options that were not returned; by default half of the smallest returned probability, and
        at most 1e-5.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from recal.answers import read_log
    >>> line = {"doc_hash": "a1", "target": "1", "filtered_resps": [["-2.5", "False"], ["-0.1", "True"]]}
    >>> path = Path(tempfile.mkdtemp()) / "samples.jsonl"
    >>> _ = path.write_text(json.dumps(line))
    >>> read_log(path)
    Views: 1 samples, 2 classes, 0 transformations, labelled
    """
    return open_log(path, views or {}, options, labels, label_column, floor).views


def open_log(
    path: str | os.PathLike[str],
    views: Mapping[str, str | os.PathLike[str]],
    options: Sequence[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    label_column: str | None = None,
    floor: float | None = None,
) -> JoinedViews:
    """Read a log as `read_log` does, and tell what was missing."""
    truths = None if labels is None else read_labels(Path(labels), label_column)
    scores = read_scores(Path(path), options, truths, label_column)
    others = {name: read_scores(Path(other), options, None, label_column) for name, other in views.items()}
    return join_scores(scores, others, floor)


def read_scores(
    path: Path,
    options: Sequence[str] | None = None,
    truths: Mapping[str, str] | Sequence[str] | None = None,
    label_column: str | None = None,
) -> OptionScores:
    """Read one log in any of the formats."""
    if path.suffix.lower() not in _LINES:
        scores = _read_option_table(path, options, label_column)
    else:
        lines = list(read_lines(path))
        if not lines:
            raise FileError(f"{path} holds no lines.")
        if "filtered_resps" in lines[0] or "resps" in lines[0]:
            scores = _read_harness(path, lines)
        elif _body(lines[0]) is not None or "error" in lines[0]:
            scores = _read_responses(path, lines, options, truths)
        else:
            raise FileError(
                f"{path} is no log that recal knows: its first line has {', '.join(list(lines[0])[:8])}. Known are "
                "lm-evaluation-harness samples (filtered_resps), chat completions (choices), and Batch API output "
                "(custom_id, response)."
            )
    return scores if truths is None else _with_truths(path, scores, truths)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise FileError(f"{path}, line {number} is not JSON: {error}.") from error
                if not isinstance(value, dict):
                    raise FileError(f"{path}, line {number} must hold an object, got {type(value).__name__}.")
                yield value
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error


def read_labels(path: Path, label_column: str | None = None) -> dict[str, str] | list[str]:
    """Read the right options: by id if the table has a column of ids, else in the order of the rows."""
    columns = read_table(path)
    label = _column(path, columns, label_column, _LABELS, "labels")
    texts = [text_of(value) for value in columns[label]]
    name = next((name for name in _IDS if name in columns), None)
    return texts if name is None else {text_of(one): text for one, text in zip(columns[name], texts)}


def text_of(value: Any) -> str:
    """Return a value of a table as text; 3.0 is written 3, as ids are."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _column(path: Path, columns: Mapping[str, Any], wanted: str | None, usual: Sequence[str], what: str) -> str:
    if wanted is not None and wanted in columns:
        return wanted
    if wanted is None:
        for name in usual:
            if name in columns:
                return name
    named = f"no column {wanted!r}" if wanted is not None else f"no column of {what} ({', '.join(usual)})"
    raise InputError(f"{path} has {named}; it has {', '.join(columns)}. Name it with --label-column.")


def _with_truths(path: Path, scores: OptionScores, truths: Mapping[str, str] | Sequence[str]) -> OptionScores:
    if isinstance(truths, Mapping):
        if absent := [one for one in scores.ids if one not in truths]:
            raise InputError(
                f"The labels lack {len(absent):,} of {len(scores.ids):,} questions of {path}, such as {absent[0]!r}."
            )
        labels = [truths[one] for one in scores.ids]
    elif len(truths) != len(scores.ids):
        raise InputError(f"There are {len(truths):,} labels for the {len(scores.ids):,} questions of {path}.")
    else:
        labels = list(truths)
    return OptionScores(
        scores.ids,
        scores.log_probs,
        scores.options,
        label_array(path, labels, scores.options, scores.log_probs.shape[1]),
    )


def label_array(where: Any, labels: Sequence[str], names: Sequence[str] | None, n_options: int) -> NDArray[Any]:
    """Return labels as names of options if these have names, else as columns; a column's number names an option too."""
    if names is not None and set(labels) <= set(names):
        return np.array(labels)
    places = {str(place): place for place in range(n_options)}
    if odd := [label for label in labels if label not in places]:
        allowed = ", ".join(names) if names is not None else f"0 to {n_options - 1}"
        raise InputError(f"The label {odd[0]!r} of {where} is none of the options; they are {allowed}.")
    columns = np.array([places[label] for label in labels])
    return columns if names is None else np.array(names)[columns]


# lm-evaluation-harness


def _read_harness(path: Path, lines: list[dict[str, Any]]) -> OptionScores:
    rows, targets, choices = [], [], []
    for number, line in enumerate(lines, 1):
        scores = _likelihoods(line)
        if scores is None:
            raise FileError(
                f"{path}, line {number} holds generated text and no scores of options. Views need a multiple-choice "
                "task (log-likelihoods), or chat completions with logprobs."
            )
        given = _choices(line)
        if given is not None and len(given) == len(scores) and len(scores) % 2 == 0:
            half = len(scores) // 2  # acc_mutual_info scores each option once more without the question
            if given[:half] == given[half:]:
                scores, given = scores[:half], given[:half]
        rows.append(scores)
        targets.append(line.get("target"))
        choices.append(given)
    width = max(map(len, rows))
    log_probs = np.array([row + [np.nan] * (width - len(row)) for row in rows], dtype=np.float64)
    log_probs[~np.isfinite(log_probs)] = np.nan
    shared = choices[0] if choices[0] is not None and all(one == choices[0] for one in choices) else None
    options = shared if shared is not None and len(set(shared)) == len(shared) == width else None
    places = [_target(path, target, one, number) for number, (target, one) in enumerate(zip(targets, choices), 1)]
    labels = None if None in places else np.array(places)
    if labels is not None and (labels < 0).any() | (labels >= width).any():
        raise FileError(f"{path} has the target {int(labels.max())}, and {width} options.")
    ids = unique_ids([line.get("doc_hash", line.get("doc_id", place)) for place, line in enumerate(lines)])
    named = labels if labels is None or options is None else np.array(options)[labels]
    return OptionScores(ids, log_probs, None if options is None else tuple(options), named)


def _likelihoods(line: Mapping[str, Any]) -> list[float] | None:
    """Return one log-likelihood per option: [-1.2, false], ["-1.2", "False"], [[-1.2, false]] and -1.2 are all met."""
    for name in ("filtered_resps", "resps"):
        values = line.get(name)
        if not isinstance(values, list) or len(values) < 2:
            continue
        numbers = [_first_number(value) for value in values]
        if None not in numbers:
            return [float(number) for number in numbers if number is not None]
    return None


def _first_number(value: Any) -> float | None:
    while isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _choices(line: Mapping[str, Any]) -> list[str] | None:
    """Return the options' texts from the arguments of the requests, which newer versions write as gen_args_0, ..."""
    arguments = line.get("arguments")
    if isinstance(arguments, dict):
        arguments = [[one.get("arg_0"), one.get("arg_1")] for one in arguments.values() if isinstance(one, dict)]
    if not isinstance(arguments, list) or not all(isinstance(one, list) and len(one) > 1 for one in arguments):
        return None
    return [str(one[1]).strip() for one in arguments]


def _target(path: Path, target: Any, choices: list[str] | None, number: int) -> int | None:
    """Return the column of the right option: its number, a list of one number, or its text."""
    value = target[0] if isinstance(target, list) and target else target
    if value is None or value == []:
        return None
    text = str(value).strip()
    if choices is not None and text in choices:
        return choices.index(text)
    try:
        return int(text)
    except ValueError:
        raise FileError(f"{path}, line {number}: the target {text[:40]!r} is none of the options.") from None


# OpenAI-style responses


def _body(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the chat completion of a line: the line itself, or what the Batch API puts around it."""
    if isinstance(line.get("choices"), list):
        return dict(line)
    response = line.get("response")
    if isinstance(response, dict):
        body = response.get("body", response)
        if isinstance(body, dict):
            return body
    return None


def _read_responses(
    path: Path,
    lines: list[dict[str, Any]],
    options: Sequence[str] | None,
    truths: Mapping[str, str] | Sequence[str] | None,
) -> OptionScores:
    if options is None and truths is not None:
        options = sorted(set(truths.values() if isinstance(truths, Mapping) else truths))
    if options is None:
        raise InputError(f"Name the options that {path} answers with, such as --options A,B,C,D.")
    rows, n_without = [], 0
    for line in lines:
        positions = token_positions(_body(line) or {})
        n_without += not positions
        rows.append(answer_row(positions, options))
    if n_without == len(lines):
        raise FileError(
            f"{path} holds no logprobs. Ask the model with logprobs=true and top_logprobs=20, and log the whole "
            "response."
        )
    ids = unique_ids([line.get("custom_id", line.get("id", place)) for place, line in enumerate(lines)])
    own = [next((line[name] for name in _LABELS if name in line), None) for line in lines]
    labels = None if None in own or truths is not None else own
    scores = OptionScores(ids, np.array(rows), tuple(options))
    return scores if labels is None else _with_truths(path, scores, [text_of(label) for label in labels])


def token_positions(body: Mapping[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """Return each token of a completion with the likeliest tokens in its place; empty if there are no logprobs.

    Chat completions hold ``logprobs.content``, older completions parallel lists ``tokens`` and ``top_logprobs``.
    """
    choices = body.get("choices") or [{}]
    logprobs = choices[0].get("logprobs") if isinstance(choices[0], dict) else None
    if not isinstance(logprobs, dict):
        return []
    positions = []
    try:
        if isinstance(logprobs.get("content"), list):
            for one in logprobs["content"]:
                top = {str(other["token"]): float(other["logprob"]) for other in one.get("top_logprobs") or []}
                top.setdefault(str(one["token"]), float(one["logprob"]))
                positions.append((str(one["token"]), top))
        elif isinstance(logprobs.get("tokens"), list):
            tops = logprobs.get("top_logprobs") or [{}] * len(logprobs["tokens"])
            for token, own, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops):
                likeliest = {str(other): float(value) for other, value in (top or {}).items()}
                if own is not None:
                    likeliest.setdefault(str(token), float(own))
                positions.append((str(token), likeliest))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"A response has logprobs in an unknown form: {type(error).__name__} {error}.") from error
    return positions


# A table with one column per option


def _read_option_table(path: Path, options: Sequence[str] | None, label_column: str | None) -> OptionScores:
    columns = read_table(path)
    name = next((name for name in _IDS if name in columns), None)
    label = label_column or next((one for one in _LABELS if one in columns), None)
    if label_column is not None:
        _column(path, columns, label_column, _LABELS, "labels")
    if options is None:
        taken = {name, label}
        options = [one for one, values in columns.items() if one not in taken and values.dtype.kind in "iuf"]
    if absent := [option for option in options if option not in columns]:
        raise InputError(f"{path} has no column {absent[0]!r}; it has {', '.join(columns)}.")
    if len(options) < 2:
        raise InputError(f"{path} needs one column of scores per option; its columns are {', '.join(columns)}.")
    values = np.column_stack([np.asarray(columns[option], dtype=np.float64) for option in options])
    present = values[~np.isnan(values)]
    if len(present) and present.min() >= 0.0 and present.max() <= 1.0 + _ROUNDING:
        with np.errstate(divide="ignore"):
            values = np.log(values)
    elif len(present) and present.max() > 0.0:
        top = np.nanmax(values, axis=1, keepdims=True)  # logits, which a softmax turns into probabilities
        values = values - top - np.log(np.nansum(np.exp(values - top), axis=1, keepdims=True))
    values[~np.isfinite(values)] = np.nan
    rows = range(len(values))
    ids = unique_ids([text_of(one) for one in columns[name]] if name is not None else rows)
    scores = OptionScores(ids, values, tuple(options))
    return scores if label is None else _with_truths(path, scores, [text_of(one) for one in columns[label].tolist()])
