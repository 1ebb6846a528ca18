"""`recal calibrate`: the whole job for a model, graded answers or views."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from recal.cli import options as opt
from recal.cli.collect import ask_endpoint, check_pool, is_endpoint, is_log, read_log
from recal.cli.files import check_correct, check_exists, is_table_of_answers, open_views
from recal.cli.fit import new_calibrator
from recal.cli.inputs import ModelInputs, Questions, group_words
from recal.cli.options import split_names
from recal.cli.printing import SESSION, on_interrupt, print_json, say, say_skipped, shell_line
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.views import Views
    from recal.workflow.result import Settings


def calibrate(
    graded: Annotated[
        Path | None,
        Argument(
            help="Graded answers (.csv, .parquet, .jsonl) or labelled views, without a model; "
            "with --more, the folder of an earlier run.",
            metavar="[TABLE|VIEWS|FOLDER]",
        ),
    ] = None,
    out: Annotated[Path | None, Option(help="The folder to write: rule, report and so on.")] = None,
    more: Annotated[Path | None, Option(help="With FOLDER: labelled rows that came later.")] = None,
    rollback: Annotated[
        bool, Option("--rollback", help="In FOLDER, undo the last --more.")
    ] = False,
    correct: opt.Correct = None,
    signals: Annotated[
        str | None, Option(help="With TABLE: the columns to learn from.", show_default="numeric")
    ] = None,
    truth: Annotated[str | None, Option(help="With --system: the column of right answers.")] = None,
    system: Annotated[
        list[str] | None,
        Option(help="With TABLE: NAME=ANSWER_COLUMN,SIGNAL_COLUMN,...; once for each system."),
    ] = None,
    cost: Annotated[list[str] | None, Option(help="NAME=PRICE of asking a --system.")] = None,
    cascade: Annotated[
        bool, Option("--cascade", help="Ask cheap systems first; needs --cost and --review-cost.")
    ] = False,
    review_cost: Annotated[float | None, Option(help="The price of a review by a person.")] = None,
    match: Annotated[
        str, Option(help="When two answers are equal: text, exact or number.")
    ] = "text",
    risk: opt.Risk = 0.01,
    guarantee: opt.GuaranteeKind = "confidence",
    answers: Annotated[
        str | None,
        Option(
            help="kept: predictions never change; free: they may, which can raise the accuracy.",
            show_default="kept; with --system free",
        ),
    ] = None,
    cross_fit: opt.CrossFitting = False,
    model: opt.ModelSource = None,
    data: opt.Data = None,
    label_column: opt.LabelColumn = None,
    labels: opt.LabelsFile = None,
    classes: opt.ClassNames = None,
    outputs: opt.OutputKind = None,
    cluster: opt.ClusterColumn = None,
    group: opt.GroupColumn = None,
    rows: opt.RowsTable = None,
    weights: opt.WeightsFile = None,
    trust: opt.Trust = None,
    device: opt.Device = None,
    engine: opt.EngineName = None,
    batch_size: opt.BatchSize = None,
    read: opt.Read = None,
    on_error: opt.ErrorPolicy = None,
    cluster_by: opt.ClusterBy = None,
    pixels: opt.PixelMode = None,
    gray: opt.Gray = False,
    resize: opt.Resize = None,
    crop: opt.CropSide = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    divide: opt.Divide = None,
    channels: opt.ChannelOrder = None,
    preprocess: opt.PreprocessName = None,
    seconds: opt.Seconds = None,
    text_column: opt.TextColumn = None,
    model_name: opt.ModelName = None,
    template: opt.TemplateFiles = None,
    options: opt.Choices = None,
    view: opt.View = None,
    scores: opt.Scores = None,
    permute: opt.Permutations = 0,
    floor: opt.Floor = None,
    max_tokens: opt.MaxTokens = 1,
    top_logprobs: opt.TopLogprobs = 20,
    concurrency: opt.Concurrency = 8,
    timeout: opt.Timeout = 60.0,
    one_rule: Annotated[bool, opt.more("--one-rule", help="One threshold for all groups.")] = False,
    method: Annotated[str, opt.more(help="The calibration method, such as ts.")] = "auto",
    confidence: Annotated[float, opt.more(help="The probability that the guarantee holds.")] = 0.95,
    pool: Annotated[str, opt.more(help="Transformations to try; auto, or none.")] = "auto",
    pilot: Annotated[int, opt.more(help="Try the whole pool on this many inputs only.")] = 1000,
    drop_rows: Annotated[
        bool, opt.more("--drop-rows", help="Do not keep the labelled rows; rules out --more.")
    ] = False,
    again: opt.Again = False,
    seed: Annotated[int, opt.more(help="Same seed, same split and same result.")] = 0,
    force: opt.Force = False,
) -> None:
    """Calibrate a model on labelled inputs, and decide which answers can be automated.

    Use inputs that the model was not trained on; a few thousand are enough. They are split at
    random: half to fit the calibration, 30 % to choose the threshold, 20 % to check both. With
    --cross-fit, 80 % are used for both, which automates more where labels are few.

    The folder then holds calibration.recal (calibration and rule), report.html, summary.json and
    the labelled rows (logits or signals, not the inputs; --drop-rows leaves them out). It appears
    when it is complete. If the run is interrupted, the same command resumes it.

    Example: [bold]recal calibrate --model net.onnx --data labelled/ --risk 0.01 --out
    calibrated[/bold]

    Then: [bold]recal apply calibrated --model net.onnx --data new/ --out answers.csv[/bold]

    Answers of any system that were graded as right or wrong need no model: a table with one row per
    answer and columns of signals, such as a stated confidence, a log-probability or a length.

    Example: [bold]recal calibrate graded.csv --correct right --signals stated,logprob --risk 0.1
    --out folder[/bold]

    Several systems that answered the same questions automate far more than one.

    Example: [bold]recal calibrate graded.csv --truth key --system gpt=gpt_answer,gpt_stated
    --system flash=flash_answer,flash_stated --risk 0.05 --out folder[/bold]

    Labels that arrive later: [bold]recal calibrate folder --more new.csv[/bold]
    """
    values = locals()
    inputs, language = ModelInputs.of(values), Questions.of(values)
    if more is not None or rollback:
        _change_folder(graded, more, inputs)
        return
    if out is None:
        raise InputError("Name the folder to write: --out FOLDER.")
    if graded is not None:
        check_exists(graded)
    from recal.workflow.result import Settings

    settings = Settings(
        risk=risk,
        confidence=confidence,
        random_state=seed,
        one_rule=one_rule,
        guarantee=guarantee,  # type: ignore[arg-type]
        keep_rows=not drop_rows,
        cross_fit=cross_fit,
        command=SESSION.command,
        about={"Data": str(graded or data)},
        say=say,
    )
    used = ["graded", "risk", "guarantee", "one_rule", "confidence", "drop_rows", "seed", "again"]
    if system:
        _calibrate_panel(graded, out, settings, used, values)
        return
    used += ["cross_fit"]
    if graded is not None and is_table_of_answers(graded):
        _calibrate_table(graded, out, settings, used, values)
        return
    used += ["method", "answers"]
    settings = replace(settings, calibrator=_method(method, answers or "kept", seed))
    if graded is not None:
        own = ("labels", "label_column", "classes", "rows", "group", "cluster")
        opt.refuse_unused(f"the views {graded}", (*used, *own))
        found = _open_rows(graded, inputs)
    elif is_endpoint(model):
        from recal.answers.endpoint import public_url

        found = ask_endpoint(inputs, language, out / "answers.jsonl", used=used).views
        address = public_url(str(model))
        settings = replace(
            settings, about={"Model": f"{model_name} at {address}", **settings.about}
        )
    # A table without --model is more often a mistake than a log.
    elif is_log(inputs) and (view or not inputs.is_table):
        found = read_log(inputs, language, used).views
    else:
        inputs.check_files("calibrate")
        opt.refuse_unused(f"the model {model}", (*used, *ModelInputs.names(), "pool", "pilot"))
        how = {"pool": check_pool(pool), "pilot": pilot, "resume": not again}
        _calibrate_model(inputs, out, settings, how)
        return
    if one_rule and found.groups is None:
        opt.refuse("answers without groups (--group COLUMN)", ("one_rule",))
    from recal.workflow.job import calibrate_views

    result = calibrate_views(found, out, settings)
    words = [] if found.groups is None else group_words(group)  # a log has no groups
    new: list[Any] = ["NEW_VIEWS"]
    if is_endpoint(model):
        new = ["--model", model, "--model-name", model_name, "--options", options]
        new += [word for file in template or () for word in ("--template", file)]
        new += ["--data", "NEW"]
    _print_result(result, out, shell_line("apply", out, *new, *words, "--out", "answers.csv"))


def _open_rows(file: Path, inputs: ModelInputs) -> Views:
    """Return the labelled views in a file, with their groups and clusters."""
    by: dict[str, Any] = {"rows": inputs.rows, "group": inputs.group, "cluster": inputs.cluster}
    return open_views(file, inputs.labels, inputs.class_names, inputs.label_column, **by)


def _change_folder(folder: Path | None, more: Path | None, inputs: ModelInputs) -> None:
    """Add later rows to a folder, or go back to the version before."""
    from recal.workflow.folder import CALIBRATION, read_summary, roll_back
    from recal.workflow.more import add_labels

    if folder is None or not (folder / CALIBRATION).is_file():
        raise InputError(f"--more and --rollback take a folder of recal calibrate, got {folder}.")
    if more is None:
        roll_back(folder)
        print_json({**read_summary(folder), "folder": folder})
        say(f"{folder} holds the version before the last --more again.")
        return
    check_exists(more)
    new = more if is_table_of_answers(more) else _open_rows(more, inputs)
    result, changes = add_labels(folder, new, command=SESSION.command, say=say)
    for line in changes:
        say(line)
    inputs_of = f"new{more.suffix}" if is_table_of_answers(more) else "NEW_VIEWS"
    next_line = shell_line("apply", folder, inputs_of, "--out", "answers.csv")
    _print_result(result, folder, next_line, changes=changes)


def _calibrate_model(
    inputs: ModelInputs, out: Path, settings: Settings, how: dict[str, Any]
) -> None:
    """Run a model on its inputs, and calibrate it."""
    from recal.workflow.job import calibrate as run

    model = inputs.open_model()
    source = inputs.open_labelled_data(model)
    settings = replace(settings, about={"Model": str(inputs.model), **settings.about})
    how |= {"classes": inputs.class_names, **inputs.running()}
    with on_interrupt(f"What is done is kept in {out}: run the same command again to resume."):
        result = run(model, source, out, settings, **how)
    next_line = shell_line("apply", out, *inputs.words(), "--data", "NEW", "--out", "answers.csv")
    if not result.decision.possible and result.decision.supported_risk is not None:
        next_line = _with_risk(result.decision.supported_risk)
    say_skipped(source.skipped)
    _print_result(result, out, next_line, skipped=source.skipped)


def _calibrate_table(
    table: Path, out: Path, settings: Settings, used: list[str], values: dict[str, Any]
) -> None:
    """Calibrate a table of graded answers, and decide which answers can be automated."""
    own = ("correct", "signals", "group", "cluster")
    opt.refuse_unused(f"the table of graded answers {table} without --system", (*used, *own))
    check_correct(table, values["correct"])
    from recal.workflow.graded import calibrate_table

    columns = {name: values[name] for name in ("correct", "group", "cluster")}
    columns["signals"] = split_names(values["signals"])
    result = calibrate_table(table, out, settings, **columns)
    new = shell_line("apply", out, f"new{table.suffix}", "--out", f"accepted{table.suffix}")
    _print_result(result, out, new)


def _calibrate_panel(
    table: Path | None, out: Path, settings: Settings, used: list[str], values: dict[str, Any]
) -> None:
    """Calibrate the answers of several systems to the same questions."""
    if table is None or values["truth"] is None:
        raise InputError("--system needs the table and --truth, the column of right answers.")
    own = ("system", "truth", "cost", "cascade", "review_cost", "match", "answers")
    opt.refuse_unused("--system", (*used, *own, "group", "cluster"))
    if values["cascade"] is not (values["review_cost"] is not None):
        raise InputError("A cascade needs both: --cascade and --review-cost PRICE.")
    from recal.workflow.panels import SystemColumns, calibrate_panel

    names = ("truth", "match", "review_cost", "group", "cluster")
    result = calibrate_panel(
        table,
        out,
        settings,
        systems=[SystemColumns.parse(text) for text in values["system"]],
        answers=values["answers"] or "free",
        costs=dict(map(_price, values["cost"] or ())) or None,
        **{name: values[name] for name in names},
    )
    new = shell_line("apply", out, f"new{table.suffix}", "--out", f"answers{table.suffix}")
    _print_result(result, out, new)


def _price(text: str) -> tuple[str, float]:
    name, _, price = text.partition("=")
    try:
        return name.strip(), float(price)
    except ValueError:
        raise InputError(f"--cost takes NAME=PRICE, such as gpt=1.98, got {text!r}.") from None


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
    calibrator = new_calibrator(name, {"answers": answers} if has_choice else {}, seed)
    if not has_choice and answers == "free" and calibrator.keeps_accuracy:
        raise InputError(
            f"--method {name} never changes answers. Leave out --answers free, or use --method auto."
        )
    return calibrator


def _with_risk(risk: float) -> str:
    """Return the same command with a risk that the labelled inputs can guarantee.

    It reuses the collected views.
    """
    words = [word for word in SESSION.words if not word.startswith("--risk=") and word != "--force"]
    if "--risk" in words:
        place = words.index("--risk")
        del words[place : place + 2]
    return shell_line(*words, "--risk", f"{risk:g}", "--force")
