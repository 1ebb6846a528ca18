"""`recal fit`: learn a calibration from views with labels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli.printing import AsJson, print_json, say, typed, working
from recal.cli.recognise import check_kind
from recal.cli.sources import open_views
from recal.files.places import as_place

_DEFAULT_METHOD = "auto"


def fit(
    views: Annotated[
        Path, typer.Argument(help="Views with labels: an .npz file, a .zarr folder or its URL (s3://...).")
    ],
    out: Annotated[Path, typer.Option("--out", help="Where to write the fitted calibration.")],
    method: Annotated[
        str, typer.Option("--method", help="The method, such as ts or stack. Each has its own options.")
    ] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same result.")] = 0,
    labels: Annotated[
        Path | None,
        typer.Option("--labels", help="Labels, if the views have none: .npy, IDX, or .txt with one per line."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option("--classes", help="The names of the columns in order, if labels are names.")
    ] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Fit a calibration on views with labels.

    Without --method, cross-validation on these samples chooses; one sentence says which method and why.

    Views hold a model's logits for held-out inputs and, where the method uses them, for transformed copies. The
    method's own options, with their defaults, are shown by [bold]recal fit --method NAME --help[/bold].

    The calibration also holds a profile of these samples, for [bold]recal watch[/bold] and
    [bold]recal apply --follow[/bold].

    Example: [bold]recal fit held-out.npz --method stack --max-views 1 --out calibration.recal[/bold]
    """
    from recal import profile, save
    from recal.cli.methods import given, make

    calibrator = make(method, given(options), seed)
    found = open_views(views, labels, classes)
    with working(f"Fitting {method}"):
        calibrator.fit(found)
        calibrator.profile_ = profile(found, random_state=seed)
    save(calibrator, out)
    plan = getattr(calibrator, "plan_", None)
    steps = None if plan is None else len(plan.steps)
    if as_json:
        chosen = {
            name: getattr(calibrator, f"{name}_") for name in ("choice", "reason") if hasattr(calibrator, f"{name}_")
        }
        told = {"method": method, **chosen, "parameters": calibrator.get_params(), "steps": steps, "file": out}
        print_json(told)
        return
    if reason := getattr(calibrator, "reason_", ""):
        say(reason)
    say(f"Fitted {calibrator} on {views}" + (f": a plan of {steps} steps." if steps else "."))
    say(f"Written to {out}. Next: {typed('recal', 'apply', out, 'NEW_VIEWS', '--out', 'probs.npz')}")


def build(argv: Sequence[str]) -> Callable[..., None]:
    """Return `fit` with the options of the method that was typed, read from its signature."""
    from recal.calibrators import short_names
    from recal.cli.methods import option_parameters

    if argv and not argv[0].startswith("-"):  # a wrong file is refused before a method is loaded
        check_kind(as_place(argv[0]), "views")

    def command(**values: Any) -> None:
        fit(**values)

    own = [p for p in inspect.signature(fit, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    listed = Annotated[str, typer.Option("--method", help=f"One of: {', '.join(sorted(short_names()))}.")]
    own = [p.replace(annotation=listed) if p.name == "method" else p for p in own]
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in own] + option_parameters(_method(argv))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = fit.__doc__
    return command


def _method(argv: Sequence[str]) -> str:
    for index, argument in enumerate(argv):
        if argument == "--method" and index + 1 < len(argv):
            return argv[index + 1]
        if argument.startswith("--method="):
            return argument.removeprefix("--method=")
    return _DEFAULT_METHOD
