"""Errors in the words of the command line: the library speaks of Python's arguments, a terminal of options."""

from __future__ import annotations

import re
from collections.abc import Sequence

# How a Python argument is typed, where its option has another name or another form.
_TYPED = (
    (
        r"pass classes=\[\.\.\.\](, one per column,)? in the columns' order",
        "give --classes A,B,C in the columns' order",
    ),
    (r"classes=\[True, False\]", "--classes True,False"),
    (r"pass y\.astype\(int\)", "store them as whole numbers"),
    (r"pass y - 1", "subtract 1 from each"),
    (r"pass y\.argmax\(1\)", "store the column of each row's 1"),
    (r"pass them as `y`, or use (views|inputs) that (hold|bring) them", "add --labels FILE"),
    (r"resume=False", "--again"),
    (r"Use `collect` with a pool", "Make them with recal collect --pool"),
    (r"outputs=['\"](\w+)['\"]", r"--outputs \1"),
    (r"read='(\w+)'", r"--read \1"),
    (r"(label|text)_column='([^']+)'", r"--\1-column \2"),
    (r"pixels='(\w+)'", r"--pixels \1"),
    (r"`pixels`", "--pixels or --gray"),
    (r"pool='([^']+)'", r"--pool \1"),
    (r"pool=recal\.pool\('([^']+)', data=X_train\)", r"a pool made in Python, recal.pool('\1', data=X_train),"),
    (r"read_views", "recal fit, compare and groups"),
    (r" \w+ requires y to be passed, but the target y is None\.", ""),
    (r"`n_bins`", "--bins"),
    (r"`cost_(error|review)`", r"--cost-\1"),
    (r"`(divide|preprocess|std|mean)`", r"--\1"),
    (r"^mean and std need", "--mean and --std need"),
    (r"on_error='skip'", "--on-error skip"),
    (r"Pass resize=, and crop= for other shapes", "Give --resize N, and --crop N for other shapes"),
    (r"crop=(\d+)x\1 is", r"--crop \1 is"),
    (r"pass a larger resize=", "give a larger --resize"),
    (r"pass `labels`, or inputs that bring them", "add --labels FILE, or data that bring them"),
    (r" Your own are passed as callables: pool\(\[.*?\]\)\.", ""),
    (r"; for one grey image pass layout='HW'", ""),
    (r"belong in pool\(\.\.\.\)", "need a count: zoom:0.1-0.9:5"),
    (r"'local', 'ray' or a RayEngine", "local or ray"),
    (r"(`outputs of .*)If these are logits, pass softmax\(logits\)", r"\1If these are logits, leave --outputs out"),
    (r"\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from \S+ failed:)?", ""),
    (
        r"If these are logits, pass softmax\(logits\)",
        "If these are logits, store their softmax; in an .npz file the name `logits` does instead",
    ),
    (r"Values of `outputs of (\w+)`", r"With --outputs probabilities, what \1 returns"),
    (
        r"X has (\d+) features, but \w+ is expecting (\d+) features as input: it was fitted on \d+ classes, got \d+",
        r"The calibration was fitted on \2 classes, and the model gives \1: it belongs to another model",
    ),
    (r"label_column='([^']*)'", r"--label-column \1"),
    (r"^No pool was named, and inputs", "--pool auto does not know what to take: inputs"),
    (r"got dtype <U\d+", "got words"),
    (r"got dtype float\d+", "got numbers such as 2.0"),
    (r"Pass the model's outputs before", "Store the model's outputs before"),
    (
        r"Reshape your data: for one sample pass a single row; for a binary score pass two columns",
        "Store a row for each sample, and a binary score s as the two columns (0, s)",
    ),
    (r"use views that hold them", "collect views with labels, or add them to the file as an array `labels`"),
)


def as_typed(message: str, arguments: Sequence[str]) -> str:
    """Return the message with arguments of functions written as options.

    Examples
    --------
    >>> from recal.cli.wording import as_typed
    >>> as_typed("`batch_size` must be a whole number from 1 on, got 0.", ["collect", "--batch-size", "0"])
    '--batch-size must be a whole number from 1 on, got 0.'
    """
    for pattern, typed in _TYPED:
        message = re.sub(pattern, typed, message)
    # Whatever was typed as an option is named as it was typed.
    for argument in arguments:
        if argument.startswith("--"):
            option = argument.partition("=")[0]
            message = message.replace(f"`{option[2:].replace('-', '_')}`", option)
    return message
