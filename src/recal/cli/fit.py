"""`recal fit`: learn a calibration from views with labels, by any method and with its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recal.cli.files import check_kind, open_views
from recal.cli.printing import AsJson, print_json, say, typed, working
from recal.errors import InputError
from recal.files.urls import as_path

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator
    from recal.schema import Kind


# The seed has its own option, the same for every method.
_SEED = "random_state"


def listed(text: str) -> list[str]:
    """Return the short names in a list joined with commas; `all` stands for every method."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("--methods names no method; give short names such as ts,ets,recal, or all.")
    from recal.calibrators import short_names

    return list(short_names()) if names == ["all"] else names


def make(name: str, options: dict[str, Any], seed: int | None = None) -> Calibrator:
    """Return an unfitted calibrator. Methods that draw nothing at random have no use for the seed."""
    from recal.calibrators.names import find_method

    calibrator, named = find_method(name)
    if _SEED in inspect.signature(calibrator).parameters and seed is not None:
        options = {**options, _SEED: seed}
    return calibrator(**{**named, **options})


def option_parameters(name: str) -> list[inspect.Parameter]:
    """Return one typer option for each parameter of the method's constructor, its default included."""
    from recal.calibrators.names import find_method

    calibrator, _ = find_method(name)
    from recal.schema import Kind, parameter_kinds

    kinds, descriptions = parameter_kinds(calibrator), _parameter_descriptions(calibrator.__doc__ or "")
    parameters = []
    for parameter in inspect.signature(calibrator).parameters.values():
        if parameter.name == _SEED:
            continue
        kind = kinds.get(parameter.name, Kind())
        option = typer.Option(
            f"--{parameter.name.replace('_', '-')}",
            parser=_parser(kind),
            metavar=kind.metavar,
            help=descriptions.get(parameter.name, ""),
            show_default="none" if parameter.default is None else str(parameter.default),
            rich_help_panel=f"Options of --method {name}",
        )
        # An option that was not typed stays None here and is left out, so the constructor's default applies.
        annotation = Annotated[str, option]
        parameters.append(
            inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return parameters


def _parser(kind: Kind) -> Callable[[str], Any]:
    def parse(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        try:
            return _Typed(kind.parse(text))
        except ValueError:
            raise typer.BadParameter(f"{text!r} cannot be read as {kind.metavar}") from None

    parse.__name__ = "value"
    return parse


class _Typed:
    """A value that was typed, so that a typed `none` differs from an option that was left out."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _typed_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: option.value for name, option in options.items() if isinstance(option, _Typed)}


def _parameter_descriptions(docstring: str) -> dict[str, str]:
    """Return the description of each parameter in a numpy docstring."""
    descriptions: dict[str, str] = {}
    lines = inspect.cleandoc(docstring).splitlines()
    starts = [i + 2 for i, line in enumerate(lines[:-1]) if line == "Parameters" and set(lines[i + 1]) == {"-"}]
    name = ""
    for line in lines[starts[0] :] if starts else []:
        if line and not line.startswith(" "):
            if " : " not in line:
                break
            name = line.split(" : ")[0].strip()
        elif line and name:
            descriptions[name] = f"{descriptions.get(name, '')} {line.strip()}".strip()
    return descriptions


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
        typer.Option("--labels", help="Labels, if the views have none: .npy, or .txt with one per line."),
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

    calibrator = make(method, _typed_options(options), seed)
    samples = open_views(views, labels, classes)
    with working(f"Fitting {method}"):
        calibrator.fit(samples)
        calibrator.profile_ = profile(samples, random_state=seed)
    save(calibrator, out)
    plan = calibrator.map_.plan
    steps = None if plan is None else len(plan.steps)
    if as_json:
        chosen = {
            name: getattr(calibrator, f"{name}_") for name in ("choice", "reason") if hasattr(calibrator, f"{name}_")
        }
        print_json({"method": method, **chosen, "parameters": calibrator.get_params(), "steps": steps, "file": out})
        return
    if reason := getattr(calibrator, "reason_", ""):
        say(reason)
    say(f"Fitted {calibrator} on {views}" + (f": a plan of {steps} steps." if steps else "."))
    say(f"Written to {out}. Next: {typed('recal', 'apply', out, 'NEW_VIEWS', '--out', 'probs.npz')}")


def build(argv: Sequence[str]) -> Callable[..., None]:
    """Return `fit` with the options of the method that was typed, read from its signature."""
    from recal.calibrators import short_names

    if argv and not argv[0].startswith("-"):  # a wrong file is refused before a method is loaded
        check_kind(as_path(argv[0]), "views")

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
