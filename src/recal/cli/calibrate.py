"""`recal calibrate`: the whole job for a model, graded answers or views."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from recal.cli import options as opt
from recal.cli.files import check_correct, check_exists, is_table_of_answers
from recal.cli.fit import new_calibrator, read_parameters
from recal.cli.options import Inputs, split_names
from recal.cli.printing import SESSION, on_interrupt, print_json, say, say_skipped, shell_line
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.workflow.run import Settings

INPUTS = opt.ALL
# The options of each kind of source, besides those of every kind.
_OF_EVERY_KIND = ("source", "risk", "guarantee", "confidence", "drop_rows", "seed")
_OF_TABLE = ("correct", "signals", "group", "cluster", "cross_fit")
_OF_CASCADE = ("cost", "cascade", "review_cost")
_OF_PANEL = ("system", "truth", "match", "answers", "group", "cluster", *_OF_CASCADE)
_OF_VIEWS = ("cross_fit", "method", "answers", *opt.ROWS)
_OF_MODEL = ("cross_fit", "method", "answers", "pool", "pilot", *opt.ALL)


def calibrate(
    ctx: Context,
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
    risk: opt.Risk = 0.01,
    confidence: opt.Confidence = 0.95,
    guarantee: opt.GuaranteeKind = "confidence",
    cross_fit: opt.CrossFitting = False,
    method: Annotated[str, Option(help="The calibration method, such as ts.")] = "auto",
    answers: Annotated[
        str | None,
        Option(
            help="kept: predictions never change; free: they may, which can raise the accuracy.",
            show_default="kept; with --system free",
        ),
    ] = None,
    correct: opt.Correct = None,
    signals: Annotated[
        str | None, Option(help="With TABLE: the columns to learn from.", show_default="numeric")
    ] = None,
    system: Annotated[
        list[str] | None,
        Option(help="With TABLE: NAME=ANSWER_COLUMN,SIGNAL_COLUMN,...; once for each system."),
    ] = None,
    truth: Annotated[str | None, Option(help="With --system: the column of right answers.")] = None,
    match: Annotated[str, Option(help="When two answers are equal: text, exact or number.")] = (
        "text"
    ),
    cost: Annotated[list[str] | None, Option(help="NAME=PRICE of asking a --system.")] = None,
    cascade: Annotated[
        bool, Option("--cascade", help="Ask cheap systems first; needs --cost and --review-cost.")
    ] = False,
    review_cost: Annotated[
        float | None, Option(help="With --cascade: the price of a review by a person.")
    ] = None,
    pool: Annotated[str, Option(help="Transformations to try; auto, or none.")] = "auto",
    pilot: Annotated[int, Option(help="Try the whole pool on this many inputs only.")] = 1000,
    drop_rows: Annotated[
        bool, Option("--drop-rows", help="Do not keep the labelled rows; rules out --more.")
    ] = False,
    seed: opt.SeedNumber = 0,
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
    inputs: Inputs = ctx.obj
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

    def refuse_except(kind: str, *names: str) -> None:
        opt.refuse_unused(ctx, kind, (*_OF_EVERY_KIND, *names))

    result: Any
    if system or truth is not None:
        if source is None or truth is None or not system:
            raise InputError(
                "Several systems need their table, --truth COLUMN with the right answers, and "
                "--system NAME=ANSWER_COLUMN for each."
            )
        if cascade is (review_cost is None):
            raise InputError("A cascade needs both --cascade and --review-cost PRICE.")
        refuse_except("--system", *_OF_PANEL)
        from recal.workflow.panels import SystemColumns, calibrate_panel

        result = calibrate_panel(
            source,
            out,
            settings,
            truth=truth,
            systems=[SystemColumns.parse(text) for text in system],
            answers=answers or "free",  # type: ignore[arg-type]
            match=match,  # type: ignore[arg-type]
            costs=dict(map(_price, cost)) if cost else None,
            review_cost=review_cost,
            group=inputs.group,
            cluster=inputs.cluster,
        )
        _print_result(result, out, f"new{source.suffix}")
    elif source is not None and is_table_of_answers(source):
        refuse_except(f"the table of graded answers {source}", *_OF_TABLE)
        from recal.workflow.graded import calibrate_table

        result = calibrate_table(
            source,
            out,
            settings,
            correct=check_correct(source, correct),
            signals=split_names(signals),
            group=inputs.group,
            cluster=inputs.cluster,
        )
        _print_result(result, out, f"new{source.suffix}")
    elif source is not None:
        refuse_except(f"the views {source}", *_OF_VIEWS)
        settings = replace(settings, calibrator=_method(method, answers, seed))
        from recal.workflow.job import calibrate_views

        result = calibrate_views(inputs.views(source, need_labels=True), out, settings)
        _print_result(result, out, "NEW_VIEWS", *inputs.new_words())
    else:
        inputs.check_files()
        refuse_except(f"the model {inputs.model}", *_OF_MODEL)
        settings = replace(settings, calibrator=_method(method, answers, seed))
        _calibrate_model(inputs, out, settings, pool=pool, pilot=pilot, force=force)


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
    rows: Any = more
    new: list[object] = [f"new{more.suffix}"]
    if not is_table_of_answers(more):
        rows = inputs.views(more, need_labels=True)
        new = ["NEW_VIEWS", *inputs.new_words()]
    result, changes = add_labels(folder, rows, command=SESSION.command, say=say)
    for line in changes:
        say(line)
    _print_result(result, folder, *new, changes=changes)


def _calibrate_model(inputs: Inputs, out: Path, settings: Settings, **how: Any) -> None:
    """Run a model on its inputs, and calibrate it."""
    from recal.workflow.job import calibrate as run

    model = inputs.open_model()
    source = inputs.open_labelled_data(model)
    settings = replace(settings, about={"Model": str(inputs.model), **settings.about})
    how |= {"classes": inputs.class_names, **inputs.running()}
    with on_interrupt(f"What is done is kept in {out}: run the same command again to resume."):
        result = run(model, source, out, settings, **how)
    words = [*inputs.words("model"), "--data", "NEW", *inputs.words("trust"), *inputs.new_words()]
    say_skipped(source.skipped)
    _print_result(result, out, *words, skipped=source.skipped)


def _price(text: str) -> tuple[str, float]:
    name, _, price = text.partition("=")
    try:
        return name.strip(), float(price)
    except ValueError:
        raise InputError(f"--cost takes NAME=PRICE, such as gpt=1.98, got {text!r}.") from None


def _print_result(result: Any, out: Path, *new: object, **more: Any) -> None:
    """Print the result, and the command that applies it; `new` names new inputs."""
    print_json({**result.to_dict(), **more, "folder": out})
    say("")
    for line in result.lines():
        say(line)
    if not (result.cross_fit or "systems" in result.facts) and result.decision.needed:
        say("More rows decide with --cross-fit.")
    next_line = shell_line("apply", out, *new, "--out", "answers.csv")
    say(f"Report: {out / 'report.html'}. Next: {next_line}")


def _method(name: str, answers: str | None, seed: int) -> Any:
    """Return the calibrator that was typed; by default, it keeps answers if it has the choice."""
    from recal.calibrators import find_method

    has_choice = "answers" in inspect.signature(find_method(name)[0]).parameters
    typed = answers or ("kept" if has_choice else None)
    words = [] if typed is None else ["--answers", typed]
    return new_calibrator(name, read_parameters(name, words), seed)
