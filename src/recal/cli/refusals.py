"""What was refused, in the words of a terminal: the data of an error, with options in place of Python's arguments."""

from __future__ import annotations

from collections.abc import Sequence

from recal.errors import RecalError

# How an argument of the library is typed, where it is not called the same.
_OPTIONS = {
    "n_bins": ("--bins",),
    "random_state": ("--seed",),
    "pixels": ("--pixels", "--gray"),
    "save_to": ("--save",),
}


def as_typed(error: RecalError, arguments: Sequence[str]) -> str:
    """Return the sentence for an error, with its arguments named as they were typed.

    Examples
    --------
    >>> from recal.cli.refusals import as_typed
    >>> from recal.errors import InputError
    >>> error = InputError("must be a whole number from 1 on", argument="batch_size", came="got 0")
    >>> as_typed(error, ["collect", "--batch-size", "0"])
    '--batch-size must be a whole number from 1 on, got 0.'
    """
    typed = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}

    def spell(names: tuple[str, ...]) -> str:
        options = [_OPTIONS.get(name, (f"--{name.replace('_', '-')}",)) for name in names]
        # Of two arguments that belong together, one may have been forgotten.
        if not typed & {option for forms in options for option in forms}:
            return " and ".join(f"`{name}`" for name in names)
        return " and ".join(next((form for form in forms if form in typed), forms[0]) for forms in options)

    return error.sentence(spell, typed=True)
