"""`recal calibrate`: the whole job for a model, graded answers or views."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from recal.cli import options as opt
from recal.cli.collect import ask_endpoint, check_pool, is_endpoint, is_log, read_log
from recal.cli.files import check_correct, check_exists, is_table_of_answers
from recal.cli.fit import new_calibrator
from recal.cli.inputs import Inputs, Questions, group_words
from recal.cli.options import split_names
from recal.cli.printing import SESSION, on_interrupt, print_json, say, say_skipped, shell_line
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.workflow.run import Settings


@dataclass(frozen=True, kw_only=True)
class Graded(opt.OptionGroup):
    """How to read a table of graded answers of one system, or of several."""

    correct: opt.Correct = None
    signals: Annotated[
        str | None, Option(help="With TABLE: the columns to learn from.", show_default="numeric")
    ] = None
    truth: Annotated[str | None, Option(help="With --system: the column of right answers.")] = None
    system: Annotated[
        list[str] | None,
        Option(help="With TABLE: NAME=ANSWER_COLUMN,SIGNAL_COLUMN,...; once for each system."),
    ] = None
    cost: Annotated[list[str] | None, Option(help="NAME=PRICE of asking a --system.")] = None
    cascade: Annotated[
        bool, Option("--cascade", help="Ask cheap systems first; needs --cost and --review-cost.")
    ] = False
    review_cost: Annotated[float | None, Option(help="The price of a review by a person.")] = None
    match: Annotated[str, Option(help="When two answers are equal: text, exact or number.")] = (
        "text"
    )


def calibrate(
    *,
    source: Annotated[
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
    graded: Graded,
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
    inputs: Inputs,
    language: Questions,
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
    if more is not None or rollback:
        _change_folder(source, more, inputs)
        return
    if out is None:
        raise InputError("Name the folder to write: --out FOLDER.")
    if source is not None:
        check_exists(source)
    from recal.workflow.run import Settings

    settings = Settings(
        risk=risk,
        confidence=confidence,
        random_state=seed,
        guarantee=guarantee,  # type: ignore[arg-type]
        keep_rows=not drop_rows,
        cross_fit=cross_fit,
        command=SESSION.command,
        about={"Data": str(source or inputs.data)},
        say=say,
    )
    used = ["source", "risk", "guarantee", "confidence", "drop_rows", "seed", "again"]
    if graded.system:
        _calibrate_panel(source, out, settings, used, graded, inputs, answers or "free")
        return
    used += ["cross_fit"]
    if source is not None and is_table_of_answers(source):
        _calibrate_table(source, out, settings, used, graded, inputs)
        return
    used += ["method", "answers"]
    settings = replace(settings, calibrator=_method(method, answers or "kept", seed))
    new: list[Any] = ["NEW_VIEWS"]
    if source is not None:
        own = ("labels", "label_column", "classes", "rows", "group", "cluster")
        opt.refuse_unused(f"the views {source}", (*used, *own))
        views = inputs.views(source)
    elif is_endpoint(inputs.model):
        from recal.answers.endpoint import public_url

        views = ask_endpoint(inputs, language, out / "answers.jsonl", used=used).views
        address = f"{language.model_name} at {public_url(str(inputs.model))}"
        settings = replace(settings, about={"Model": address, **settings.about})
        new = ["--model", inputs.model, "--model-name", language.model_name]
        new += ["--options", language.options]
        new += [word for file in language.template or () for word in ("--template", file)]
        new += ["--data", "NEW"]
    # A table without --model is more often a mistake than a log.
    elif is_log(inputs) and (language.view or not inputs.is_table):
        views = read_log(inputs, language, used).views
    else:
        inputs.check_files("calibrate")
        opt.refuse_unused(f"the model {inputs.model}", (*used, *Inputs.names(), "pool", "pilot"))
        how = {"pool": check_pool(pool), "pilot": pilot, "resume": not again}
        _calibrate_model(inputs, out, settings, how)
        return
    from recal.workflow.job import calibrate_views

    result = calibrate_views(views, out, settings)
    new += [] if views.groups is None else group_words(inputs.group)  # a log has no groups
    _print_result(result, out, shell_line("apply", out, *new, "--out", "answers.csv"))


def _change_folder(folder: Path | None, more: Path | None, inputs: Inputs) -> None:
    """Add later rows to a folder, or go back to the version before."""
    from recal.workflow.folder import CALIBRATION, read_summary, roll_back
    from recal.workflow.job import add_labels

    if folder is None or not (folder / CALIBRATION).is_file():
        raise InputError(f"--more and --rollback take a folder of recal calibrate, got {folder}.")
    if more is None:
        roll_back(folder)
        print_json({**read_summary(folder), "folder": folder})
        say(f"{folder} holds the version before the last --more again.")
        return
    check_exists(more)
    new = more if is_table_of_answers(more) else inputs.views(more)
    result, changes = add_labels(folder, new, command=SESSION.command, say=say)
    for line in changes:
        say(line)
    inputs_of = f"new{more.suffix}" if is_table_of_answers(more) else "NEW_VIEWS"
    next_line = shell_line("apply", folder, inputs_of, "--out", "answers.csv")
    _print_result(result, folder, next_line, changes=changes)


def _calibrate_model(inputs: Inputs, out: Path, settings: Settings, how: dict[str, Any]) -> None:
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
    table: Path, out: Path, settings: Settings, used: list[str], graded: Graded, inputs: Inputs
) -> None:
    """Calibrate a table of graded answers, and decide which answers can be automated."""
    own = ("correct", "signals", "group", "cluster")
    opt.refuse_unused(f"the table of graded answers {table} without --system", (*used, *own))
    correct = check_correct(table, graded.correct)
    from recal.workflow.graded import calibrate_table

    columns: dict[str, Any] = {"group": inputs.group, "cluster": inputs.cluster}
    signals = split_names(graded.signals)
    result = calibrate_table(table, out, settings, correct=correct, signals=signals, **columns)
    new = shell_line("apply", out, f"new{table.suffix}", "--out", f"accepted{table.suffix}")
    _print_result(result, out, new)


def _calibrate_panel(
    table: Path | None,
    out: Path,
    settings: Settings,
    used: list[str],
    graded: Graded,
    inputs: Inputs,
    answers: str,
) -> None:
    """Calibrate the answers of several systems to the same questions."""
    if table is None or graded.truth is None:
        raise InputError("--system needs the table and --truth, the column of right answers.")
    own = set(Graded.names()) - {"correct", "signals"}
    opt.refuse_unused("--system", (*used, *own, "answers", "group", "cluster"))
    costs = dict(map(_price, graded.cost or ()))
    if len({graded.cascade, graded.review_cost is not None, bool(costs)}) > 1:
        raise InputError(
            "A cascade needs --cascade, --review-cost PRICE, and --cost NAME=PRICE for each system."
        )
    from recal.workflow.panels import SystemColumns, calibrate_panel

    result = calibrate_panel(
        table,
        out,
        settings,
        truth=graded.truth,
        systems=[SystemColumns.parse(text) for text in graded.system or ()],
        answers=answers,  # type: ignore[arg-type]
        match=graded.match,  # type: ignore[arg-type]
        costs=costs or None,
        review_cost=graded.review_cost or 0.0,
        group=inputs.group,
        cluster=inputs.cluster,
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
