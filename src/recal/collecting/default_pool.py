"""The default pool: chosen by what the inputs are, or refused with the question to answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from recal.collecting.inputs.files import SoundFolder
from recal.collecting.inputs.sources import ArraySource, IndexedSource, Source
from recal.collecting.inputs.tables import TableSource
from recal.collecting.models.base import Model
from recal.errors import InputError, Remedy
from recal.transforms import Transform, pool
from recal.transforms.pool import DAMAGE
from recal.transforms.resampling import image_layout
from recal.transforms.tabular import is_frame

AUTO = "auto"

# Some that keep everything, for stacking, and some that lose more and more, for ReCal: about ten passes to collect.
USUAL: dict[str, str] = {
    "image": "flip+shift+shift:direction=right+zoomin:1.1+zoom:0.9+zoom:0.8+zoom:0.7+zoom:0.55"
    "+brightness:0.7+brightness:0.5",
    "video": "flip+shift+zoom:0.5-0.9:3+frames:0.1-0.6:5",
    "series": "timeshift:0.02+timeshift:0.05+coarse:0.3-0.9:3+drop:0.1-0.6:5",
    "audio": "timeshift:0.02+timeshift:0.05+lowpass:0.2-0.8:3+noise:10-40:3+quieter:0.3+timemask:0.1",
    "text": "cut:0.1+cut:0.2+cut:0.2:side=start+tokendrop:0.05-0.5:6",
    "tabular": "median:0.1-0.6:8",
}
_SMALLEST_SIDE = 8  # of a picture; what is narrower is channels or features
_LOOK_AT = 32  # samples


# Pools that are chosen by what the inputs are.
NAMED: dict[str, dict[str, str]] = {AUTO: USUAL, "damage": DAMAGE}


def usual_pool(source: Source, model: Model, seed: int = 0, name: str = AUTO) -> tuple[Transform, ...]:
    """Return the pool of this name, "auto" or "damage", for inputs of unknown type.

    Texts and folders of images are recognised as such; arrays by their axes and dtype (see `modality`).
    Where two readings are possible, an error asks which, since no later step would notice a series that was
    zoomed like a picture.
    """
    hears = isinstance(source, SoundFolder) or getattr(model, "takes", None) == "audio"
    made_for = "audio" if hears else modality(_first(source), model)
    data = source.values if made_for == "tabular" and isinstance(source, ArraySource | TableSource) else None
    if made_for == "tabular" and data is None:
        raise InputError(
            "The default pool for tables fills in medians, which are taken from an array",
            remedy=Remedy(
                "Pass an array, or pool=recal.pool('median:0.1-0.6:8', data=X_train)",
                typed="Give the table as an .npy or .npz file, or make the pool in Python: "
                "recal.pool('median:0.1-0.6:8', data=X_train)",
            ),
        )
    return pool(NAMED[name][made_for], seed=seed, data=data)


def modality(batch: Any, model: Model | None = None) -> str:
    """Return what a batch is: image, video, series, text or tabular; raise an error where that is ambiguous.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.collecting.default_pool import modality
    >>> modality(np.zeros((2, 32, 32, 3), np.uint8)), modality(np.zeros((2, 3, 50))), modality(["a text"])
    ('image', 'series', 'text')
    """
    if _is_text(batch):
        return "text"
    if is_frame(batch):
        return "tabular"
    values = np.asarray(batch.detach().cpu() if hasattr(batch, "detach") else batch)
    if values.dtype == object:
        return _of_items(values)
    if values.dtype.kind not in "iuf":
        raise _ask(values, "recal has no default pool for this dtype")
    if values.ndim == 2:
        return _flat(values, model)
    if values.ndim == 3:
        return _three(values)
    if values.ndim == 4:
        return _four(values)
    if values.ndim == 5:
        return "video"
    raise _ask(values, "no modality has this number of axes")


def _first(source: Source) -> Any:
    """A few inputs, without using up what can be read only once."""
    if isinstance(source, IndexedSource):
        return source.read(0, min(source.n_samples, _LOOK_AT))
    loader = getattr(source, "loader", None)
    if loader is None or iter(loader) is loader:
        raise InputError(
            "A generator can be read only once, so its inputs cannot be looked at to choose a pool",
            remedy="Name one, such as pool='zoom:0.5-0.9:10'; `recal transforms` lists what there is",
        )
    return next(iter(source.batches(_LOOK_AT))).inputs


def _is_text(batch: Any) -> bool:
    if isinstance(batch, list | tuple):
        return bool(batch) and all(isinstance(item, str | bytes) for item in batch)
    if not isinstance(batch, np.ndarray):
        return False
    return batch.dtype.kind in "US" or (
        batch.dtype == object and batch.ndim == 1 and all(isinstance(item, str | bytes) for item in batch)
    )


def _of_items(values: Any) -> str:
    """Samples of different lengths: series, or token ids."""
    items = [np.asarray(item) for item in values.ravel()[:_LOOK_AT]]
    if values.ndim == 1 and all(item.ndim in (1, 2) and item.dtype.kind == "f" for item in items):
        return "series"
    if values.ndim == 1 and all(item.ndim == 1 and item.dtype.kind in "iu" for item in items):
        return "text"
    raise _ask(values, "an array of Python objects may hold anything")


def _flat(values: Any, model: Model | None) -> str:
    # A classifier with scikit-learn's methods that was fitted on rows takes rows of features.
    if getattr(getattr(model, "estimator", None), "n_features_in_", None) == values.shape[1]:
        return "tabular"
    if values.dtype.kind in "iu":
        raise _ask(values, "are these token ids, features, or a series?")
    raise _ask(values, "are these features of a table, series, sounds, or flattened images?")


def _three(values: Any) -> str:
    _, height, width = values.shape
    if height >= _SMALLEST_SIDE and width >= _SMALLEST_SIDE:
        if values.dtype == np.uint8 or (height == width and _are_brightnesses(values)):
            return "image"
        raise _ask(values, "are these grey pictures, or series of several channels?")
    if height < width:
        return "series"
    raise _ask(values, "is time the last axis, (n, channels, time), or the middle one, (n, time, channels)?")


def _four(values: Any) -> str:
    image_layout(values.shape)  # refuses where channels are ambiguous
    sides = sorted(values.shape[1:])[1:]
    if min(sides) < _SMALLEST_SIDE:
        raise _ask(values, f"pictures of less than {_SMALLEST_SIDE} pixels a side are unusual")
    if values.dtype.kind == "f" and not _are_brightnesses(values):
        raise _ask(
            values,
            f"values from {values.min():.3g} to {values.max():.3g} look normalised already: pass pictures as they are "
            "(uint8, or floats from 0 to 1) and normalise in the preprocessing, since transformations act on pixels",
        )
    return "image"


def _are_brightnesses(values: Any) -> bool:
    return values.dtype.kind in "iu" or bool(values.min() >= 0 and values.max() <= 1)


def _ask(values: Any, question: str) -> InputError:
    pools = {
        2: "'drop:0.1-0.6:5+coarse:0.3-0.9:5' for series, 'lowpass:0.1-0.9:5' for sounds, 'tokendrop:0.05-0.5:6' for "
        "token ids",
        3: "'zoom:0.5-0.9:10' for pictures, 'drop:0.1-0.6:5+coarse:0.3-0.9:5' for (n, channels, time), "
        "'drop:0.1-0.6:5:axis=1' for (n, time, channels)",
    }.get(values.ndim, "'zoom:0.5-0.9:10' for pictures; `recal transforms` lists what there is")
    table = "recal.pool('median:0.1-0.6:8', data=X_train)"
    flat = values.ndim == 2
    more = "; reshape flat pictures to (n, height, width)" if flat else ""
    return InputError(
        f"Inputs of dtype {values.dtype} and shape (n, {', '.join(map(str, values.shape[1:]))}) do not say which pool "
        f"suits them: {question}{'' if question.endswith('?') else '.'}",
        remedy=Remedy(
            f"Answer with pool={f'{table} for a table, ' if flat else ''}{pools}{more}",
            typed=f"Answer with --pool none for no views, or --pool {pools}{more}"
            f"{f'. For a table, in Python: {table}' if flat else ''}",
        ),
    )
