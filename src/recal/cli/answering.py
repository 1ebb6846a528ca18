"""Answers to new inputs: of views in a file, or of a model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recal.cli.files import check_views, open_views, row_columns
from recal.cli.inputs import Block, ModelInputs, without_none
from recal.cli.printing import on_interrupt, print_json, say, say_skipped, working
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.collecting.predictions import Predictions


@dataclass(frozen=True)
class Answers:
    """Predictions for new inputs, and the groups and names of the inputs."""

    predictions: Predictions
    groups: Any = None
    names: Sequence[str] | None = None
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Adaptation(Block):
    """How answers are adapted to these inputs, taken together."""

    follow: bool
    accept_unlike: bool
    class_mix: str | None
    impossible: list[str] | None

    @property
    def flag(self) -> str | None:
        """The first option that was typed, if any."""
        flags = {
            "--follow": self.follow,
            "--class-mix": self.class_mix is not None,
            "--impossible": self.impossible,
        }
        return next((flag for flag, typed in flags.items() if typed), None)

    def mix(self, calibrator: Any) -> Any:
        """Return the class mix that was typed, "follow" if it is to be estimated, or None."""
        from recal.collecting.predictions import profile_of
        from recal.decisions import class_mix

        if self.class_mix == "follow":
            if self.impossible:
                raise InputError(
                    "--class-mix follow and --impossible cannot be combined: give one of them."
                )
            return "follow"
        if self.class_mix is None and not self.impossible:
            return None
        shares = None
        if self.class_mix is not None:
            pairs = [part.rpartition("=") for part in self.class_mix.split(",")]
            try:
                shares = {name.strip(): float(share) for name, _, share in pairs}
            except ValueError:
                raise InputError(
                    f"--class-mix takes 'follow' or shares such as cat=0.6,dog=0.4, got {self.class_mix!r}."
                ) from None
        classes = getattr(calibrator, "classes_", None)
        return class_mix(
            profile_of(calibrator), shares=shares, impossible=self.impossible or (), classes=classes
        )


def answer_views_of(
    calibrator: Any,
    calibration: Path,
    file: Path,
    inputs: ModelInputs,
    follow: bool,
    mix: Any,
    *,
    force: bool,
) -> Answers:
    """Calibrate the views in a file."""
    from recal.collecting.predictions import Predictions, passes_of, profile_of
    from recal.decisions import class_mix
    from recal.maps.base import Map
    from recal.maps.guard import answer_views

    views = open_views(file, inputs.labels, inputs.class_names)
    views = views.assign(**row_columns(inputs.rows or file, inputs.group, None))
    check_groups(getattr(calibrator, "decision_", None), views.groups, file)
    stored = getattr(calibrator, "preprocessing_", None)
    _compare_preprocessing(stored, views.preprocessing, file, force=force)
    check_views(calibrator, calibration, views, file)
    with working("Applying"):
        passes, n_fitted = None, 0
        if isinstance(calibrator, Map):
            probs, confidences = answer_views(calibrator, views, kept=calibrator.keeps_answers)
        else:
            probs, confidences = calibrator.predict_both(views)
            passes, n_fitted = passes_of(calibrator, views.logits), calibrator.fitted_rows(views)
        predictions = Predictions(
            probs, views.labels, views.classes, passes, confidences, n_fitted, logits=views.logits
        )
        if follow or mix is not None:
            profile = profile_of(calibrator)
            condition = profile.condition(views.logits) if follow else None
            estimated = mix == "follow"
            mix = class_mix(profile, views.logits) if estimated else mix
            predictions = predictions.judged(profile, condition, mix, estimated=estimated)
    return Answers(predictions, views.groups)


def answer_inputs(
    calibrator: Any, inputs: ModelInputs, out: Path, follow: bool, mix: Any, force: bool
) -> Answers | None:
    """Run the model on new inputs and calibrate its answers;

    None if they were written as a folder of tables.
    """
    from recal.collecting.predictions import apply as run
    from recal.collecting.predictions import apply_distributed

    model, source, how = inputs.open_as_fitted(calibrator, refuse=not force)
    check_groups(getattr(calibrator, "decision_", None), source.groups, inputs.data)
    how.setdefault("engine", "local")
    note = f"Finished parts are kept in {out}: run the same command again to resume."
    if out.suffix:
        note = "No files were written. To be able to resume, collect first: recal collect --out NAME.zarr"
    with on_interrupt(note):
        if out.suffix:
            how |= {"follow": follow, "class_mix": mix, **without_none(labels=inputs.labels)}
            how["keep_logits"] = not follow and getattr(calibrator, "profile_", None) is not None
            return Answers(
                run(calibrator, model, source, **how), source.groups, source.names(), source.skipped
            )
        parts = apply_distributed(calibrator, model, source, out, **how)
    counts = {
        "samples": parts.samples,
        "written": parts.written,
        "passes_per_answer": parts.passes_per_answer,
    }
    print_json({**counts, "skipped": source.skipped, "file": parts.folder})
    say_skipped(source.skipped)
    n_before = parts.samples - parts.written
    before = f", {n_before:,} of which were there already" if n_before else ""
    say(
        f"Tables with {parts.samples:,} samples are in {parts.folder}{before}.{cost(parts.passes_per_answer, 'took')}"
    )
    return None


def check_groups(rule: Any, groups: Any, data: Any) -> None:
    """Refuse inputs without groups before the work, if the rule has a threshold for each group."""
    if rule is not None and rule.groups and groups is None:
        raise InputError(
            f"The rule has a threshold for each of {len(rule.groups)} groups, and {data} does not say which group an "
            "input belongs to. Add --group COLUMN, and --rows TABLE if the data have no columns."
        )


def _compare_preprocessing(stored: Any, other: Any, path: Path, *, force: bool) -> None:
    """Warn if views were collected in another way, or from another model, than those of the fit.

    Refuse answers of a language model that was asked otherwise.
    """
    if stored is None or other is None:
        return
    from recal.answers.templates import check_asked
    from recal.transforms.preprocessing import check_model

    check_asked(stored.asked, other.asked, force=force)
    if other.model is not None:
        check_model(stored, other.model)
    if stored.options() != other.options():
        warnings.warn(
            f"{path} was collected with {str(other) or 'no preprocessing'}, and the views of the fit with "
            f"{str(stored) or 'no preprocessing'}: the calibration was not fitted for this.",
            UserWarning,
            stacklevel=2,
        )


def cost(passes_per_answer: float | None, takes: str) -> str:
    if passes_per_answer is None or passes_per_answer == 1:
        return ""
    return f" An answer {takes} {passes_per_answer:.2f} forward passes."
