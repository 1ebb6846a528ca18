"""The whole file: inputs, views, the model, the plan, the answers. Views are computed where they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.decisions.rule import Reads
from recal.export.blend import blended, gated, needs_views
from recal.export.graph import BOOL, DOUBLE, FLOAT, INT64, IR_VERSION, Nodes, model_of, onnx, tensor
from recal.export.heads import Head
from recal.export.pieces import Piece, element_type, opsets_of, rows_of, sizes
from recal.transforms import Transform
from recal.transforms.preprocessing import least_probability

# As in Python: a little above full scale is rounding, more is another scale.
_ABOVE = 1.001
# The name of the number of rows that go through the model with their views.
_ROWS = "view_rows"


@dataclass(frozen=True)
class Accept:
    """The confidence from which on an answer is accepted, of any class or of each, and what is compared with it."""

    thresholds: NDArray[np.float64]
    reads: Reads


@dataclass(frozen=True)
class Whole:
    """What is put together: pieces from inputs to logits, the views, the plan.

    `branched` is for models that cannot take a batch of no rows: views behind a gate then stand in a branch, which
    runtimes do not optimise as they do the main graph.
    """

    front: Sequence[Piece]
    views: Piece | None
    head: Head
    n_classes: int
    outputs: str
    shape: Sequence[int] = ()
    branched: bool = False

    def logits(self, g: Nodes, rows: str, given: int) -> str:
        """Put the model behind rows of the element type `given`."""
        for number, piece in enumerate(self.front):
            wanted = element_type(piece.input)
            rows = rows if wanted == given else g.cast(rows, wanted)
            rows, given = piece.put(g, rows, f"model{number}_"), element_type(piece.output)
        if self.outputs != "logits":
            kind = onnx.helper.tensor_dtype_to_np_dtype(given)
            rows = g.op(
                "Log", g.op("Max", rows, g.const(np.array(least_probability(self.outputs, self.n_classes), kind)))
            )
        return rows


def whole_model(
    front: Sequence[Piece],
    views: Piece | None,
    head: Head,
    n_classes: int,
    example: Any,
    *,
    outputs: str = "logits",
    accept: Accept | None = None,
    branched: bool = False,
) -> onnx.ModelProto:
    """Return the model of the whole file; `example` is a batch as the file will get them, or None: as the model's."""
    own_name = front[0].input.name
    name = "inputs" if views is not None or len(front) > 1 or own_name == "logits" else own_name
    if example is None:
        given, shape = element_type(front[0].input), sizes(front[0].input)
    else:
        given = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(str(example.dtype).removeprefix("torch.")))
        shape = list(example.shape)
    whole, g = Whole(front, views, head, n_classes, outputs, shape[1:], branched), Nodes()
    logits, own, passes = _answers(g, whole, name, given)
    wide = ["batch", n_classes]
    rows = rows_of(front[-1]) or "batch"  # a batch that could not be opened stays fixed
    values = [tensor(name, given, [rows, *(size or None for size in shape[1:])])]
    pieces = [*front, views] if views is not None else [*front]
    results = [tensor("probs", FLOAT, wide), *_results(g, whole, logits, own, passes, accept)]
    return model_of(
        g,
        values,
        results,
        opsets_of(*(piece.model for piece in pieces)),
        max(IR_VERSION, *(piece.model.ir_version for piece in pieces)),
    )


def _answers(g: Nodes, whole: Whole, inputs: str, given: int) -> tuple[str, str, str]:
    """Return the originals' logits, the map's own float64 probabilities, and how many passes each answer takes."""
    head, n_classes, n_views = whole.head, whole.n_classes, len(whole.head.transforms)
    if whole.views is not None and head.gated is not None:
        return _gated_answers(g, whole, inputs, given)
    if whole.views is None:
        logits, transformed = whole.logits(g, inputs, given), ""
    else:
        rows = g.op("Concat", inputs, whole.views.put(g, inputs, "views_"), axis=0)
        rows = g.shaped(rows, given, [_ROWS, *whole.shape])
        stack = g.op("Reshape", whole.logits(g, rows, given), g.const([1 + n_views, -1, n_classes]))
        stack = _refused(g, stack, head.transforms, inputs, given)
        logits, transformed = g.row(stack, 0), g.part(stack, 1, 1 + n_views, axis=0)
    own = head.own_probs(g, logits, transformed, n_classes)
    zeros = g.op("Mul", g.op("ArgMax", logits, axis=1, keepdims=0), g.const(np.int64(0)))
    return logits, own, g.op("Add", zeros, g.const(np.int64(1 + n_views)))


def _gated_answers(g: Nodes, whole: Whole, inputs: str, given: int) -> tuple[str, str, str]:
    """The same where a gate spares confident samples their views: the rows below it are gathered, run and put back."""
    plan, n_classes, n_views = whole.head.gated, whole.n_classes, len(whole.head.transforms)
    assert whole.views is not None
    assert plan is not None
    logits = _refused(g, whole.logits(g, inputs, given), plan.transforms, inputs, given)
    needed = needs_views(g, logits, plan)
    members = whole.head.mixed(g, logits, n_classes)
    sure = gated(g, logits, plan, n_classes, members)
    inside = Nodes(g) if whole.branched else g
    rows = inside.op("Reshape", inside.op("NonZero", needed), inside.const([-1]))
    asked = whole.views.put(inside, inside.op("Gather", inputs, rows, axis=0), "views_")
    asked = inside.shaped(asked, given, [_ROWS, *whole.shape])
    seen = inside.op("Reshape", whole.logits(inside, asked, given), inside.const([n_views, -1, n_classes]))
    asked_members = inside.op("Gather", members, rows, axis=0) if members else ""
    own_logits = inside.op("Gather", logits, rows, axis=0)
    mixed = blended(inside, own_logits, seen, plan, n_classes, asked_members)
    probs = inside.op("ScatterND", sure, inside.op("Unsqueeze", rows, inside.const([1])), mixed)
    if whole.branched:
        none = Nodes(g)
        as_they_are = none.op("Identity", sure)
        any_needed = g.op("Greater", g.op("ReduceMax", g.cast(needed, FLOAT), keepdims=0), g.const(np.float32(0)))
        probs = g.choose(any_needed, inside, none, [(probs, as_they_are, DOUBLE)])[0]
    passes = g.op("Add", g.op("Mul", g.cast(needed, INT64), g.const(np.int64(n_views))), g.const(np.int64(1)))
    return logits, probs, passes


def _refused(g: Nodes, logits: str, transforms: tuple[Transform, ...], inputs: str, given: int) -> str:
    """Return logits, (..., n, K), with NaN in the rows of inputs that a transformation would refuse in Python."""
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(given)).name
    limits = [full(dtype) for t in transforms if (full := getattr(t, "full_scale", None)) is not None]
    known = [limit for limit in limits if limit is not None]
    if not known:
        return logits
    values = g.op("Abs", g.cast(g.op("Flatten", inputs, axis=1), DOUBLE))
    inside = g.op("LessOrEqual", g.reduce("ReduceMax", values, 1), g.const(min(known) * _ABOVE))  # (n, 1)
    bad = g.op("CastLike", g.const(np.float32(np.nan)), logits)
    return g.op("Where", inside, logits, bad)


def _results(
    g: Nodes, whole: Whole, logits: str, own: str, passes: str, accept: Accept | None
) -> list[onnx.ValueInfoProto]:
    """Add the outputs, and return all but the first, `probs`."""
    probs, answer, confidence = whole.head.answer(g, own, logits, whole.n_classes)
    largest = g.op("GatherElements", probs, answer, axis=1)
    answer, confidence, largest = (g.op("Squeeze", value, g.const([1])) for value in (answer, confidence, largest))
    g.rename(g.cast(probs, FLOAT), "probs")
    unknown = g.op("IsNaN", g.cast(confidence, FLOAT))
    g.rename(g.op("Where", unknown, g.const(np.int64(-1)), answer), "prediction")
    g.rename(g.cast(confidence, FLOAT), "confidence")
    g.rename(g.op("Identity", passes), "passes")
    g.rename(g.cast(logits, FLOAT), "logits")
    results = [("prediction", INT64), ("confidence", FLOAT), ("passes", INT64)]
    if accept is not None:
        limits = accept.thresholds
        threshold = g.const(limits[0]) if len(limits) == 1 else g.op("Gather", g.const(limits), answer, axis=0)
        read = confidence if accept.reads == "confidence" else largest
        g.rename(g.op("GreaterOrEqual", read, threshold), "accept")
        results.append(("accept", BOOL))
    # The model's own logits, which a watch compares with those of the fit.
    wide = tensor("logits", FLOAT, ["batch", whole.n_classes])
    return [*(tensor(name, kind, ["batch"]) for name, kind in results), wide]
