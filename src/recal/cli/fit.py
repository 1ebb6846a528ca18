"""`recal fit`: fit one method on views with labels."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from recal.cli import options as opt
from recal.cli.files import check_kind
from recal.cli.inputs import Inputs
from recal.cli.printing import SESSION, print_json, say, shell_line, working
from recal.errors import InputError
from recal.files.paths import local_path

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator

# The seed has its own option, the same for every method.
_SEED = "random_state"


def fit(
    *,
    views: opt.ViewsFile,
    out: Annotated[Path, Option(help="Where to write the fitted calibration.")],
    method: Annotated[str, Option(help="The method, which may have its own options.")] = "auto",
    seed: opt.SeedNumber = 0,
    inputs: Annotated[Inputs, "labels label_column classes cluster group rows"],
    force: opt.Force = False,
) -> None:
    """Fit a calibration on views with labels.

    Without --method, cross-validation on these samples chooses; one sentence says which method and
    why.

    Views hold a model's logits for held-out inputs and, where the method uses them, for transformed
    copies. The method's own options, with their defaults, are shown by [bold]recal fit --method
    NAME --help[/bold].

    The calibration also holds a profile of these samples, for [bold]recal watch[/bold] and
    [bold]recal apply --follow[/bold].

    Example: [bold]recal fit held-out.npz --method stack --max-views 1 --out
    calibration.recal[/bold]
    """
    from recal import profile, save

    calibrator: Any = new_calibrator(method, SESSION.method_options, seed)
    samples = inputs.views(views)
    with working(f"Fitting {method}"):
        calibrator.fit(samples)
        calibrator.profile_ = profile(samples, random_state=seed)
    save(calibrator, out)
    plan = calibrator.map_.plan
    steps = None if plan is None else len(plan.steps)
    facts: dict[str, Any] = {"method": method, "parameters": calibrator.get_params()}
    if hasattr(calibrator, "reason_"):
        facts |= {"choice": calibrator.choice_, "reason": calibrator.reason_}
        say(calibrator.reason_)
    print_json({**facts, "steps": steps, "file": out})
    say(f"Fitted {calibrator} on {views}" + (f": a plan of {steps} steps." if steps else "."))
    say(f"Written to {out}. Next: {shell_line('apply', out, 'NEW_VIEWS', '--out', 'probs.npz')}")


def new_calibrator(name: str, options: dict[str, Any], seed: int | None = None) -> Calibrator:
    """Return an unfitted calibrator. Methods without random numbers ignore the seed."""
    from recal.calibrators import find_method

    calibrator, preset = find_method(name)
    if _SEED in inspect.signature(calibrator).parameters and seed is not None:
        options = {**options, _SEED: seed}
    return calibrator(**{**preset, **options})


class FitCommand(opt.Command):
    """`recal fit` also takes one option for each parameter of the method that was typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        SESSION.method_options = {}
        if args:
            name = SESSION.value("--method") or "auto"
            if not args[0].startswith("-"):  # a wrong file is refused before a method is loaded
                check_kind(local_path(args[0]), "views")
            self.help = "\n\n".join([str(self.help), *method_help(name)])
            SESSION.method_options, args = take_options(name, args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if args and hasattr(error, "possibilities"):  # an option that does not exist
                near = get_close_matches(str(getattr(error, "option_name", "")), _parameters(name))
                error.possibilities = [*(error.possibilities or ()), *near]
            raise


def _parameters(name: str) -> dict[str, Any]:
    """Return the parameters of a method's constructor by their flags, without the seed."""
    from recal.calibrators import find_method

    found = inspect.signature(find_method(name)[0]).parameters.values()
    return {f"--{one.name.replace('_', '-')}": one for one in found if one.name != _SEED}


def take_options(name: str, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a method, read by their kinds, and the other words.

    Examples
    --------
    >>> take_options("stack", ["views.npz", "--max-views", "1", "--out", "c.recal"])
    ({'max_views': 1}, ['views.npz', '--out', 'c.recal'])
    """
    from recal.calibrators import find_method
    from recal.schema import Kind, parameter_kinds

    parameters, kinds = _parameters(name), parameter_kinds(find_method(name)[0])
    options, others, queue = {}, [], list(words)
    while queue:
        word = queue.pop(0)
        flag, has_value, text = word.partition("=")
        if flag not in parameters:
            others.append(word)
            continue
        if not has_value and not queue:
            raise InputError(f"{flag} needs a value. See: recal fit --method {name} --help")
        text = text if has_value else queue.pop(0)
        parameter = parameters[flag].name
        kind = kinds.get(parameter, Kind())
        try:
            options[parameter] = kind.parse(text)
        except ValueError:
            raise InputError(
                f"{flag} must be {kind.rule}, got {text!r}. See: recal fit --method {name} --help"
            ) from None
    return options, others


def method_help(name: str) -> list[str]:
    """Return one paragraph of help for each option of a method."""
    from recal.calibrators import find_method, short_names
    from recal.schema import Kind, parameter_kinds

    method = find_method(name)[0]
    kinds = parameter_kinds(method)
    descriptions = _parameter_descriptions(method.__doc__ or "")
    lines = [f"Methods: {', '.join(sorted(short_names()))}.", f"Options of --method {name}:"]
    for flag, parameter in _parameters(name).items():
        metavar = kinds.get(parameter.name, Kind()).metavar
        default = "none" if parameter.default is None else parameter.default
        about = descriptions.get(parameter.name, "")
        lines.append(f"[bold]{flag}[/bold] {metavar} (default {default}): {about}")
    return lines


def _parameter_descriptions(docstring: str) -> dict[str, str]:
    """Return the description of each parameter in a numpy docstring."""
    descriptions: dict[str, str] = {}
    lines = inspect.cleandoc(docstring).splitlines()
    starts = [
        i + 2
        for i, line in enumerate(lines[:-1])
        if line == "Parameters" and set(lines[i + 1]) == {"-"}
    ]
    name = ""
    for line in lines[starts[0] :] if starts else []:
        if line and not line.startswith(" "):
            if " : " not in line:
                break
            name = line.split(" : ")[0].strip()
        elif line and name:
            descriptions[name] = f"{descriptions.get(name, '')} {line.strip()}".strip()
    return descriptions
