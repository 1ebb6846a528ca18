"""Logs of language models as Views: lm-evaluation-harness samples, OpenAI-style responses, tables
of options.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.answers.scores import (
    IDS,
    JoinedViews,
    OptionScores,
    answer_rows,
    check_options,
    join_scores,
    row_ids,
)
from recal.errors import FileError, InputError
from recal.files.tables import cell_text, read_lines, read_table
from recal.views import Views

LABEL_COLUMNS = ("label", "target", "answer", "correct_answer")
# What each reader of a log returns: the scores, and the right options if the log has them.
LabelledScores = tuple[OptionScores, list[str] | None]


def read_log(
    path: str | os.PathLike[str],
    *,
    views: Mapping[str, str | os.PathLike[str]] | None = None,
    options: Sequence[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    label_column: str | None = None,
    floor: float | None = None,
    scores: str = "acc",
) -> Views:
    """Read the scores of answer options from a log; other runs over the same questions become
    views.

    The format is recognised: samples of lm-evaluation-harness (`--log_samples`), chat completions
    with ``logprobs.content[].top_logprobs``, one per line or as the Batch API writes them, or a
    table with one column per option.

    Parameters
    ----------
    path : the log: .jsonl, .csv, .tsv or .parquet
    views : mapping of name to path, optional
        Logs of other prompts, or of other ways to ask the same questions.
    options : sequence of str, optional
        The answers, such as A, B, C, D. Needed for responses; also the columns of a table.
    labels : path, optional
        A table with the right option of each question, joined by `custom_id` or `id`, or row by
        row.
    label_column : str, optional
        The column of the right option.
    floor : float, optional
        The probability of options that were not returned; by default half of the smallest returned
        probability, and at most 1e-5.
    scores : {"acc", "acc_norm"}
        For lm-evaluation-harness: log-likelihoods, or log-likelihoods per character of the option,
        as for the harness's metric of this name.

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
    return open_log(path, views or {}, options, labels, label_column, floor, scores).views


def open_log(
    path: str | os.PathLike[str],
    views: Mapping[str, str | os.PathLike[str]],
    options: Sequence[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    label_column: str | None = None,
    floor: float | None = None,
    scores: str = "acc",
) -> JoinedViews:
    """Read a log as `read_log` does, and report what was missing."""
    if scores not in ("acc", "acc_norm"):
        raise InputError(f"must be acc or acc_norm, got {scores!r}", argument="scores")
    options = None if options is None else check_options(options)
    truths = None if labels is None else _read_truths(Path(labels), label_column)
    main = read_scores(Path(path), options, truths, label_column, scores)
    others = {
        name: read_scores(Path(other), options, None, label_column, scores)
        for name, other in views.items()
    }
    return join_scores(main, others, floor)


def read_scores(
    path: Path,
    options: Sequence[str] | None = None,
    truths: Mapping[str, str] | Sequence[str] | None = None,
    label_column: str | None = None,
    kind: str = "acc",
) -> OptionScores:
    """Read one log in any of the formats."""
    failed: list[int] = []
    if path.suffix.lower() not in (".jsonl", ".json", ".ndjson"):
        scores, labels = _read_option_table(path, options, label_column)
    else:
        lines = read_lines(path)
        if "filtered_resps" in lines[0] or "resps" in lines[0]:
            scores, labels = _read_harness(path, lines, kind)
        elif body_of(lines[0]) is not None or "error" in lines[0]:
            if options is None and truths is not None:
                options = sorted(set(truths.values() if isinstance(truths, Mapping) else truths))
            by_id = isinstance(truths, Mapping)
            scores, labels = read_responses(path, lines, options, by_id=by_id)
            failed = [row for row, line in enumerate(lines) if has_failed(line)]
        else:
            raise FileError(
                f"{path} is no log that recal knows: its first line has {', '.join(list(lines[0])[:8])}. Known are "
                "lm-evaluation-harness samples (filtered_resps), chat completions (choices), and Batch API output "
                "(custom_id, response)."
            )
    if kind != "acc" and scores.asked != (("scores", kind),):
        raise InputError(f"--scores {kind} is for samples of lm-evaluation-harness, not {path}.")
    if truths is not None and isinstance(truths, Mapping) != scores.has_ids:
        lacking = path if isinstance(truths, Mapping) else "the table of labels"
        raise InputError(
            f"Labels and answers are joined by ids, and {lacking} has none of {', '.join(IDS)}. "
            "Give it the ids of the other file; the order of rows proves nothing."
        )
    if isinstance(truths, Mapping):
        if absent := [one for one in scores.ids if one not in truths]:
            raise InputError(
                f"The labels lack {len(absent):,} of {len(scores.ids):,} questions of {path}, such as {absent[0]!r}."
            )
        truths = [truths[one] for one in scores.ids]
    labels = labels if truths is None else list(truths)
    kept = [row for row in range(len(scores.ids)) if row not in set(failed)]
    if labels is None:
        return replace(scores.take(kept), n_failed=len(failed))
    if len(labels) != len(scores.ids):
        raise InputError(
            f"There are {len(labels):,} labels for the {len(scores.ids):,} questions of {path}."
        )
    array = label_array(path, labels, scores.options, scores.log_probs.shape[1])
    return replace(replace(scores, labels=array).take(kept), n_failed=len(failed))


def _read_truths(path: Path, label_column: str | None = None) -> dict[str, str] | list[str]:
    """Read the right options: by id if the table has a column of ids, otherwise in the order of the
    rows.
    """
    columns = read_table(path)
    label = _label_column(path, columns, label_column)
    if label is None:
        raise InputError(
            f"{path} has no column of labels ({', '.join(LABEL_COLUMNS)}); it has {', '.join(columns)}. Name it with "
            "--label-column."
        )
    texts = columns[label].tolist()
    name = next((name for name in IDS if name in columns), None)
    if name is None:
        return texts
    ids = columns[name].tolist()
    truths = dict(zip(ids, texts))
    if twice := [one for one, text in zip(ids, texts) if truths[one] != text]:
        raise InputError(f"{path} holds different labels of the question {twice[0]!r}.")
    return truths


def _label_column(path: Path, columns: Mapping[str, Any], name: str | None) -> str | None:
    """Return the column of the right options: the one that the user names, or the first with a
    usual name.
    """
    if name is not None and name not in columns:
        raise InputError(
            f"{path} has no column {name!r}; it has {', '.join(columns)}. Name it with --label-column."
        )
    return name or next((usual for usual in LABEL_COLUMNS if usual in columns), None)


def label_array(
    where: Any, labels: Sequence[str], names: Sequence[str] | None, n_options: int
) -> NDArray[Any]:
    """Return labels as names of options if these have names, else as columns; a label may be a
    column number.
    """
    if names is not None and set(labels) <= set(names):
        return np.array(labels)
    places = {str(place): place for place in range(n_options)}
    if odd := [label for label in labels if label not in places]:
        allowed = ", ".join(names) if names is not None else f"0 to {n_options - 1}"
        raise InputError(
            f"The label {odd[0]!r} of {where} is none of the options; they are {allowed}."
        )
    columns = np.array([places[label] for label in labels])
    return columns if names is None else np.array(names)[columns]


def _read_harness(path: Path, lines: list[dict[str, Any]], kind: str) -> LabelledScores:
    """Read samples of lm-evaluation-harness."""
    rows, choices, places = [], [], []
    for number, line in enumerate(lines, 1):
        scores = _likelihoods(line)
        if scores is None:
            raise FileError(
                f"{path}, line {number} holds generated text and no scores of options. Views need a multiple-choice "
                "task (log-likelihoods), or chat completions with logprobs."
            )
        texts = _choices(line)
        half = len(scores) // 2  # acc_mutual_info scores each option again without the question
        if (
            texts is not None
            and len(texts) == len(scores) == 2 * half
            and texts[:half] == texts[half:]
        ):
            scores, texts = scores[:half], texts[:half]
        if kind == "acc_norm":
            if texts is None or len(texts) != len(scores):
                raise InputError(
                    f"{path}, line {number} has no texts of the options (arguments), which --scores "
                    "acc_norm needs to divide by their length."
                )
            scores = [score / max(1, len(text)) for score, text in zip(scores, texts)]
        rows.append(scores)
        choices.append(texts)
        places.append(_right_place(path, line.get("target"), texts, number))
    width = max(map(len, rows))
    log_probs = np.array([row + [np.nan] * (width - len(row)) for row in rows], dtype=np.float64)
    log_probs[~np.isfinite(log_probs)] = np.nan
    shared = choices[0] if choices.count(choices[0]) == len(choices) else None
    options = (
        tuple(shared) if shared is not None and len(set(shared)) == len(shared) == width else None
    )
    ids, has_ids = row_ids(lines)
    how = (("scores", kind),)
    table = OptionScores(ids, log_probs, options, has_ids=has_ids, asked=how)
    columns = [place for place in places if place is not None]
    if len(columns) < len(places):
        return table, None
    if not 0 <= min(columns) <= max(columns) < width:
        raise FileError(f"{path} has the target {max(columns)}, and {width} options.")
    return table, [str(place) if options is None else options[place] for place in columns]


def _likelihoods(line: Mapping[str, Any]) -> list[float] | None:
    """Return one log-likelihood per option: logs hold [-1.2, false], ["-1.2", "False"], [[-1.2,
    false]] or -1.2.
    """
    for name in ("filtered_resps", "resps"):
        values = line.get(name)
        if not isinstance(values, list) or len(values) < 2:
            continue
        numbers = [number for value in values if (number := _first_number(value)) is not None]
        if len(numbers) == len(values):
            return numbers
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
    """Return the options' texts from the arguments of the requests, which newer versions write as
    gen_args_0, ...
    """
    arguments = line.get("arguments")
    if isinstance(arguments, dict):
        arguments = [
            [one.get("arg_0"), one.get("arg_1")]
            for one in arguments.values()
            if isinstance(one, dict)
        ]
    if not isinstance(arguments, list) or not all(
        isinstance(one, list) and len(one) > 1 for one in arguments
    ):
        return None
    return [str(one[1]).strip() for one in arguments]


def _right_place(path: Path, target: Any, choices: list[str] | None, number: int) -> int | None:
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
        raise FileError(
            f"{path}, line {number}: the target {text[:40]!r} is none of the options."
        ) from None


def _read_option_table(
    path: Path, options: Sequence[str] | None, label_column: str | None
) -> LabelledScores:
    """Read a table with one column per option."""
    columns = read_table(path)
    name, label = (
        next((name for name in IDS if name in columns), None),
        _label_column(path, columns, label_column),
    )
    if options is None:
        options = [one for one in columns if one not in (name, label) and columns.is_numeric(one)]
    columns.check(options)
    if len(options) < 2:
        raise InputError(
            f"{path} needs one column of scores per option; its columns are {', '.join(columns)}."
        )
    values = np.column_stack([columns.numbers(option) for option in options])
    present = values[~np.isnan(values)]
    if len(present) and present.min() >= 0.0 and present.max() <= 1.0 + 1e-6:  # rounding
        with np.errstate(divide="ignore"):
            values = np.log(values)
    elif len(present) and present.max() > 0.0:
        top = np.nanmax(
            values, axis=1, keepdims=True
        )  # logits, which a softmax turns into probabilities
        values = values - top - np.log(np.nansum(np.exp(values - top), axis=1, keepdims=True))
    values[~np.isfinite(values)] = np.nan
    rows = [{}] * len(values) if name is None else [{name: one} for one in columns[name]]
    ids, has_ids = row_ids(rows)
    labels = None if label is None else columns[label].tolist()
    return OptionScores(ids, values, tuple(options), has_ids=has_ids), labels


def body_of(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the chat completion of a line: the line itself, or the part that the Batch API wraps."""
    response = line if isinstance(line.get("choices"), list) else line.get("response")
    body = response.get("body", response) if isinstance(response, dict) else None
    return body if isinstance(body, dict) else None


def read_responses(
    path: Path, lines: list[dict[str, Any]], options: Sequence[str] | None, *, by_id: bool
) -> LabelledScores:
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
    labels = [next((line[name] for name in LABEL_COLUMNS if name in line), None) for line in lines]
    names = [name for name in IDS if name != "id" or by_id or "choices" not in lines[0]]
    ids, has_ids = row_ids(lines, names)
    models = sorted(
        {str(body["model"]) for line in lines if "model" in (body := body_of(line) or {})}
    )
    how = (("options", *options), *([("model", *models)] if models else []))
    scores = OptionScores(ids, rows, tuple(options), named=named, has_ids=has_ids, asked=how)
    return scores, None if None in labels else [cell_text(label) for label in labels]


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
