"""`recal calibrate` and `recal fit`: the whole job for a model, graded answers or views, and the
fit alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from recal.cli.collect import ASKING, ask_endpoint, check_pool, is_endpoint, is_log, read_log
from recal.cli.files import (
    check_exists,
    check_kind,
    flags_of,
    kind_of,
    open_views,
    refuse_unused,
    row_columns,
)
from recal.cli.options import (
    RISK,
    LanguageOptions,
    ModelOptions,
    argument,
    group_words,
    more_option,
    option,
    split_names,
    typed_value,
)
from recal.cli.printing import (
    SESSION,
    on_interrupt,
    print_json,
    say,
    say_skipped,
    shell_line,
    working,
)
from recal.errors import InputError
from recal.files.paths import as_path

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator
    from recal.schema import Kind

# The seed has its own option, the same for every method.
_SEED = "random_state"
_DEFAULT_METHOD = "auto"
_PILOT = 1000


def calibrate(
    *,
    out: Path = option("The folder to write: calibration, rule and report.", ...),
    inputs: ModelOptions,
    language: LanguageOptions,
    graded: Path | None = argument(
        "Graded answers (.csv, .parquet, .jsonl) or labelled views, without a model.",
        metavar="[TABLE|VIEWS]",
    ),
    correct: str | None = option("With TABLE: the column that says which answers are right."),
    signals: str | None = option(
        "With TABLE: the columns to learn from. By default all numeric ones."
    ),
    one_rule: bool = more_option(
        "With --group: one threshold for all groups, not one for each.", False
    ),
    risk: float = RISK,
    answers: str = option(
        "kept: predictions never change; free: they may, which can raise the accuracy.", "kept"
    ),
    method: str = more_option(
        "The calibration method, such as ts; auto lets cross-validation choose.", "auto"
    ),
    confidence: float = more_option("The probability that the guarantee holds.", 0.95),
    pool: str = more_option(
        "Transformations to try; auto: the default ones for such inputs; none: no views.", "auto"
    ),
    pilot: int = more_option(
        "Try all transformations on this many inputs, then only those that help.", _PILOT
    ),
    cross_fit: bool = more_option(
        "Use 80 % to fit and to decide: automates more. Guarantee measured, not proven.", False
    ),
    again: bool = more_option(
        "Start over instead of resuming; overwrites what the folder holds.", False
    ),
    seed: int = more_option("Same seed, same split and same result.", 0),
) -> None:
    """Calibrate a model on labelled inputs, and decide which answers can be automated.

    Use inputs that the model was not trained on; a few thousand are enough. They are split at
    random: half to fit the calibration, 30 % to choose the threshold, 20 % to check both. With
    --cross-fit, 80 % are used for both, which automates more where labels are few.

    The folder then holds calibration.recal (calibration and rule), report.html and summary.json. If
    the run is interrupted, the same command resumes it.

    Example: [bold]recal calibrate --model net.onnx --data labelled/ --risk 0.01 --out
    calibrated[/bold]

    Then: [bold]recal apply calibrated --model net.onnx --data new/ --out answers.csv[/bold]

    Answers of any system that were graded as right or wrong need no model: a table with one row per
    answer and columns of signals, such as a stated confidence, a log-probability or a length.

    Example: [bold]recal calibrate graded.csv --correct right --signals stated,logprob --risk 0.1
    --out folder[/bold]
    """
    rules: dict[str, Any] = {
        "risk": risk,
        "confidence": confidence,
        "random_state": seed,
        "one_rule": one_rule,
    }
    rules |= {"command": SESSION.command, "say": say}
    if graded is not None and (inputs.model is not None or inputs.data is not None):
        raise InputError(f"recal calibrate takes either {graded}, or --model and --data.")
    if graded is not None:
        check_exists(graded)
    options: dict[str, Any]
    collecting = {"--pool": pool != "auto", "--pilot": pilot != _PILOT}
    if graded is not None and (
        kind_of(graded) in ("table", "text") or graded.suffix.lower() in (".jsonl", ".ndjson")
    ):
        options = {
            "--method": method != _DEFAULT_METHOD,
            "--answers": answers != "kept",
            "--cross-fit": cross_fit,
        }
        options |= collecting | flags_of(inputs, "group", "cluster")
        refuse_unused(options, f"the table of graded answers {graded}")
        _calibrate_table(graded, out, correct, signals, inputs, rules)
        return
    rules |= {"calibrator": _method(method, answers, seed), "cross_fit": cross_fit}
    views, about = None, {"Data": str(graded or inputs.data)}
    if graded is not None:
        options = {"--correct": correct, "--signals": signals, **collecting}
        options |= flags_of(inputs, "labels", "classes", "rows", "group", "cluster")
        refuse_unused(options, f"the views {graded}")
        views = open_views(graded, inputs.labels, inputs.class_names)
        views = views.assign(**row_columns(inputs.rows or graded, inputs.group, inputs.cluster))
    elif is_endpoint(inputs.model):
        refuse_unused({"--one-rule": one_rule, **collecting}, f"the server {inputs.model}")
        views = ask_endpoint(inputs, language, out / "answers.jsonl").views
        about = {"Model": f"{language.model_name} at {inputs.model}", **about}
    # A table without --model is more often a mistake than a log.
    elif is_log(inputs) and (
        language.view or str(inputs.data).lower().endswith((".jsonl", ".ndjson", ".json"))
    ):
        refuse_unused(collecting, f"the log {inputs.data}")
        views = read_log(inputs, language).views
    if views is not None:
        refuse_unused(
            {"--one-rule": one_rule and views.groups is None},
            "answers without groups (--group COLUMN)",
        )
        from recal.workflow.job import calibrate_views
        from recal.workflow.result import Settings

        result = calibrate_views(views, out, Settings(about=about, **rules))
        words = [] if views.groups is None else group_words(inputs.group)  # a log has no groups
        _print_result(
            result, out, shell_line("apply", out, "NEW_VIEWS", *words, "--out", "answers.csv")
        )
        return
    inputs.check_files("calibrate")
    refuse_unused(flags_of(language, *ASKING), f"the model {inputs.model}")
    from recal.workflow.job import calibrate as run
    from recal.workflow.result import Settings

    model = inputs.open_model()
    source = inputs.open_labelled_data(model)
    settings = Settings(about={"Model": str(inputs.model), **about}, **rules)
    how: dict[str, Any] = {"pool": check_pool(pool), "pilot": pilot, "resume": not again}
    how |= {"classes": inputs.class_names, "preprocess": inputs.preprocessing(), **inputs.running()}
    with on_interrupt(f"What is done is kept in {out}: run the same command again to resume."):
        result = run(model, source, out, settings, **how)
    next_line = shell_line("apply", out, *inputs.words(), "--data", "NEW", "--out", "answers.csv")
    if not result.decision.possible and result.decision.suggested_risk is not None:
        next_line = _with_risk(result.decision.suggested_risk)
    say_skipped(source.skipped)
    _print_result(result, out, next_line, skipped=source.skipped)


def _calibrate_table(
    table: Path,
    out: Path,
    correct: str | None,
    signals: str | None,
    inputs: ModelOptions,
    rules: dict[str, Any],
) -> None:
    """Calibrate a table of graded answers, and decide which answers can be automated."""
    if correct is None:
        from recal.answers.tables import read_table

        raise InputError(
            f"Name the column of {table} that says which answers are right: --correct COLUMN. It has "
            f"{', '.join(read_table(table))}."
        )
    from recal.workflow.graded import calibrate_table
    from recal.workflow.result import Settings

    columns: dict[str, Any] = {
        "signals": split_names(signals),
        "group": inputs.group,
        "cluster": inputs.cluster,
    }
    settings = Settings(about={"Data": str(table)}, **rules)
    result = calibrate_table(table, out, settings, correct=correct, **columns)
    _print_result(
        result,
        out,
        shell_line("apply", out, f"new{table.suffix}", "--out", f"accepted{table.suffix}"),
    )


def _print_result(result: Any, out: Path, next_line: str, **more: Any) -> None:
    print_json({**result.to_dict(), **more, "folder": out})
    say("")
    for line in result.lines():
        say(line)
    say(f"Report: {out / 'report.html'}. Next: {next_line}")


def _method(name: str, answers: str, seed: int) -> Any:
    """Return the calibrator that was typed, set to keep answers or to change them freely."""
    from recal.calibrators import find_method

    if answers not in ("kept", "free"):
        raise InputError(f"--answers takes kept or free, got {answers!r}.")
    has_choice = "answers" in inspect.signature(find_method(name)[0]).parameters
    calibrator = make(name, {"answers": answers} if has_choice else {}, seed)
    if not has_choice and answers == "free" and calibrator.keeps_accuracy:
        raise InputError(
            f"--method {name} never changes answers. Leave out --answers free, or use --method auto."
        )
    return calibrator


def _with_risk(risk: float) -> str:
    """Return the same command with a risk that the labelled inputs can guarantee; it reuses the
    collected views.
    """
    words = list(SESSION.words)
    place = next(
        (i for i, word in enumerate(words) if word == "--risk" or word.startswith("--risk=")), None
    )
    if place is not None:
        del words[place : place + (1 if "=" in words[place] else 2)]
    return shell_line(*words, "--risk", f"{risk:g}", *(() if "--force" in words else ("--force",)))


def fit(
    *,
    views: Path = argument(
        "Views with labels: an .npz file, a .zarr folder or its URL (s3://...).", ...
    ),
    out: Path = option("Where to write the fitted calibration.", ...),
    method: str = option(
        "The method, such as ts or stack. Each has its own options.", _DEFAULT_METHOD
    ),
    seed: int = option("Same seed, same result.", 0),
    labels: Path | None = option(
        "Labels, if the views have none: .npy, or .txt with one per line."
    ),
    classes: str | None = option("The names of the columns in order, if labels are names."),
    **options: Any,
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

    # A typed `none` differs from an omitted option, for which the constructor's default applies.
    names = [
        name
        for name in options
        if typed_value(f"--{name.replace('_', '-')}", SESSION.words) is not None
    ]
    calibrator = make(method, {name: options[name] for name in names}, seed)
    samples = open_views(views, labels, split_names(classes))
    with working(f"Fitting {method}"):
        calibrator.fit(samples)
        calibrator.profile_ = profile(samples, random_state=seed)
    save(calibrator, out)
    plan = calibrator.map_.plan
    steps = None if plan is None else len(plan.steps)
    choice = {
        name: getattr(calibrator, f"{name}_")
        for name in ("choice", "reason")
        if hasattr(calibrator, f"{name}_")
    }
    print_json(
        {
            "method": method,
            **choice,
            "parameters": calibrator.get_params(),
            "steps": steps,
            "file": out,
        }
    )
    if reason := choice.get("reason"):
        say(reason)
    say(f"Fitted {calibrator} on {views}" + (f": a plan of {steps} steps." if steps else "."))
    say(f"Written to {out}. Next: {shell_line('apply', out, 'NEW_VIEWS', '--out', 'probs.npz')}")


def make(name: str, options: dict[str, Any], seed: int | None = None) -> Calibrator:
    """Return an unfitted calibrator. Methods without random numbers ignore the seed."""
    from recal.calibrators import find_method

    calibrator, preset = find_method(name)
    if _SEED in inspect.signature(calibrator).parameters and seed is not None:
        options = {**options, _SEED: seed}
    return calibrator(**{**preset, **options})


def method_options(argv: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Return the options of the method that was typed, one for each parameter of its constructor."""
    if not argv:
        return {}
    if not argv[0].startswith("-"):  # a wrong file is refused before a method is loaded
        check_kind(as_path(argv[0]), "views")
    from recal.calibrators import find_method, short_names
    from recal.schema import Kind, parameter_kinds

    name = typed_value("--method", argv) or _DEFAULT_METHOD
    calibrator, _ = find_method(name)
    kinds, descriptions = (
        parameter_kinds(calibrator),
        _parameter_descriptions(calibrator.__doc__ or ""),
    )
    options = {
        "method": (str, option(f"One of: {', '.join(sorted(short_names()))}.", _DEFAULT_METHOD))
    }
    for parameter in inspect.signature(calibrator).parameters.values():
        if parameter.name == _SEED:
            continue
        kind = kinds.get(parameter.name, Kind())
        declaration = option(
            descriptions.get(parameter.name, ""),
            panel=f"Options of --method {name}",
            parser=_parser(kind),
            metavar=kind.metavar,
            show_default="none" if parameter.default is None else str(parameter.default),
        )
        options[parameter.name] = (str, declaration)
    return options


def _parser(kind: Kind) -> Callable[[str], Any]:
    def value(text: Any) -> Any:  # the parser prints this name
        try:
            return kind.parse(text) if isinstance(text, str) else text
        except ValueError:
            raise typer.BadParameter(f"{text!r} cannot be read as {kind.metavar}") from None

    return value


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
