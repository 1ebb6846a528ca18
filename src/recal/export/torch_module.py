"""The torch runtime: a model and its plan as one module, on any device, and its ONNX graph."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import numpy as np

from recal.checks import is_single_column, looks_like_probabilities
from recal.errors import InputError, MissingExtraError, needs_extra
from recal.export.calibration import Calibration, calibration_of
from recal.maps.steps import Plan
from recal.transforms import BuiltIn, Named, Transform
from recal.transforms.arrays import is_plain
from recal.transforms.preprocessing import match_preprocess

with needs_extra("torch", "CalibratedModule"):
    import torch

Tensor = torch.Tensor


def calibrated(
    calibration: Calibration, logits: Tensor, transformed: Tensor
) -> tuple[Tensor, Tensor]:
    """Return calibrated logits, (n, n_classes), shifted so that the largest in each row is 0, and
    the confidence in each prediction, (n,): its probability before any guard.

    Plain CPU tensors share their memory with numpy, which runs the map, with compiled code if it is
    large. On other devices, in a trace or if a gradient is needed, torch runs the same map.

    Parameters
    ----------
    logits : (n, n_classes)
    transformed : (m, n, n_classes), the logits through each of the calibration's transformations
    """
    if _shares_memory(logits) and is_plain(transformed) and len(logits):
        rows, views = logits.detach().numpy(), transformed.detach().numpy()
        # A NaN in the inputs must give NaN, which compiled loops do not guarantee.
        if np.isfinite(rows).all() and np.isfinite(views).all():
            probs, confidence = map(torch.from_numpy, calibration.answer(rows, list(views)))
            return _logs(probs, logits), confidence
    return by_torch(calibration, logits, transformed)


def by_torch(
    calibration: Calibration, logits: Tensor, transformed: Tensor
) -> tuple[Tensor, Tensor]:
    """Do the same with torch operations only."""
    probs, confidence = calibration.answer(logits, list(transformed.unbind(0)))
    return _logs(probs, logits), confidence


def _logs(probs: Tensor, logits: Tensor) -> Tensor:
    """Return logarithms, in float64 if the model's logits are, and in float32 otherwise."""
    logs = probs.log()
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return (logs - logs.amax(1, keepdim=True)).to(dtype)


def _shares_memory(logits: Tensor) -> bool:
    """Whether numpy can read a tensor where it is."""
    return is_plain(logits) and logits.dtype in (torch.float16, torch.float32, torch.float64)


class CalibratedModule(torch.nn.Module):
    """A model that returns calibrated logits: their softmax gives calibrated probabilities.

    Only the transformations that the plan needs are computed, joined with the originals into larger
    batches. If the plan has a gate, they are computed only for the samples below it. The logits of
    each row are shifted so that the largest is 0. This does not change the softmax, and rounding
    can then never change a prediction.

    Parameters
    ----------
    model : torch.nn.Module
        Returns logits of shape (n, n_classes), or an object with such `logits`. It is put into eval
        mode for good.
    plan : Plan, or a fitted calibrator that has one
        What `ViewStacking`, `ReCal` or `TemperatureScaling` fitted on this model's logits.
    preprocess : callable, optional
        Runs after the transformation and before the model, as in `collect`: normalisation, for
        instance. If `plan` is a calibrator that knows the normalisation of its views, that is the
        default, and a different one is refused.

    Notes
    -----
    `torch.export` and `torch.compile` do not see values, so they compute the views of all rows,
    with the same answers. An ONNX file written by `recal.export` keeps the gate. `torch.jit.trace`
    is refused: it would freeze the choices made for one batch. After ``.half()``, confidences are
    still compared with the plan's gate as before.

    Examples
    --------
    >>> import torch
    >>> from recal import Plan, Step
    >>> from recal import CalibratedModule
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    >>> calibrated = CalibratedModule(model, Plan((Step("zoom:0.5", (1.0, 0.9, 0.8, 0.7)),)))
    >>> calibrated(torch.rand(2, 1, 8, 8)).softmax(1).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        model: torch.nn.Module,
        plan: Any,
        preprocess: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, torch.nn.Module):
            raise InputError(
                f"CalibratedModule wraps a torch.nn.Module, got {type(model).__name__}."
            )
        self.model = model
        self.preprocess = match_preprocess(getattr(plan, "preprocessing_", None), preprocess)
        self.source, self.calibration = plan, calibration_of(plan)
        if isinstance(self.calibration.map, Plan):
            # torch.compile cannot trace the lock that a cached property takes at first.
            _ = self.calibration.map.program
        for transform in self.transforms:
            if isinstance(transform, Named):
                transform.code()  # refuses one that is known by name only
        self._outputs_checked = False
        self.train(False)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transformations whose views are computed."""
        return self.calibration.map.transforms

    def train(self, mode: bool = True) -> CalibratedModule:
        """Stay in eval mode: a calibrated model is not trained any more."""
        self.training = False
        for part in self.children():
            try:
                part.train(False)
            except NotImplementedError:
                continue  # an exported program has no modes
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """Return calibrated logits, (n, n_classes)."""
        return self.predict_both(inputs)[0]

    def predict_confidence(self, inputs: Tensor) -> Tensor:
        """Return the chance that each answer is right, (n,), as a calibrator's `predict_confidence`
        does.
        """
        return self.predict_both(inputs)[1]

    def predict_both(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return calibrated logits, (n, n_classes), and the confidence in each answer, (n,), from
        the same passes.
        """
        return calibrated(self.calibration, *self._all_logits(inputs))

    def _all_logits(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's logits, (n, n_classes), and those of the views, (m, n, n_classes)."""
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            raise InputError(
                "torch.jit.trace freezes what depends on a batch; use torch.export.export, or "
                "export_onnx."
            )
        inputs, transforms = torch.as_tensor(inputs), self.transforms
        if torch.compiler.is_compiling():
            # A graph has no sizes to split by, so all views go in one batch.
            logits = self._logits(inputs, (None, *transforms), 1 + len(transforms))
            return logits[0], logits[1:]
        n, most = max(1, inputs.shape[0]), 256
        if inputs.device.type == "cpu":  # larger batches leave its caches
            most = min(32, 100_000 * n // max(1, inputs.numel()))
        joined = max(1, most // n)
        if self.calibration.map.gate is None:
            stack = self._logits(inputs, (None, *transforms), joined)
            logits, transformed = stack[0], stack[1:]
        else:  # views are computed only for the rows whose confidence is below the gate
            logits = self._logits(inputs, (None,), 1)[0]
            plain = logits.detach().numpy() if _shares_memory(logits) else logits
            needed = torch.as_tensor(self.calibration.map.needs_views(plain))
            rows = needed.nonzero()[:, 0]
            transformed = logits.new_zeros((len(transforms), *logits.shape))
            if len(rows):
                some = self._logits(inputs[rows], transforms, joined)
                transformed = transformed.index_copy(1, rows, some)
        if not self._outputs_checked and len(logits):
            if looks_like_probabilities(logits.detach().cpu().float().numpy()):
                raise InputError(
                    "The model's outputs lie in [0, 1] and sum to 1: these are probabilities, "
                    "and logits are needed. Wrap the model without its softmax."
                )
            self._outputs_checked = True
        return logits, transformed

    def _logits(self, inputs: Tensor, views: tuple[Transform | None, ...], joined: int) -> Tensor:
        """Return the model's logits of all views, (m, n, n_classes), with `joined` views per
        forward pass.
        """
        starts = range(0, len(views), joined)
        batches = ([_view(one, inputs) for one in views[at : at + joined]] for at in starts)
        logits = torch.cat([self.logits_of(torch.cat(rows)) for rows in batches])
        return logits.reshape((len(views), inputs.shape[0], logits.shape[-1]))

    def logits_of(self, rows: Tensor) -> Tensor:
        """Return the model's own logits for rows that are already transformed."""
        prepared = rows if self.preprocess is None else self.preprocess(rows)
        weight = next((p for p in self.model.parameters() if p.is_floating_point()), None)
        if weight is not None and (prepared.is_floating_point() or prepared.dtype == torch.uint8):
            prepared = prepared.to(weight.dtype)  # as `collect` does; token ids are left alone
        outputs = self.model(prepared)
        logits = getattr(outputs, "logits", outputs)
        # One column holds the log-odds of the second of two classes.
        if isinstance(logits, Tensor) and is_single_column(logits.shape):
            logits = torch.stack([torch.zeros_like(logits.reshape(-1)), logits.reshape(-1)], dim=1)
        if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[0] != rows.shape[0]:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise InputError(f"The model must give logits of the shape (n, n_classes), got {got}.")
        return logits


def _view(transform: Transform | None, inputs: Tensor) -> Tensor:
    """Return the transformed inputs; your own code gets a copy, because it may work in place."""
    if transform is None:
        return inputs
    return transform(inputs if isinstance(transform, BuiltIn) else inputs.clone())


# --- modules as ONNX graphs


class OwnLogits(torch.nn.Module):
    """A model's own logits for inputs: preprocess, cast to the dtype of its weights, model."""

    def __init__(self, model: torch.nn.Module, preprocess: Any) -> None:
        super().__init__()
        self.calibrated = CalibratedModule(model, Plan(), preprocess)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.calibrated.logits_of(inputs)


def parts_of(model: Any, plan: Any, preprocess: Any) -> tuple[torch.nn.Module, Any, Any]:
    """Return model, plan and preprocess; a CalibratedModule has all three."""
    if isinstance(model, CalibratedModule):
        if plan is not None or preprocess is not None:
            raise InputError(
                "A CalibratedModule has its own plan and preprocess; do not pass others."
            )
        return model.model, model.source, model.preprocess
    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"A torch module or the path of an ONNX file is needed, got {type(model).__name__}."
        )
    return model, plan, preprocess


def as_onnx(module: torch.nn.Module, example: Any) -> Any:
    """Return a module as an ONNX model with one input, `inputs`, of any number of rows, and one
    output.
    """
    batch = torch.as_tensor(example)
    if batch.ndim < 2:
        raise InputError(
            f"The example must be a batch of inputs, (n, ...), got the shape {tuple(batch.shape)}."
        )
    batch = torch.cat([batch[:1], batch[:1]])  # a batch of one would be taken for a fixed size
    try:
        # The exporter's own messages are not for the user; onnxscript 0.6 also prints.
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            program = torch.onnx.export(
                module.eval(),
                (batch,),
                dynamo=True,
                dynamic_shapes={"inputs": {0: torch.export.Dim("batch")}},
                input_names=["inputs"],
                output_names=["logits"],
                opset_version=18,  # the oldest that torch writes; it has all nodes that recal adds
                verbose=False,
            )
    except InputError:
        raise
    except ImportError as error:
        raise MissingExtraError(
            error.name or "onnxscript", "onnx", "Writing a torch model as ONNX"
        ) from error
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"torch could not write this model as ONNX: {first}") from error
    assert program is not None  # nothing was written to a file
    model = program.model_proto
    model.ir_version = 8  # torch writes a newer version, but uses only its metadata fields
    return model
