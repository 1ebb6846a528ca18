"""`--class-mix` and `--impossible` of `recal apply`: what was typed, and what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recal.cli.printing import say

if TYPE_CHECKING:
    from recal.collecting.predictions import Predictions


def asked_mix(profile: Any, calibrator: Any, typed: str | None, impossible: list[str] | None) -> Any:
    """The class mix that was typed, or "follow" where it is to be estimated."""
    from recal.decisions import class_mix
    from recal.errors import InputError

    if typed == "follow":
        if impossible:
            raise InputError("--class-mix follow and --impossible cannot be combined: give one of them.")
        return typed
    if typed is None and not impossible:
        return None
    shares = None
    if typed is not None:
        pairs = [part.rpartition("=") for part in typed.split(",")]
        try:
            shares = {name.strip(): float(share) for name, _, share in pairs}
        except ValueError:
            raise InputError(f"--class-mix takes 'follow' or shares such as cat=0.6,dog=0.4, got {typed!r}.") from None
    names = getattr(calibrator, "classes_", None)
    return class_mix(
        profile, shares=shares, impossible=impossible or (), classes=None if names is None else list(names)
    )


def judged(applied: Predictions, profile: Any, logits: Any, follow: bool, mix: Any) -> Predictions:
    from recal.decisions import class_mix

    condition = profile.condition(logits) if follow else None
    found = class_mix(profile, logits) if mix == "follow" else mix
    return applied.judged(profile, condition, found, estimated=mix == "follow")


def tell_mix(applied: Predictions, has_rule: bool) -> None:
    assert applied.class_mix is not None
    said = applied.class_mix.describe(None if applied.classes is None else list(applied.classes))
    if not applied.class_mix.changed:
        say(said)
        return
    say(f"{said} It changes {applied.predictions_changed:,} of {len(applied.probs):,} predictions.")
    if has_rule:
        say("The rule was made for the class mix of its own samples, and so is its guarantee.")
