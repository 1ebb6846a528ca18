"""Logs of language models as Views: lm-evaluation-harness samples, chat completions, tables of
options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
    without_ids,
)
from recal.errors import FileError, InputError
from recal.files.paths import LINES
from recal.files.tables import Table, cell_text, read_lines, read_table
from recal.schema import Choice, check
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
        A table with the right option of each question, joined by `custom_id` or `id`.
    label_column : str, optional
        The column of the right option.
    scores : {"acc", "acc_norm"}
        For lm-evaluation-harness: log-likelihoods, or log-likelihoods per character of the option,
        as in the harness's metric of this name.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from recal.answers import read_log
    >>> scores = [["-2.5", "False"], ["-0.1", "True"]]
    >>> line = {"doc_hash": "a1", "target": "1", "filtered_resps": scores}
    >>> path = Path(tempfile.mkdtemp()) / "samples.jsonl"
    >>> _ = path.write_text(json.dumps(line))
    >>> read_log(path)
    Views: 1 samples, 2 classes, 0 transformations, labelled
    """
    return open_log(path, views or {}, options, labels, label_column, scores).views


def open_log(
    path: str | os.PathLike[str],
    views: Mapping[str, str | os.PathLike[str]],
    options: Sequence[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    label_column: str | None = None,
    scores: str = "acc",
) -> JoinedViews:
    """Read a log as `read_log` does, and report what was missing."""
    check(scores, Choice("acc", "acc_norm"), "scores")
    options = None if options is None else check_options(options)
    truths = None if labels is None else Path(labels)
    main = _read_scores(Path(path), options, truths, label_column, scores)
    others = {
        name: _read_scores(Path(log), options, None, label_column, scores)
        for name, log in views.items()
    }
    return join_scores(main, others)


def _read_scores(
    path: Path,
    options: Sequence[str] | None,
    truths: Path | None,
    label_column: str | None,
    kind: str,
) -> OptionScores:
    """Read one log in any of the formats."""
    failed: set[int] = set()
    if path.suffix.lower() not in (".json", *LINES):
        scores, labels = _read_option_table(path, options, label_column)
    else:
        lines = read_lines(path)
        if "filtered_resps" in lines[0] or "resps" in lines[0]:
            scores, labels = _read_harness(path, lines, kind)
        elif _body_of(lines[0]) is not None or "error" in lines[0]:
            scores, labels = _read_responses(path, lines, options, by_id=truths is not None)
            failed = {row for row, line in enumerate(lines) if _has_failed(line)}
        else:
            raise FileError(
                f"{path} is no log that recal knows: its first line has "
                f"{', '.join(list(lines[0])[:8])}. Known are lm-evaluation-harness samples (with "
                "filtered_resps), chat completions (choices) and Batch API output (response)."
            )
    if kind != "acc" and scores.asked != (("scores", kind),):
        rule = f"{path} holds no samples of lm-evaluation-harness, which --scores {kind} reads"
        raise InputError(rule, remedy="Leave it out")
    if truths is not None:
        labels = _read_truths(truths, label_column, path, scores)
    kept = [row for row in range(len(scores.ids)) if row not in failed]
    if not kept:
        raise FileError(f"{path} holds no answers: every request failed.")
    if labels is not None:
        array = label_array(path, labels, scores.options, scores.log_probs.shape[1])
        scores = replace(scores, labels=array)
    return replace(scores.take(kept), n_failed=len(failed))


def _read_truths(
    path: Path, label_column: str | None, log: Path, scores: OptionScores
) -> list[str]:
    """Return the right option of each question from a table, by its ids if both files have ids."""
    table = read_table(path)
    label = _label_column(table, label_column)
    if label is None:
        rule = f"{path} has none of the columns {', '.join(LABEL_COLUMNS)}"
        raise InputError(rule, remedy="Name the labels' column: --label-column NAME")
    name = next((name for name in IDS if name in table), None)
    if name is None or not scores.has_ids:
        raise without_ids(path if name is None else log)
    truths: dict[str, str] = {}
    for one, text in zip(table[name].tolist(), table[label].tolist()):
        if truths.setdefault(one, text) != text:
            raise InputError(f"{path} holds different labels of the question {one!r}.")
    if absent := [one for one in scores.ids if one not in truths]:
        rule = f"The labels lack {len(absent):,} of {len(scores.ids):,} questions of {log}"
        raise InputError(f"{rule}, such as {absent[0]!r}.")
    return [truths[one] for one in scores.ids]


def _label_column(columns: Table, name: str | None) -> str | None:
    """Return the column of the right options: the one that the user names, or the first with a
    usual name.
    """
    if name is not None:
        columns.check([name])
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
        rule = f"The label {odd[0]!r} of {where} is none of the options"
        raise InputError(f"{rule}; they are {allowed}.")
    columns = np.array([places[label] for label in labels])
    return columns if names is None else np.array(names)[columns]


def _read_harness(path: Path, lines: list[dict[str, Any]], kind: str) -> LabelledScores:
    """Read samples of lm-evaluation-harness."""
    rows, choices, labels = [], [], []
    for number, line in enumerate(lines, 1):
        scores = _likelihoods(line)
        if scores is None:
            rule = f"{path}, line {number} holds generated text and no scores of options"
            remedy = "Log a multiple-choice task (log-likelihoods), or completions with logprobs"
            raise FileError(rule, remedy=remedy)
        requests, texts = _requests(line), None
        if requests is not None:
            # acc_mutual_info also asks for each option without the question.
            n_asked = sum(bool(context) for context, _ in requests) or len(requests)
            scores, texts = scores[:n_asked], [text for _, text in requests[:n_asked]]
        if kind == "acc_norm":
            if texts is None or len(texts) != len(scores):
                rule = f"{path}, line {number} has no texts of the options (arguments)"
                raise InputError(rule, remedy="Use --scores acc, or log the samples again")
            scores = [score / max(1, len(text)) for score, text in zip(scores, texts)]
        target = line.get("target")
        right = target[0] if isinstance(target, list) and target else target
        label = None if right is None or right == [] else str(right).strip()
        if label is not None and texts is not None and label in texts:
            label = str(texts.index(label))
        rows.append(scores)
        choices.append(texts)
        labels.append(label)
    width = max(map(len, rows))
    log_probs = np.array([row + [np.nan] * (width - len(row)) for row in rows], dtype=np.float64)
    log_probs[~np.isfinite(log_probs)] = np.nan
    shared = choices[0] if choices.count(choices[0]) == len(choices) else None
    named = shared is not None and len(set(shared)) == len(shared) == width
    ids, has_ids = row_ids(lines)
    options, how = tuple(shared or ()) if named else None, (("scores", kind),)
    table = OptionScores(ids, log_probs, options, has_ids=has_ids, asked=how)
    known = [label for label in labels if label is not None]
    return table, known if len(known) == len(labels) else None


def _likelihoods(line: Mapping[str, Any]) -> list[float] | None:
    """Return one log-likelihood per option: logs hold [-1.2, false], ["-1.2", "False"], [[-1.2,
    false]] or -1.2.
    """
    for name in ("filtered_resps", "resps"):
        values = line.get(name)
        if isinstance(values, list) and len(values) > 1:
            numbers = [number for value in values if (number := _first_number(value)) is not None]
            if len(numbers) == len(values):
                return numbers
    return None


def _first_number(value: Any) -> float | None:
    while isinstance(value, list) and value:
        value = value[0]
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _requests(line: Mapping[str, Any]) -> list[tuple[Any, str]] | None:
    """Return context and option of each request from their arguments, which newer versions write as
    gen_args_0, ...
    """
    arguments = line.get("arguments")
    if isinstance(arguments, dict):
        values = [one for one in arguments.values() if isinstance(one, dict)]
        arguments = [[one.get("arg_0"), one.get("arg_1")] for one in values]
    if not isinstance(arguments, list):
        return None
    if not all(isinstance(one, list) and len(one) > 1 for one in arguments):
        return None
    return [(one[0], str(one[1]).strip()) for one in arguments]


def _read_option_table(
    path: Path, options: Sequence[str] | None, label_column: str | None
) -> LabelledScores:
    """Read a table with one column per option."""
    columns = read_table(path)
    name = next((name for name in IDS if name in columns), None)
    label = _label_column(columns, label_column)
    if options is None:
        options = [one for one in columns if one not in (name, label) and columns.is_numeric(one)]
    columns.check(options)
    if len(options) < 2:
        rule = f"{path} needs one column of scores per option"
        raise InputError(f"{rule}; its columns are {', '.join(columns)}.")
    values = np.column_stack([columns.numbers(option) for option in options])
    present = values[~np.isnan(values)]
    if len(present) and present.min() >= 0.0 and present.max() <= 1.0 + 1e-6:  # rounding
        with np.errstate(divide="ignore"):
            values = np.log(values)
    elif len(present) and present.max() > 0.0:
        # Logits, which a softmax turns into probabilities.
        top = np.nanmax(values, axis=1, keepdims=True)
        values = values - top - np.log(np.nansum(np.exp(values - top), axis=1, keepdims=True))
    values[~np.isfinite(values)] = np.nan
    rows = [{}] * len(values) if name is None else [{name: one} for one in columns[name]]
    ids, has_ids = row_ids(rows)
    labels = None if label is None else columns[label].tolist()
    return OptionScores(ids, values, tuple(options), has_ids=has_ids), labels


def _body_of(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the chat completion of a line: the line itself, or the part in a batch's wrapper."""
    response = line if isinstance(line.get("choices"), list) else line.get("response")
    body = response.get("body", response) if isinstance(response, dict) else None
    return body if isinstance(body, dict) else None


def _read_responses(
    path: Path, lines: list[dict[str, Any]], options: Sequence[str] | None, *, by_id: bool
) -> LabelledScores:
    """Read chat completions with logprobs.

    The id of a completion names the response and not the question, so it counts only for labels
    that are joined `by_id`.
    """
    if options is None:
        raise InputError(f"Name the options that {path} answers with, such as --options A,B,C,D.")
    bodies = [_body_of(line) or {} for line in lines]
    answers = [token_positions(body) for body in bodies]
    if not any(answers):
        remedy = "Ask with logprobs=true and top_logprobs=20, and log the whole response"
        raise FileError(f"{path} holds no logprobs", remedy=remedy)
    rows, n_other = answer_rows(answers, options)
    labels = [next((line[name] for name in LABEL_COLUMNS if name in line), None) for line in lines]
    names = [name for name in IDS if name != "id" or by_id or "choices" not in lines[0]]
    ids, has_ids = row_ids(lines, names)
    models = sorted({str(body["model"]) for body in bodies if "model" in body})
    how = (("options", *options), *([("model", *models)] if models else []))
    known: dict[str, Any] = {"has_ids": has_ids, "asked": how, "n_other": n_other}
    scores = OptionScores(ids, rows, tuple(options), **known)
    return scores, None if None in labels else [cell_text(label) for label in labels]


def _has_failed(line: Mapping[str, Any]) -> bool:
    """Whether a line of the Batch API says that a request failed; a filtered one was refused."""
    response, error = line.get("response"), line.get("error")
    status = response.get("status_code", 200) if isinstance(response, dict) else 200
    error = error or (_body_of(line) or {}).get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return (bool(error) or status != 200) and code != "content_filter"


def token_positions(body: Mapping[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """Return each token of a chat completion with the likeliest tokens at its position; empty if
    there are no logprobs.
    """
    try:
        choice = (body.get("choices") or [{}])[0]
        content = (choice.get("logprobs") or {}).get("content") or []
        positions = []
        for one in content:
            listed = [one, *(one.get("top_logprobs") or [])]
            top = {str(each["token"]): float(each["logprob"]) for each in listed}
            positions.append((str(one["token"]), top))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        rule = f"A response has logprobs in an unknown form: {type(error).__name__} {error}."
        raise FileError(rule) from error
    return positions
