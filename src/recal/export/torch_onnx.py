"""torch modules as ONNX graphs: the parts of an exported file that are traced, not written by hand."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from recal.checks import looks_like_probabilities
from recal.errors import InputError, MissingExtraError
from recal.export.torch_module import CalibratedModule, Tensor, torch
from recal.maps.steps import Plan
from recal.transforms import Transform

# The oldest opset that torch's exporter writes; it has every other node that recal adds.
_OPSET = 18


class Function(torch.nn.Module):
    """A function as a module, because torch exports modules; `model` holds the weights that the
    function reads.
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], model: torch.nn.Module | None = None
    ) -> None:
        super().__init__()
        self.function, self.model = function, model
        self.training = False

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


def views_of(transforms: tuple[Transform, ...]) -> Function:
    """Return a function from inputs to the rows of all views, one transformation after the other."""
    return Function(lambda inputs: torch.cat([transform(inputs) for transform in transforms]))


def logits_of(model: torch.nn.Module, preprocess: Any) -> Function:
    """Return a function from inputs to the model's own logits: preprocess, cast to its weights'
    dtype, model.
    """
    calibrated = CalibratedModule(model, Plan(), preprocess)
    return Function(calibrated.logits_of, calibrated)


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


def gives_probabilities(model: torch.nn.Module, preprocess: Any, example: Any) -> bool:
    """Whether the model's answers to a few random inputs are probabilities."""
    shape = (8, *torch.as_tensor(example).shape[1:])
    like = torch.as_tensor(example)
    draw = torch.Generator().manual_seed(0)
    if like.is_floating_point():
        inputs = torch.rand(shape, generator=draw).to(like.dtype)
    else:  # pixels, or token ids (every vocabulary has at least two)
        inputs = torch.randint(
            0, 256 if like.dtype == torch.uint8 else 2, shape, generator=draw
        ).to(like.dtype)
    weight = next(model.parameters(), None)
    try:
        with torch.no_grad():
            answers = logits_of(model, preprocess)(
                inputs if weight is None else inputs.to(weight.device)
            )
    except InputError:
        raise
    except Exception:  # the export itself will say what is wrong with the example
        return False
    return looks_like_probabilities(answers.float().cpu().numpy())


def as_onnx(module: torch.nn.Module, example: Any, output: str) -> Any:
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
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module.eval(),
                (batch,),
                dynamo=True,
                dynamic_shapes={"inputs": {0: torch.export.Dim("batch")}},
                input_names=["inputs"],
                output_names=[output],
                opset_version=_OPSET,
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
    model = program.model_proto if program is not None else None
    if model is not None and model.graph.input[0].type.tensor_type.shape.dim[0].HasField(
        "dim_value"
    ):
        raise InputError(
            "torch wrote this model for a fixed number of rows: its forward takes that number as a constant, with "
            "len(x) for instance. Write x.shape[0] or x.flatten(1) in its place."
        )
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's own messages off the user's terminal."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):  # onnxscript 0.6 prints
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
