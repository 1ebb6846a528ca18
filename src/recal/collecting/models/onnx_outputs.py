"""Which of an ONNX model's outputs holds the scores of the classes: one rule, for running it and for exporting it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recal.errors import InputError, Remedy

FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)")


@dataclass(frozen=True)
class Output:
    """An output's name, its type as onnxruntime writes it, and how many axes it has; None where nothing is said."""

    name: str
    type: str
    axes: int | None

    @property
    def is_zipped(self) -> bool:
        """Whether it is a list of one dictionary per row, from class to probability, as skl2onnx writes it."""
        return self.type.startswith("seq(map(")

    @property
    def holds_probs(self) -> bool:
        """Whether its name or type says that it holds probabilities, as those of skl2onnx and paddle2onnx do."""
        name = self.name.lower()
        return self.is_zipped or ("log" not in name and ("prob" in name or "softmax" in name))

    @property
    def may_be_scores(self) -> bool:
        return self.is_zipped or (self.type in FLOATS and self.axes in (None, 2))


def choose_output(
    model: str, outputs: Sequence[Output], asked: str | None = None, *, file: str = "net.onnx", inputs: str = "x"
) -> Output:
    """Return the output asked for, the only one, the one called logits, or the only one that can be scores.

    `file` and `inputs`, the name of the model's input, are for what to type where none can be chosen.
    """
    names = [output.name for output in outputs]
    if asked is not None:
        if asked not in names:
            raise InputError(f"{model} has no output {asked!r}; it has: {', '.join(names)}.")
        return outputs[names.index(asked)]
    if len(outputs) == 1:
        return outputs[0]
    if "logits" in names:
        return outputs[names.index("logits")]
    scores = [output for output in outputs if output.may_be_scores]
    called = [output for output in scores if "logits" in output.name.lower()]
    for found in (scores, called):
        if len(found) == 1:
            return found[0]
    code = f"import onnx.utils; onnx.utils.extract_model({file!r}, 'one.onnx', [{inputs!r}], [{names[0]!r}])"
    raise InputError(
        f"{model} has several outputs ({', '.join(names)}) and none is called logits",
        remedy=Remedy(
            "Say which: from recal.collecting import OnnxModel; OnnxModel(path, output=...)",
            typed=f'Write a file with the one that holds logits, and use that: python -c "{code}"',
        ),
    )
