"""What can be known from one batch is checked before the work: labels, classes, columns, shapes, kind of outputs.

A run that ends after hours with "labels need classes" could have said so at once. `preflight` puts the first batch
through everything that the run will do: it is read, prepared, answered by the model as it is and through one
transformation of each kind, and its labels are looked up among the classes.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from recal.checks import Floats
from recal.collecting.agreement import check_agreement
from recal.collecting.inputs.sources import IndexedSource, Source
from recal.collecting.inputs.tables import TableSource, holds_texts
from recal.collecting.job import Job, Preprocess
from recal.collecting.local import as_pool, open_source
from recal.collecting.models.base import Model, as_model
from recal.collecting.sinks.memory import MemorySink
from recal.errors import InputError, Remedy
from recal.transforms import Transform
from recal.transforms.preprocessing import Outputs


def preflight(
    model: Any,
    inputs: Any,
    pool: str | Sequence[Transform | str] | None = None,
    *,
    labels: Any = None,
    classes: Sequence[Any] | None = None,
    preprocess: Preprocess | None = None,
    outputs: Outputs = "logits",
    batch_size: int = 256,
    device: Any = None,
    seed: int = 0,
    asked: bool = True,
    **files: Any,
) -> None:
    """Refuse, before any work, what `recal.collect` with the same arguments would refuse during it or after it.

    Parameters
    ----------
    model, inputs, pool, labels, classes, preprocess, outputs, batch_size, device, seed, **files
        As in `recal.collect`.
    asked : bool
        Whether the model is asked about the first batch; without it only labels and columns are looked at.

    Warns
    -----
    UserWarning
        Where most rows of logits are constant or all are equal, or a table holds a column of texts.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.collecting.preflight import preflight
    >>> preflight(lambda batch: batch, np.eye(3), labels=["ant", "bee", "cat"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    recal.errors.InputError: Labels that are names need the names of the model's columns, got 'ant'. Pass ...
    """
    answering, source = as_model(model, outputs=outputs, device=device), open_source(inputs, labels, files)
    transforms = as_pool(pool, seed)
    _check_columns(source, answering)
    _check_names(source.labels, answering, source, classes)
    if not isinstance(source, IndexedSource):  # what gives its batches once is not asked for one
        return
    if (source.labels is None and not asked) or batch_size < 1:  # which collect refuses in its own words
        return
    batch = source.batch(0, min(batch_size, source.n_samples))
    _check_names(batch.labels, answering, source, classes)
    if not asked:
        return
    kinds = {type(transform): transform for transform in reversed(transforms)}
    job = Job(answering, tuple(kinds.values()), preprocess, answering.returns(outputs))
    with answering.running():
        block = job.run(batch, source.describe)
    sink = MemorySink(job, source, classes)
    sink._check(block)  # the labels that are known beforehand
    sink._columns(batch.labels, block.logits.shape[1])
    _tell_of_constants(block.logits, answering.name)
    how: dict[str, Any] = {"preprocess": preprocess, "outputs": outputs, "batch_size": batch_size}
    check_agreement(answering, source, classes=classes, **how)


def _check_names(values: Any, model: Model, source: Source, classes: Sequence[Any] | None) -> None:
    known = classes is not None or model.classes is not None or source.classes is not None
    if values is None or known or not len(values) or np.asarray(values).dtype.kind in "iub":
        return
    first = np.asarray(values).ravel()[0]
    if isinstance(first, str | bytes):
        raise InputError(
            "that are names need the names of the model's columns",
            argument=("labels", "classes"),
            subject="Labels",
            came=f"got {str(first)!r}",
            remedy=Remedy(
                "Pass classes=[...], the names of the columns in order.",
                typed="Give --classes A,B,C, the names of the columns in order.",
            ),
        )


def _check_columns(source: Source, model: Model) -> None:
    """Refuse a table of texts that is read as features; warn of texts beside features."""
    if not isinstance(source, TableSource) or hasattr(getattr(model, "estimator", None), "feature_names_in_"):
        return
    frame = source.values
    texts = [str(name) for name in frame.columns if holds_texts(frame[name])]
    if not texts:
        return
    others = [str(name) for name in frame.columns if str(name) not in texts]
    numbers = [name for name in others if getattr(frame[name].dtype, "kind", "O") in "iuf"]
    said = f"The column {texts[0]!r} holds texts, and the table is read as features"
    if len(others) <= 1 and len(numbers) < len(frame.columns) and len(frame.columns) <= 2:
        label = others[0] if others and source.labels is None else None
        python = f"text_column={texts[0]!r}" + (f", label_column={label!r}" if label else "")
        typed = f"--text-column {shlex.quote(texts[0])}" + (f" --label-column {shlex.quote(label)}" if label else "")
        raise InputError(
            f"{said}.", remedy=Remedy(f"To read it as texts pass {python}.", f"To read it as texts add {typed}.")
        )
    warnings.warn(f"{said}. If the model takes texts, say text_column={texts[0]!r}.", UserWarning, stacklevel=3)


def _tell_of_constants(logits: Floats, name: str) -> None:
    """Warn where the model does not tell its classes, or its inputs, apart."""
    flat = int((logits == logits[:, :1]).all(axis=1).sum())
    why = "Check how inputs are prepared: --divide, --mean, --std, --channels."
    if flat > len(logits) / 2:
        warnings.warn(
            f"{name} gives all classes the same logit for {flat} of the first {len(logits)} inputs. {why}",
            UserWarning,
            stacklevel=3,
        )
    elif len(logits) > 1 and (logits == logits[0]).all():
        warnings.warn(
            f"{name} gives the same logits for all of the first {len(logits)} inputs. {why}", UserWarning, stacklevel=3
        )
