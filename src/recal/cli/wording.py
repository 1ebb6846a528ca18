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
    (r"`pixels`", "--pixels or --gray"),
    (r"pool='([^']+)'", r"--pool \1"),
    (r"pool=recal\.pool\('([^']+)', data=X_train\)", r"a pool made in Python, recal.pool('\1', data=X_train),"),
    (r"read_views", "recal fit, compare and groups"),
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
