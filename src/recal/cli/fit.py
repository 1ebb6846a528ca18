"""`recal fit`: fit one method on views with labels."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from recal.cli import options as opt
from recal.cli.printing import print_json, say, shell_line, working
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator

# The options of the method are read by `read_parameters`.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}

INPUTS = opt.ROWS


def fit(
    ctx: Context,
    views: opt.ViewsFile,
    out: Annotated[Path, Option(help="Where to write the fitted calibration.")],
    method: Annotated[str, Option(help="The method, such as ts, recal or stack.")] = "auto",
    seed: opt.SeedNumber = 0,
    force: opt.Force = False,
) -> None:
    """Fit a calibration on views with labels.

    Without --method, cross-validation on these samples chooses; one sentence says which method and
    why. The parameters of a method are options too, after the file: --max-views 1.

    Views hold a model's logits for held-out inputs and, where the method uses them, for transformed
    copies. The calibration also holds a profile of these samples, for [bold]recal watch[/bold] and
    [bold]recal apply --follow[/bold].

    Example: [bold]recal fit held-out.npz --method stack --max-views 1 --out
    calibration.recal[/bold]
    """
    samples = ctx.obj.views(views, need_labels=True)
    from recal import profile, save

    calibrator: Any = new_calibrator(method, read_parameters(method, ctx.args), seed)
    with working(f"Fitting {method}"):
        calibrator.fit(samples)
        calibrator.profile_ = profile(samples, random_state=seed)
    save(calibrator, out)
    plan = calibrator.map_.plan
    steps = None if plan is None else len(plan.steps)
    facts: dict[str, Any] = {"method": method, "parameters": calibrator.get_params()}
    for fact in ("choice", "reason"):
        if hasattr(calibrator, f"{fact}_"):
            facts[fact] = getattr(calibrator, f"{fact}_")
    if "reason" in facts:
        say(facts["reason"])
    print_json({**facts, "steps": steps, "file": out})
    say(f"Fitted {calibrator} on {views}" + (f": a plan of {steps} steps." if steps else "."))
    say(f"Written to {out}. Next: {shell_line('apply', out, 'NEW_VIEWS', '--out', 'probs.npz')}")


def new_calibrator(name: str, options: dict[str, Any], seed: int | None = None) -> Calibrator:
    """Return an unfitted calibrator. Methods without random numbers ignore the seed."""
    from recal.calibrators import find_method

    calibrator, preset = find_method(name)
    if "random_state" in inspect.signature(calibrator).parameters and seed is not None:
        options = {**options, "random_state": seed}
    return calibrator(**{**preset, **options})


def read_parameters(method: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a method that were typed as options.

    Examples
    --------
    >>> read_parameters("stack", ["--max-views", "1"])
    {'max_views': 1}
    """
    from recal.calibrators import find_method
    from recal.schema import Kind, parameter_kinds

    calibrator = find_method(method)[0]
    names = [name for name in inspect.signature(calibrator).parameters if name != "random_state"]
    kinds, found, queue = parameter_kinds(calibrator), {}, list(words)
    while queue:
        flag, has_value, text = queue.pop(0).partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if name == "answers" and name not in names and calibrator.keeps_accuracy:
            raise InputError(f"--method {method} never changes predictions. Leave out --answers.")
        if not flag.startswith("--") or name not in names:
            known = ", ".join(f"--{one.replace('_', '-')}" for one in names) or "none"
            raise InputError(f"There is no option {flag}. Those of --method {method} are: {known}.")
        if not has_value and not queue:
            raise InputError(f"{flag} needs a value.")
        text = text if has_value else queue.pop(0)
        kind = kinds.get(name, Kind())
        try:
            found[name] = kind.parse(text)
        except ValueError:
            raise InputError(f"{flag} must be {kind.rule}, got {text!r}.") from None
    return found
