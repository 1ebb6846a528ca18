"""`recal calibrate`: the whole job for a model, graded answers or views."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from recal.cli import options as opt
from recal.cli.collect import ASKING, ask_endpoint, check_pool, is_endpoint, is_log, read_log
from recal.cli.files import (
    check_exists,
    is_table_of_answers,
    open_views,
    refuse_unused,
    row_columns,
)
from recal.cli.fit import make
from recal.cli.inputs import ModelInputs, Questions, group_words
from recal.cli.options import split_names
from recal.cli.printing import SESSION, on_interrupt, print_json, say, say_skipped, shell_line
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.views import Views

_PILOT = 1000


def calibrate(
    graded: Annotated[
        Path | None,
        Argument(
            help="Graded answers (.csv, .parquet, .jsonl) or labelled views, without a model; "
            "with --more, the folder of an earlier run.",
            metavar="[TABLE|VIEWS|FOLDER]",
        ),
    ] = None,
    out: Annotated[
        Path | None, Option(help="The folder to write: calibration, rule and report.")
    ] = None,
    more: Annotated[
        Path | None,
        Option(
            help="With FOLDER: labelled rows that arrived later, as TABLE or VIEWS. Refits with "
            "old and new rows."
        ),
    ] = None,
    rollback: Annotated[
        bool,
        Option("--rollback", help="With FOLDER: go back to the version before the last --more."),
    ] = False,
    correct: opt.Correct = None,
    signals: Annotated[
        str | None,
        Option(help="With TABLE: the columns to learn from. By default all numeric ones."),
    ] = None,
    truth: Annotated[
        str | None, Option(help="With --system: the column of the right answers.")
    ] = None,
    system: Annotated[
        list[str] | None,
        Option(
            help="With TABLE: NAME=ANSWER_COLUMN,SIGNAL_COLUMN,... of one system; once for each. "
            "The first is the main one."
        ),
    ] = None,
    cost: Annotated[
        list[str] | None, Option(help="With --system: NAME=PRICE of asking it; once for each.")
    ] = None,
    cascade: Annotated[
        bool, Option("--cascade", help="Ask cheap systems first; needs --cost and --review-cost.")
    ] = False,
    review_cost: Annotated[float | None, Option(help="The price of a review by a person.")] = None,
    match: Annotated[
        str, Option(help="When two answers are the same: text, exact or number.")
    ] = "text",
    risk: opt.Risk = 0.01,
    guarantee: opt.Guarantee = "confidence",
    answers: Annotated[
        str | None,
        Option(
            help="kept: predictions never change; free: they may, which can raise the accuracy.",
            show_default="kept; with --system free",
        ),
    ] = None,
    cross_fit: opt.CrossFit = False,
    model: opt.Model = None,
    data: opt.Data = None,
    label_column: opt.LabelColumn = None,
    labels: opt.Labels = None,
    classes: opt.Classes = None,
    outputs: opt.Outputs = None,
    cluster: opt.Cluster = None,
    group: opt.Group = None,
    rows: opt.Rows = None,
    weights: opt.Weights = None,
    trust: opt.Trust = None,
    device: opt.Device = None,
    engine: opt.Engine = None,
    batch_size: opt.BatchSize = None,
    read: opt.Read = None,
    on_error: opt.OnError = None,
    cluster_by: opt.ClusterBy = None,
    pixels: opt.Pixels = None,
    gray: opt.Gray = False,
    resize: opt.Resize = None,
    crop: opt.Crop = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    divide: opt.Divide = None,
    channels: opt.Channels = None,
    preprocess: opt.Preprocess = None,
    seconds: opt.Seconds = None,
    text_column: opt.TextColumn = None,
    model_name: opt.ModelName = None,
    template: opt.Template = None,
    options: opt.Choices = None,
    view: opt.View = None,
    scores: opt.Scores = None,
    permute: opt.Permute = 0,
    floor: opt.Floor = None,
    max_tokens: opt.MaxTokens = 1,
    top_logprobs: opt.TopLogprobs = 20,
    concurrency: opt.Concurrency = 8,
    timeout: opt.Timeout = 60.0,
    one_rule: Annotated[
        bool,
        Option(
            "--one-rule",
            help="With --group: one threshold for all groups, not one for each.",
            rich_help_panel=opt.MORE,
        ),
    ] = False,
    method: Annotated[
        str,
        Option(
            help="The calibration method, such as ts; auto lets cross-validation choose.",
            rich_help_panel=opt.MORE,
        ),
    ] = "auto",
    confidence: Annotated[
        float, Option(help="The probability that the guarantee holds.", rich_help_panel=opt.MORE)
    ] = 0.95,
    pool: Annotated[
        str,
        Option(
            help="Transformations to try; auto: the default ones for such inputs; none: no views.",
            rich_help_panel=opt.MORE,
        ),
    ] = "auto",
    pilot: Annotated[
        int,
        Option(
            help="Try all transformations on this many inputs, then only those that help.",
            rich_help_panel=opt.MORE,
        ),
    ] = _PILOT,
    drop_rows: Annotated[
        bool,
        Option(
            "--drop-rows",
            help="Do not keep the labelled rows in the folder; --more then cannot add to them.",
            rich_help_panel=opt.MORE,
        ),
    ] = False,
    again: opt.Again = False,
    seed: Annotated[
        int, Option(help="Same seed, same split and same result.", rich_help_panel=opt.MORE)
    ] = 0,
    force: opt.Force = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
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
        _change_folder(graded, more, rollback, inputs)
        return
    if out is None:
        raise InputError("Name the folder to write: --out FOLDER.")
    rules: dict[str, Any] = {
        "risk": risk,
        "confidence": confidence,
        "random_state": seed,
        "one_rule": one_rule,
        "guarantee": guarantee,
        "keep_rows": not drop_rows,
        "cross_fit": cross_fit,
        "command": SESSION.command,
        "say": say,
    }
    of_model: dict[str, Any] = {"--pool": pool != "auto", "--pilot": pilot != _PILOT}
    of_panel: dict[str, Any] = {"--truth": truth, "--cost": cost, "--cascade": cascade}
    of_panel |= {"--review-cost": review_cost, "--match": match != "text"}
    if system:
        if graded is None or truth is None:
            raise InputError("--system needs the table and --truth, the column of right answers.")
        check_exists(graded)
        of_model |= {"--correct": correct, "--signals": signals, "--cross-fit": cross_fit}
        of_model |= {"--method": method != "auto", **inputs.flags("group", "cluster")}
        refuse_unused(of_model, "--system")
        _calibrate_panel(
            graded,
            out,
            rules,
            system,
            truth,
            cost or [],
            cascade,
            review_cost,
            match,
            answers or "free",
            group,
            cluster,
        )
        return
    refuse_unused(of_panel, "one system alone (name several with --system)")
    answers = answers or "kept"
    if graded is not None:
        check_exists(graded)
        if is_table_of_answers(graded):
            of_model |= {"--method": method != "auto", "--answers": answers != "kept"}
            of_model |= inputs.flags("group", "cluster")
            refuse_unused(of_model, f"the table of graded answers {graded}")
            _calibrate_table(graded, out, correct, signals, inputs, rules)
            return
        of_model |= {"--correct": correct, "--signals": signals}
        of_model |= inputs.flags("labels", "label_column", "classes", "rows", "group", "cluster")
    rules["calibrator"] = _method(method, answers, seed)
    if graded is not None:
        refuse_unused(of_model, f"the views {graded}")
        found = open_views(graded, inputs.labels, inputs.class_names, label_column)
        found = found.assign(**row_columns(rows or graded, group, cluster))
        _calibrate_views(found, out, rules, {"Data": str(graded)}, group)
    elif is_endpoint(model):
        from recal.answers.endpoint import public_url

        refuse_unused({"--one-rule": one_rule, **of_model}, f"the server {model}")
        found = ask_endpoint(inputs, language, out / "answers.jsonl").views
        about = {"Model": f"{language.model_name} at {public_url(str(model))}", "Data": str(data)}
        _calibrate_views(found, out, rules, about, group)
    # A table without --model is more often a mistake than a log.
    elif is_log(inputs) and (view or str(data).lower().endswith((".jsonl", ".ndjson", ".json"))):
        refuse_unused(of_model, f"the log {data}")
        _calibrate_views(read_log(inputs, language).views, out, rules, {"Data": str(data)}, group)
    else:
        inputs.check_files("calibrate")
        refuse_unused(language.flags(*ASKING), f"the model {model}")
        how = {"pool": check_pool(pool), "pilot": pilot, "resume": not again}
        _calibrate_model(inputs, out, rules, how)


def _change_folder(
    folder: Path | None, more: Path | None, rollback: bool, inputs: ModelInputs
) -> None:
    """Add later rows to a folder, or go back to the version before."""
    from recal.workflow.folder import CALIBRATION, roll_back
    from recal.workflow.more import add_labels

    if folder is None or not (folder / CALIBRATION).is_file():
        raise InputError(f"--more and --rollback take a folder of recal calibrate, got {folder}.")
    if rollback:
        roll_back(folder)
        print_json({"folder": folder})
        say(f"{folder} holds the version before the last --more again.")
        return
    assert more is not None
    check_exists(more)
    new: Any = more
    if not is_table_of_answers(more):
        new = open_views(more, inputs.labels, inputs.class_names, inputs.label_column)
        new = new.assign(**row_columns(inputs.rows or more, inputs.group, inputs.cluster))
    result, changes = add_labels(folder, new, command=SESSION.command, say=say)
    for line in changes:
        say(line)
    next_line = shell_line("apply", folder, "NEW", "--out", "answers.csv")
    _print_result(result, folder, next_line, changes=changes)


def _calibrate_views(
    views: Views, out: Path, rules: dict[str, Any], about: dict[str, str], group: str | None
) -> None:
    """Calibrate views that were collected before, or come from a log or a server."""
    refuse_unused(
        {"--one-rule": rules["one_rule"] and views.groups is None},
        "answers without groups (--group COLUMN)",
    )
    from recal.workflow.job import calibrate_views
    from recal.workflow.result import Settings

    result = calibrate_views(views, out, Settings(about=about, **rules))
    words = [] if views.groups is None else group_words(group)  # a log has no groups
    next_line = shell_line("apply", out, "NEW_VIEWS", *words, "--out", "answers.csv")
    _print_result(result, out, next_line)


def _calibrate_model(
    inputs: ModelInputs, out: Path, rules: dict[str, Any], how: dict[str, Any]
) -> None:
    """Run a model on its inputs, and calibrate it."""
    from recal.workflow.job import calibrate as run
    from recal.workflow.result import Settings

    model = inputs.open_model()
    source = inputs.open_labelled_data(model)
    settings = Settings(about={"Model": str(inputs.model), "Data": str(inputs.data)}, **rules)
    how |= {"classes": inputs.class_names, "preprocess": inputs.preprocessing(), **inputs.running()}
    with on_interrupt(f"What is done is kept in {out}: run the same command again to resume."):
        result = run(model, source, out, settings, **how)
    next_line = shell_line("apply", out, *inputs.words(), "--data", "NEW", "--out", "answers.csv")
    if not result.decision.possible and result.decision.supported_risk is not None:
        next_line = _with_risk(result.decision.supported_risk)
    say_skipped(source.skipped)
    _print_result(result, out, next_line, skipped=source.skipped)


def _calibrate_table(
    table: Path,
    out: Path,
    correct: str | None,
    signals: str | None,
    inputs: ModelInputs,
    rules: dict[str, Any],
) -> None:
    """Calibrate a table of graded answers, and decide which answers can be automated."""
    if correct is None:
        from recal.files.tables import read_table

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


def _calibrate_panel(
    table: Path,
    out: Path,
    rules: dict[str, Any],
    system: list[str],
    truth: str,
    cost: list[str],
    cascade: bool,
    review_cost: float | None,
    match: str,
    answers: str,
    group: str | None,
    cluster: str | None,
) -> None:
    """Calibrate the answers of several systems to the same questions."""
    from recal.workflow.panels import SystemColumns, calibrate_panel
    from recal.workflow.result import Settings

    if cascade is not (review_cost is not None):
        raise InputError("A cascade needs both: --cascade and --review-cost PRICE.")
    settings = Settings(about={"Data": str(table)}, **rules)
    result = calibrate_panel(
        table,
        out,
        settings,
        truth=truth,
        systems=[SystemColumns.parse(text) for text in system],
        answers=answers,
        match=match,
        costs=dict(map(_price, cost)) or None,
        review_cost=review_cost,
        group=group,
        cluster=cluster,
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
    calibrator = make(name, {"answers": answers} if has_choice else {}, seed)
    if not has_choice and answers == "free" and calibrator.keeps_accuracy:
        raise InputError(
            f"--method {name} never changes answers. Leave out --answers free, or use --method auto."
        )
    return calibrator


def _with_risk(risk: float) -> str:
    """Return the same command with a risk that the labelled inputs can guarantee;
    it reuses the collected views.
    """
    words = list(SESSION.words)
    place = next(
        (i for i, word in enumerate(words) if word == "--risk" or word.startswith("--risk=")), None
    )
    if place is not None:
        del words[place : place + (1 if "=" in words[place] else 2)]
    return shell_line(*words, "--risk", f"{risk:g}", *(() if "--force" in words else ("--force",)))
