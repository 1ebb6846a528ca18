"""The torch runtime: a model and its plan as one module, on any device, ready for export.

Arithmetic follows the reference step by step, in float64, so that both sort samples into the same groups. Only the
comparison of confidences is in float32, because the rule says so, and its sum in numpy's order, for the same reason.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from recal.checks import looks_like_probabilities
from recal.engine.replay import replay
from recal.errors import InputError, MissingExtraError
from recal.plan import Plan, Rule, plan_of
from recal.runtime.summation import BLOCK, half_of, lanes
from recal.transforms import BuiltIn, Named, Transform
from recal.transforms.arrays import is_plain
from recal.views import Views

try:
    import torch
except ImportError:
    raise MissingExtraError("torch", "torch", "CalibratedModule") from None

Tensor = torch.Tensor
# As in the reference: no sequence of betas takes a scale out of this range.
_LEAST_SCALE, _LARGEST_SCALE = 1e-100, 1e100
_CPU_ROWS, _CPU_VALUES, _DEVICE_ROWS = 32, 100_000, 256
_PLAIN_DTYPES = (torch.float16, torch.float32, torch.float64)


class CalibratedModule(torch.nn.Module):
    """A model that answers with calibrated logits: softmax of what it returns are honest probabilities.

    Only the transformations that the plan needs are computed, joined with the originals to larger batches. The largest
    logit of each row is shifted to 0, which softmax does not see, so that rounding can never change a prediction.

    Parameters
    ----------
    model : torch.nn.Module
        Gives logits of shape (n, n_classes), or an object with such `logits`. It is put into eval mode and stays there.
    plan : Plan, or a fitted calibrator that has one
        What `ReCal` or `TemperatureScaling` fitted on this model's logits.
    preprocess : callable, optional
        Runs after the transformation and before the model, as in `collect`: normalisation, for instance.
    max_batch : int, optional
        Views are joined to at most so many rows; where the caller passes more, each view is a batch of its own. By
        default 256, and on a CPU 32, or fewer where inputs are large, since networks fall out of its caches.

    Examples
    --------
    >>> import torch
    >>> from recal import Plan, Step
    >>> from recal.runtime.torch import CalibratedModule
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    >>> calibrated = CalibratedModule(model, Plan((Step("zoom:0.5", (1.0, 0.9, 0.8, 0.7)),)))
    >>> calibrated(torch.rand(2, 1, 8, 8)).softmax(1).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        model: torch.nn.Module,
        plan: Plan | Any,
        preprocess: Callable[[Tensor], Tensor] | None = None,
        max_batch: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, torch.nn.Module):
            raise InputError(f"CalibratedModule wraps a torch.nn.Module, got {type(model).__name__}.")
        if max_batch is not None and (isinstance(max_batch, bool) or not isinstance(max_batch, int) or max_batch < 1):
            raise InputError(f"`max_batch` must be a whole number from 1 on, got {max_batch!r}.")
        self.model = model
        self.preprocess = preprocess
        self.max_batch = max_batch
        self.replay = Replay(plan)
        for transform in self.replay.plan.transforms:
            if isinstance(transform, Named) and transform.function is None:
                raise InputError(
                    f"The plan needs your transformation {transform.name!r}, of which only the name is known. "
                    f"Give its code when loading: load(path, transforms={{{transform.name!r}: your_function}})."
                )
        self._outputs_checked = False
        self.train(False)

    @property
    def plan(self) -> Plan:
        return self.replay.plan

    def train(self, mode: bool = True) -> CalibratedModule:
        """Stay in eval mode: a calibrated model is a finished one."""
        self.training = False
        for part in self.children():
            try:
                part.train(False)
            except NotImplementedError:
                continue  # an exported program has no modes
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """Return calibrated logits, (n, n_classes)."""
        inputs = torch.as_tensor(inputs)
        n, views = inputs.shape[0], (None, *self.plan.transforms)
        tracing = torch.compiler.is_compiling()
        joined = len(views) if tracing else self._joined(inputs)  # a graph knows no sizes to split by
        parts = []
        for start in range(0, len(views), joined):
            rows = [_view(t, inputs) for t in views[start : start + joined]]
            parts.append(self.logits_of(torch.cat(rows) if len(rows) > 1 else rows[0]))
        logits = torch.cat(parts)
        if not tracing:
            self._check_once(logits)
        logits = logits.reshape((len(views), n, logits.shape[-1]))
        return self.replay(logits[0], logits[1:])

    def _joined(self, inputs: Tensor) -> int:
        """Return how many views go through the model at once."""
        n, most = max(1, inputs.shape[0]), self.max_batch
        if most is None and inputs.device.type == "cpu":
            most = min(_CPU_ROWS, _CPU_VALUES * n // max(1, inputs.numel()))
        return max(1, (_DEVICE_ROWS if most is None else most) // n)

    def logits_of(self, rows: Tensor) -> Tensor:
        """Return the model's own logits of rows that are transformed already."""
        prepared = rows if self.preprocess is None else self.preprocess(rows)
        weight = next((p for p in self.model.parameters() if p.is_floating_point()), None)
        if weight is not None and (prepared.is_floating_point() or prepared.dtype == torch.uint8):
            prepared = prepared.to(weight.dtype)  # as `collect` does; token ids are left alone
        outputs = self.model(prepared)
        logits = getattr(outputs, "logits", outputs)
        if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[0] != rows.shape[0]:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise InputError(f"The model must give logits of the shape (n, n_classes), got {got}.")
        return logits

    def _check_once(self, logits: Tensor) -> None:
        if self._outputs_checked or not len(logits):
            return
        if looks_like_probabilities(logits.detach().cpu().float().numpy()):
            raise InputError(
                "The model's outputs lie in [0, 1] and sum to 1: these are probabilities, and logits are needed. "
                "Wrap the model without its softmax."
            )
        self._outputs_checked = True


def _view(transform: Transform | None, inputs: Tensor) -> Tensor:
    """Return the inputs through a transformation, for code that may work in place: the inputs are still needed."""
    if isinstance(transform, BuiltIn):
        return transform(inputs)
    mine = inputs.clone()
    return mine if transform is None else transform(mine)


class Replay(torch.nn.Module):
    """Replays a plan on logits.

    Plain tensors on a CPU are given to the reference, which is compiled; on other devices, under a trace or where a
    gradient is wanted, the same is done by torch operations.
    """

    def __init__(self, plan: Plan | Any) -> None:
        super().__init__()
        self.plan = plan_of(plan)

    def forward(self, logits: Tensor, transformed: Tensor) -> Tensor:
        """Return calibrated logits, (n, n_classes), the largest of each row at 0.

        Parameters
        ----------
        logits : (n, n_classes)
        transformed : (m, n, n_classes), the logits through each of `plan.transforms`
        """
        plain = is_plain(logits) and is_plain(transformed) and logits.dtype in _PLAIN_DTYPES
        # A model's NaN must come out as NaN; the reference refuses it.
        if plain and len(logits) and bool(logits.isfinite().all()) and bool(transformed.isfinite().all()):
            return self.by_reference(logits, transformed)
        return self.by_torch(logits, transformed)

    def by_reference(self, logits: Tensor, transformed: Tensor) -> Tensor:
        """Replay by the numpy runtime."""
        layers = dict(zip(self.plan.transforms, transformed.detach().numpy()))
        views = Views._from_arrays(logits.detach().numpy(), dict(layers), None, None)
        views._checked = {None, *self.plan.transforms}  # a single row may look like probabilities by chance
        state = replay(self.plan, views)
        drops = state.logits.astype(np.float64) - state.maxima.astype(np.float64)[:, None]
        return torch.from_numpy(state.scales[:, None] * drops).to(_answer_dtype(logits))

    def by_torch(self, logits: Tensor, transformed: Tensor) -> Tensor:
        """Replay by torch operations."""
        plan = self.plan
        wide = torch.float32 if logits.device.type == "mps" else torch.float64
        original = _start(logits.to(wide), plan)
        column = logits.argmax(1, keepdim=True)
        views = {t: _start(transformed[index].to(wide), plan) for index, t in enumerate(plan.transforms)}
        own = {t: transformed[index].argmax(1, keepdim=True) for index, t in enumerate(plan.transforms)}
        for step in plan.steps:
            if step.is_neutral:
                continue
            view, view_column = views[step.transform], own[step.transform]
            at = view_column if plan.rule.confidence_at == "own" else column
            fell = _did_not_rise(original.now(), column, view.now(), at, plan.rule)
            kept = column == view_column
            group = 2 * kept.to(torch.int64) + fell.to(torch.int64)
            factors = torch.tensor(step.betas, dtype=wide, device=logits.device)[group]
            original.rescale(factors)
            view.rescale(factors)
        original.rescale(plan.finish)
        return original.now().to(_answer_dtype(logits))


def _answer_dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


class _Scaled:
    """Rows of logits below their largest, each with a scale of its own."""

    def __init__(self, logits: Tensor) -> None:
        self.drop = logits - logits.amax(1, keepdim=True)
        self.scale = torch.ones_like(self.drop[:, :1])

    def rescale(self, factors: Tensor | float) -> None:
        self.scale = (self.scale * factors).clamp(_LEAST_SCALE, _LARGEST_SCALE)

    def now(self) -> Tensor:
        return self.scale * self.drop


class _Floored(_Scaled):
    """Log-probabilities that never fall below log(floor): written anew at each rescaling."""

    def __init__(self, logits: Tensor, floor: float) -> None:
        super().__init__(logits)
        self.least = math.log(floor)
        self.rescale(1.0)

    def rescale(self, factors: Tensor | float) -> None:
        logs = (self.drop * factors).log_softmax(1).clamp(min=self.least)
        self.drop = logs - logs.amax(1, keepdim=True)


def _start(logits: Tensor, plan: Plan) -> _Scaled:
    state = _Scaled(logits) if plan.rule.floor is None else _Floored(logits, plan.rule.floor)
    state.rescale(plan.start)
    return state


def _did_not_rise(original: Tensor, column: Tensor, view: Tensor, at: Tensor, rule: Rule) -> Tensor:
    """Whether p >= p_t, by the rule for ties: (n, 1)."""
    confidence = _log_odds if rule.ties == "exact" else _confidence32
    return confidence(original, column) >= confidence(view, at)


def _confidence32(rows: Tensor, column: Tensor) -> Tensor:
    """Return a float32 softmax at `column`: each exp rounded to float32, divided in float32 by their float32 sum."""
    weights = rows.exp().to(torch.float32)
    return weights.gather(1, column) / _sum32(weights)


def _log_odds(rows: Tensor, column: Tensor) -> Tensor:
    """Return log(p / (1 - p)) at `column` without ever forming p, so that nothing saturates."""
    others = rows.scatter(1, column, -math.inf)
    return rows.gather(1, column) - others.logsumexp(1, keepdim=True)


def _sum32(values: Tensor) -> Tensor:
    """Sum float32 rows in numpy's order of pairs, so that ties are numpy's to the bit: (n, K) to (n, 1)."""
    count = values.shape[1]
    if count < 8:
        return _in_turn(values.unbind(1))[:, None]
    places = lanes(count)
    padded = torch.nn.functional.pad(values, (0, 1))  # the zero that fills up short blocks
    in_lanes = padded[:, torch.tensor(places.reshape(-1), device=values.device)].reshape((-1, *places.shape))
    totals = _in_turn([in_lanes[:, :, row] for row in range(places.shape[1])])
    for _ in range(3):  # eight lanes, summed in pairs
        totals = totals[..., 0::2] + totals[..., 1::2]
    sums = list(totals[..., 0].unbind(1))
    sums[-1] = _in_turn([sums[-1], *values.unbind(1)[count - count % 8 :]])
    return _in_pairs(sums, count)[:, None]


def _in_turn(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _in_pairs(sums: list[Tensor], count: int) -> Tensor:
    """Add up the blocks' sums along the tree of halves; takes its blocks from the front of the list."""
    if count <= BLOCK:
        return sums.pop(0)
    left = _in_pairs(sums, half_of(count))
    return left + _in_pairs(sums, count - half_of(count))


def parts_of(model: Any, plan: Any, preprocess: Any) -> tuple[torch.nn.Module, Any, Any]:
    """Return model, plan and preprocess; a CalibratedModule brings all three."""
    if isinstance(model, CalibratedModule):
        if plan is not None or preprocess is not None:
            raise InputError("A CalibratedModule has its own plan and preprocess; do not pass others.")
        return model.model, model.plan, model.preprocess
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"A torch module or the path of an ONNX file is needed, got {type(model).__name__}.")
    return model, plan, preprocess


class _Rows(torch.nn.Module):
    """From inputs to the rows of all views, originals first, run through preprocess and, where there is one, model."""

    def __init__(self, transforms: tuple[Transform, ...], preprocess: Any, model: torch.nn.Module | None) -> None:
        super().__init__()
        self.transforms, self.preprocess = transforms, preprocess
        self.model = None if model is None else CalibratedModule(model, Plan(), preprocess)
        self.training = False

    def forward(self, inputs: Tensor) -> Tensor:
        rows = torch.cat([inputs, *(transform(inputs) for transform in self.transforms)])
        if self.model is not None:
            return self.model.logits_of(rows)
        return rows if self.preprocess is None else self.preprocess(rows)


def rows_as_onnx(transforms: tuple[Transform, ...], preprocess: Any, model: Any, example: Any, output: str) -> Any:
    """Return `_Rows` as an ONNX model with one input, `inputs`, of any number of rows, and one output."""
    batch = torch.as_tensor(example)
    if batch.ndim < 2:
        raise InputError(f"The example must be a batch of inputs, (n, ...), got the shape {tuple(batch.shape)}.")
    batch = torch.cat([batch[:1], batch[:1]])  # a batch of one would be taken for a fixed size
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                _Rows(transforms, preprocess, model),
                (batch,),
                dynamo=True,
                dynamic_shapes={"inputs": {0: torch.export.Dim("batch")}},
                input_names=["inputs"],
                output_names=[output],
                verbose=False,
            )
    except InputError:
        raise
    except ImportError as error:
        raise MissingExtraError(error.name or "onnxscript", "onnx", "Writing a torch model as ONNX") from error
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"torch could not write this model as ONNX: {first}") from error
    return program.model_proto if program is not None else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's own remarks from the user's terminal."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
