"""`recal calibrate` and `recal collect`: from a model and inputs to a calibration, or to views."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli.answers import (
    ask_endpoint,
    calibrate_table,
    calibrate_views,
    collect_endpoint,
    collect_log,
    is_endpoint,
    is_log,
)
from recal.cli.files import kind_of, open_views, row_columns
from recal.cli.options import MORE, LanguageOptions, ModelOptions, name_labels, preflight, transforms_for
from recal.cli.printing import AsJson, command_line, command_words, is_quiet, print_json, say, typed


def calibrate(
    out: Annotated[Path, typer.Option("--out", help="The folder to write: calibration, rule and report.")],
    inputs: ModelOptions,
    language: LanguageOptions,
    graded: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TABLE|VIEWS]", help="Graded answers (.csv, .parquet, .jsonl) or labelled views, without a model."
        ),
    ] = None,
    correct: Annotated[
        str | None, typer.Option("--correct", help="With TABLE: the column that says which answers are right.")
    ] = None,
    signals: Annotated[
        str | None,
        typer.Option("--signals", help="With TABLE: the columns to learn from. By default all numeric ones."),
    ] = None,
    one_rule: Annotated[
        bool,
        typer.Option(
            "--one-rule", help="With --group: one threshold for all groups, not one for each.", rich_help_panel=MORE
        ),
    ] = False,
    risk: Annotated[float, typer.Option("--risk", help="The largest share of errors among automated answers.")] = 0.01,
    answers: Annotated[
        str,
        typer.Option("--answers", help="kept: predictions never change; free: they may, which can raise the accuracy."),
    ] = "kept",
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="The calibration method, such as ts; auto lets cross-validation choose.",
            rich_help_panel=MORE,
        ),
    ] = "auto",
    confidence: Annotated[
        float, typer.Option("--confidence", help="The probability that the guarantee holds.", rich_help_panel=MORE)
    ] = 0.95,
    pool: Annotated[
        str,
        typer.Option(
            "--pool",
            help="Transformations to try; auto: the default ones for such inputs; none: no views.",
            rich_help_panel=MORE,
        ),
    ] = "auto",
    pilot: Annotated[
        int,
        typer.Option(
            "--pilot",
            help="Try all transformations on this many inputs, then only those that help.",
            rich_help_panel=MORE,
        ),
    ] = 1000,
    cross_fit: Annotated[
        bool,
        typer.Option(
            "--cross-fit",
            help="Use 80 % to fit and to decide: automates more. Guarantee measured, not proven.",
            rich_help_panel=MORE,
        ),
    ] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Start over instead of resuming; overwrites what the folder holds.", rich_help_panel=MORE
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option("--seed", help="Same seed, same split and same result.", rich_help_panel=MORE)
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Calibrate a model on labelled inputs, and decide which answers can be automated.

    Use inputs that the model was not trained on; a few thousand are enough. They are split at random: half to fit the
    calibration, 30 % to choose the threshold, 20 % to check both. With --cross-fit, 80 % are used for both,
    which automates more where labels are few.

    The folder then holds calibration.recal (calibration and rule), report.html and summary.json. If the run is
    interrupted, the same command resumes it.

    Example: [bold]recal calibrate --model net.onnx --data labelled/ --risk 0.01 --out calibrated[/bold]

    Then: [bold]recal apply calibrated --model net.onnx --data new/ --out answers.csv[/bold]

    Answers of any system that were graded as right or wrong need no model: a table with one row per answer and columns
    of signals, such as a stated confidence, a log-probability or a length.

    Example: [bold]recal calibrate graded.csv --correct right --signals stated,logprob --risk 0.1 --out folder[/bold]
    """
    rules: dict[str, Any] = {"risk": risk, "confidence": confidence, "random_state": seed, "one_rule": one_rule}
    if graded is not None:
        _calibrate_source(graded, out, inputs, (correct, signals), rules, (method, answers, cross_fit), as_json)
        return
    if is_endpoint(inputs.model):
        rules |= {"calibrator": _method(method, answers, seed), "cross_fit": cross_fit}
        joined = ask_endpoint(inputs, language, out / "answers.jsonl", as_json)
        say(str(joined), quiet=as_json or not str(joined))
        about = {"Model": f"{language.model_name} at {inputs.model}", "Data": str(inputs.data)}
        calibrate_views(joined.views, out, about, rules, as_json)
        return
    _, data = inputs.check_files("calibrate")
    from recal.workflow.job import calibrate as run
    from recal.workflow.job import check_labelled, ran_before

    calibrator = _method(method, answers, seed)

    preprocess = inputs.preprocessing()
    model = inputs.open_model()
    source = inputs.open_data(model, quiet=as_json, guess=True)
    how = inputs.running()
    transforms = transforms_for(pool, source, model, seed)
    if inputs.labels is None:
        check_labelled(source, data)
    source = name_labels(source, model, inputs.classes, as_json)
    if again or not ran_before(out, model, source, None if pool == "none" else pool, seed, cross_fit=cross_fit):
        preflight(model, source, transforms, preprocess=preprocess, classes=inputs.class_names, **how)
    try:
        result = run(
            model,
            source,
            out,
            risk=risk,
            confidence=confidence,
            calibrator=calibrator,
            pool=None if pool == "none" else pool,
            pilot=pilot,
            one_rule=one_rule,
            classes=inputs.class_names,
            preprocess=preprocess,
            cross_fit=cross_fit,
            random_state=seed,
            progress=not is_quiet() and not as_json,
            command=command_line(),
            about={"Model": str(inputs.model), "Data": str(data)},
            resume=not again,
            say=lambda line: say(line, quiet=as_json),
            **how,
        )
    except KeyboardInterrupt as stop:
        stop.add_note(f"What is done is kept in {out}: run the same command again to resume.")
        raise
    if as_json:
        print_json({**result.to_dict(), "skipped": source.skipped, "folder": out})
        return
    if source.skipped:
        say(f"{len(source.skipped)} files could not be read and were skipped, such as {source.skipped[0]}.")
    say("")
    for line in result.lines():
        say(line)
    next_line = _with_risk(result.decision.suggested_risk) if not result.decision.possible else None
    if next_line is None:
        next_line = typed("recal", "apply", out, *inputs.repeated(), "--data", "NEW", "--out", "answers.csv")
    say(f"Report: {out / 'report.html'}. Next: {next_line}")


def _calibrate_source(
    source: Path,
    out: Path,
    inputs: ModelOptions,
    columns: tuple[str | None, str | None],
    how: dict[str, Any],
    fitting: tuple[str, str, bool],
    as_json: bool,
) -> None:
    """Calibrate what needs no model: a table of graded answers, or labelled views."""
    from recal.errors import InputError

    if inputs.model is not None or inputs.data is not None:
        raise InputError(f"recal calibrate takes either {source}, or --model and --data.")
    correct, signals = columns
    method, answers, cross_fit = fitting
    if kind_of(source) in ("table", "text") or source.suffix.lower() in (".jsonl", ".ndjson"):
        if correct is None:
            from recal.answers.tables import read_table

            raise InputError(
                f"Name the column of {source} that says which answers are right: --correct COLUMN. It has "
                f"{', '.join(read_table(source))}."
            )
        options: dict[str, Any] = {
            "--method": method != "auto",
            "--answers": answers != "kept",
            "--cross-fit": cross_fit,
        }
        options |= {"--cluster-by": inputs.cluster_by, "--rows": inputs.rows}
        _refuse(options, f"the table of graded answers {source}")
        names = None if signals is None else [name.strip() for name in signals.split(",")]
        table = {"correct": correct, "signals": names, "group": inputs.group, "cluster": inputs.cluster}
        calibrate_table(source, out, {**how, **table}, as_json)
        return
    _refuse({"--correct": correct, "--signals": signals, "--cluster-by": inputs.cluster_by}, f"the views {source}")
    views = open_views(source, inputs.labels, inputs.classes)
    views = views.assign(**row_columns(inputs.rows or source, inputs.group, inputs.cluster))
    how |= {"calibrator": _method(method, answers, how["random_state"]), "cross_fit": cross_fit}
    calibrate_views(views, out, {"Data": str(source)}, how, as_json)


def _refuse(options: dict[str, Any], what: str) -> None:
    """Refuse options that would have no effect."""
    from recal.errors import InputError

    typed_options = [name for name, value in options.items() if value]
    if typed_options:
        pronoun = "them" if typed_options[1:] else "it"
        raise InputError(f"{' and '.join(typed_options)} cannot be used with {what}. Leave {pronoun} out.")


def _method(name: str, answers: str, seed: int) -> Any:
    """Return the calibrator that was typed, with its answers kept or free."""
    from recal.calibrators.names import find_method
    from recal.cli.fit import make
    from recal.errors import InputError

    if answers not in ("kept", "free"):
        raise InputError(f"--answers takes kept or free, got {answers!r}.")
    has_choice = "answers" in inspect.signature(find_method(name)[0]).parameters
    calibrator = make(name, {"answers": answers} if has_choice else {}, seed)
    if not has_choice and calibrator.keeps_accuracy is not (answers == "kept") and answers == "free":
        raise InputError(f"--method {name} never changes answers. Leave out --answers free, or use --method auto.")
    return calibrator


def _with_risk(risk: float | None) -> str | None:
    """Return the same command with a risk that the labelled inputs can show; it reuses what was collected."""
    if risk is None:
        return None
    words = command_words()
    place = next((i for i, word in enumerate(words) if word == "--risk" or word.startswith("--risk=")), None)
    others = words if place is None else words[:place] + words[place + (1 if "=" in words[place] else 2) :]
    return typed("recal", *others, "--risk", f"{risk:g}", *(() if "--force" in others else ("--force",)))


def collect(
    out: Annotated[
        Path,
        typer.Option("--out", help="Where to write: .zarr (resumable; a folder or a URL such as s3://...) or .npz."),
    ],
    inputs: ModelOptions,
    language: LanguageOptions,
    pool: Annotated[
        str,
        typer.Option(
            "--pool",
            help="Transformations, such as zoom:0.5-0.9:10+brightness:0.1-0.9:10 (recal transforms lists them); "
            "auto: the default ones for such inputs; or none.",
        ),
    ] = "none",
    seed: Annotated[
        int | None, typer.Option("--seed", help="Same seed, same pool and same pilot.", rich_help_panel=MORE)
    ] = None,
    pilot: Annotated[
        int | None,
        typer.Option(
            "--pilot",
            help="Try the whole pool on this many labelled samples, then only views that help.",
            rich_help_panel=MORE,
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Start over instead of resuming; overwrites the store.", rich_help_panel=MORE),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a model on inputs and on transformed copies of them, and store the logits (views).

    Transformations act on the original inputs; normalisation (--divide, --mean, --std, --channels, or a function of
    your own) comes after them. A .zarr store is written batch by batch: run the same command again to resume after an
    interruption. With --pilot 1000, all views are computed for 1,000 samples only, and those that help for all.

    Without --model, --data is a log of a language model: lm-evaluation-harness samples, chat completions or Batch API
    output with logprobs (.jsonl), or a table with one column per option. --view NAME=FILE adds other prompts for the
    same questions. With --model http://... a server is asked, and answers are kept as they arrive.

    Example: [bold]recal collect --data samples.jsonl --view direct=direct.jsonl --out views.npz[/bold]

    Example: [bold]recal collect --model net.onnx --data images/ --resize 256 --crop 224 --divide 255 --mean
    0.485,0.456,0.406 --std 0.229,0.224,0.225 --channels first --pool zoom:0.5-0.9:10 --out views.zarr[/bold]
    """
    from recal.errors import InputError

    if inputs.model is None and inputs.data is not None and is_log(inputs.data):
        collect_log(inputs, language, out, as_json)
        return
    if is_endpoint(inputs.model):
        collect_endpoint(inputs, language, out, as_json)
        return
    inputs.check_files("collect")
    if pilot is not None and pool == "none":
        raise InputError("--pilot finds out which transformations help: name them with --pool, such as --pool auto.")
    from recal.collecting import collect as run
    from recal.collecting.local import needs_pilot

    preprocess, model = inputs.preprocessing(), inputs.open_model()
    source = inputs.open_data(model, quiet=as_json, guess=True)
    source = name_labels(source, model, inputs.classes, as_json)
    how: dict[str, Any] = inputs.running() | ({} if seed is None else {"seed": seed})
    how |= {"out": out, "resume": not again, "progress": not is_quiet() and not as_json}
    how |= {"preprocess": preprocess, "classes": inputs.class_names}
    transforms, trial = transforms_for(pool, source, model, seed), None
    try:
        preflight(model, source, transforms, **how)
        if pilot is not None and transforms is not None and needs_pilot(source, pilot):
            from recal.collecting import run_pilot

            trial = run_pilot(model, source, transforms, pilot, **how)
            say(f"{trial}.", quiet=as_json)
        views = run(model, source, transforms if trial is None else trial.chosen, **how)
    except KeyboardInterrupt as stop:
        resumable = out.suffix == ".zarr"
        kept = f"What is done is kept in {out}: run the same command again to resume."
        stop.add_note(kept if resumable else "No files were written; with --out NAME.zarr a run can be resumed.")
        raise
    except InputError as error:
        if inputs.labels is not None and error.argument == "labels":
            error.at(inputs.labels)
        raise
    if as_json:
        specs = [str(transform) for transform in views.transforms]
        shape = {"samples": views.n_samples, "classes": views.n_classes, "transforms": specs}
        cost = {} if trial is None else {"pilot": pilot, "passes": trial.passes, "without_pilot": trial.passes_without}
        print_json({**shape, **cost, "labelled": views.labels is not None, "skipped": source.skipped, "file": out})
        return
    if source.skipped:
        say(f"{len(source.skipped)} files could not be read and were skipped, such as {source.skipped[0]}.")
    labelled = () if views.labels is not None else ("--labels", "FILE")
    say(f"{views}. Written to {out}. Next: {typed('recal', 'fit', out, *labelled, '--out', 'calibration.recal')}")
