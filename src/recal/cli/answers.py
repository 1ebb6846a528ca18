"""What collect, calibrate and apply do with language models and with tables of graded answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recal.cli.files import missing
from recal.cli.options import LanguageOptions, ModelOptions
from recal.cli.printing import command_line, print_json, say, shows_progress, typed

if TYPE_CHECKING:
    from recal.answers.scores import JoinedViews
    from recal.calibrators.signals import SignalCalibration
    from recal.views import Views

# The answers of a server are kept beside the views under this ending.
LEDGER = ".answers.jsonl"


def is_endpoint(model: str | None) -> bool:
    """Whether a model is named by the address of a server."""
    return model is not None and model.startswith(("http://", "https://"))


def is_log(data: Path) -> bool:
    """Whether data without a model can be a log of answers."""
    return data.suffix.lower() in (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


def collect_log(inputs: ModelOptions, language: LanguageOptions, out: Path, as_json: bool) -> None:
    """Write the views of a log."""
    from recal.answers.logs import open_log

    assert inputs.data is not None
    others = language.logs()
    for path in (inputs.data, *others.values(), *([] if inputs.labels is None else [inputs.labels])):
        _check_there(path)
    joined = open_log(inputs.data, others, language.option_names, inputs.labels, inputs.label_column, language.floor)
    _write_views(joined, out, as_json)


def collect_endpoint(inputs: ModelOptions, language: LanguageOptions, out: Path, as_json: bool) -> None:
    """Ask a server and write the views of its answers."""
    _write_views(ask_endpoint(inputs, language, Path(f"{out}{LEDGER}"), as_json), out, as_json)


def ask_endpoint(
    inputs: ModelOptions, language: LanguageOptions, ledger: Path, as_json: bool, needed_views: set[str] | None = None
) -> JoinedViews:
    """Ask the server what it has not answered yet; say what it will cost before the first request.

    If `needed_views` is given, only these views are asked for, besides the first template.
    """
    from recal.answers.endpoint import Endpoint, Interview
    from recal.answers.prompts import Template, ways_to_ask
    from recal.answers.tables import read_table
    from recal.errors import InputError

    needed = {"--data": inputs.data, "--model-name": language.model_name, "--options": language.options}
    absent = [name for name, value in {**needed, "--template": language.template}.items() if not value]
    if absent:
        raise InputError(f"To ask a server, recal also needs {', '.join(absent)}.")
    assert inputs.data is not None
    assert inputs.model is not None
    assert language.model_name is not None
    assert language.template
    _check_there(inputs.data)
    questions, options = read_table(inputs.data), language.option_names or []
    labels = _take_labels(inputs, questions, options)
    templates = [Template.read(path) for path in language.template]
    endpoint = Endpoint(
        inputs.model,
        language.model_name,
        max_tokens=language.max_tokens,
        top_logprobs=language.top_logprobs,
        concurrency=language.concurrency,
        timeout=language.timeout,
    )
    askings = ways_to_ask(templates, options, list(questions), language.permute)
    if needed_views is not None:
        askings = [way for place, way in enumerate(askings) if place == 0 or way.name in needed_views]
    interview = Interview(endpoint, questions, options, askings, ledger, labels)
    say(f"{interview.cost()}", quiet=as_json)
    try:
        interview.run(_progress if shows_progress() and not as_json else lambda done, total: None)
    except KeyboardInterrupt as stop:
        stop.add_note(f"The answers so far are kept in {ledger}: run the same command again to resume.")
        raise
    except Exception as error:
        error.add_note(f"the answers so far are kept in {ledger}; the same command resumes")
        raise
    return interview.views(language.floor)


def _take_labels(inputs: ModelOptions, questions: dict[str, Any], options: list[str]) -> Any:
    """Take the column of labels out of the questions: a prompt must not hold it."""
    import numpy as np

    from recal.answers.logs import label_array, text_of
    from recal.errors import InputError

    name = inputs.label_column or ("label" if "label" in questions else None)
    if name is None:
        return None
    if name not in questions:
        raise InputError(f"{inputs.data} has no column {name!r}; it has {', '.join(questions)}.")
    labels = [text_of(value) for value in np.asarray(questions.pop(name)).tolist()]
    return label_array(inputs.data, labels, options, len(options))


def _progress(done: int, total: int) -> None:
    import sys

    print(f"\r{done:,} of {total:,} answers", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _check_there(path: Path) -> None:
    from recal.errors import FileError

    if not path.exists():
        raise FileError(missing(path))


def _write_views(joined: JoinedViews, out: Path, as_json: bool) -> None:
    views = joined.views
    views.write(out)
    if as_json:
        counts = {"missing": joined.n_missing, "floor": joined.floor, "unanswered": joined.n_unanswered}
        shape = {"samples": views.n_samples, "classes": views.n_classes, "left_out": joined.n_left_out}
        views_named = [str(transform) for transform in views.transforms]
        print_json({**shape, "views": views_named, **counts, "labelled": views.labels is not None, "file": out})
        return
    if str(joined):
        say(str(joined))
    following = (
        typed("recal", "apply", "FOLDER", out, "--out", "answers.csv")
        if views.labels is None
        else typed("recal", "calibrate", out, "--risk", 0.05, "--out", "calibrated")
    )
    say(f"{views}. Written to {out}. Next: {following}")


def calibrate_views(views: Views, out: Path, about: dict[str, str], how: dict[str, Any], as_json: bool) -> None:
    """Calibrate views that are there already, and decide which answers can be automated."""
    from recal.workflow.job import calibrate_views as run

    result = run(views, out, about=about, command=command_line(), say=lambda line: say(line, quiet=as_json), **how)
    _tell(result, out, "NEW_VIEWS", "answers.csv", as_json)


def calibrate_table(source: Path, out: Path, how: dict[str, Any], as_json: bool) -> None:
    """Calibrate a table of graded answers, and decide which answers can be automated."""
    from recal.workflow.graded import calibrate_table as run

    result = run(source, out, command=command_line(), say=lambda line: say(line, quiet=as_json), **how)
    _tell(result, out, f"new{source.suffix}", f"accepted{source.suffix}", as_json)


def _tell(result: Any, out: Path, new: str, answers: str, as_json: bool) -> None:
    if as_json:
        print_json({**result.to_dict(), "folder": out})
        return
    say("")
    for line in result.lines():
        say(line)
    say(f"Report: {out / 'report.html'}. Next: {typed('recal', 'apply', out, new, '--out', answers)}")


def tell_signals(file: Path, calibration: SignalCalibration, rule: str | None, as_json: bool) -> None:
    """Show a calibration of signals, for `recal plan`."""
    table, importance = calibration.table_, calibration.signal_importance_
    if as_json:
        facts = {"class": "SignalCalibration", "signals": table.names, "fitted_on": calibration.n_fitted_}
        told = {"reason": calibration.reason_, "importance": importance, "models": calibration.weights_, "rule": rule}
        print_json({"file": file, **facts, **told})
        return
    say(f"{file}: SignalCalibration, the confidence of answers from their signals")
    say(f"Fitted on  {calibration.n_fitted_:,} graded answers")
    say(f"Signals    {', '.join(table.names)}")
    say(f"Why        {calibration.reason_}")
    if importance:
        rises = ", ".join(f"{name} {rise:+.4f}" for name, rise in importance.items())
        say(f"Importance {rises} (NLL without the signal)")
    if rule is not None:
        say(f"Decides    {rule}")
    say(f"Next: {typed('recal', 'apply', file, 'new.csv', '--out', 'accepted.csv')}")


def export_signals(calibration: Path, out: Path, as_json: bool) -> None:
    """Write a calibration of signals as an ONNX file."""
    from recal import export_onnx, load

    loaded = load(calibration)
    export_onnx(loaded, path=out)
    names = loaded.table_.names
    if as_json:
        print_json({"file": out, "signals": names, "bytes": out.stat().st_size})
        return
    say(f"Written to {out}: signals (n, {len(names)}) in the order {', '.join(names)}; confidence (n,) out.")


def reads_signals(calibration: Path) -> bool:
    """Whether a calibration reads the signals of answers."""
    from recal.cli.files import check_kind
    from recal.files.saved import load

    check_kind(calibration, "calibration")
    return type(load(calibration)).__name__ == "SignalCalibration"


def apply_signals(calibration: Path, table: Path, out: Path, as_json: bool) -> None:
    """Add confidence and acceptance to a table of new answers."""
    from recal import load
    from recal.workflow.graded import apply_table

    _check_there(table)
    result = apply_table(load(calibration), table, out)
    if as_json:
        print_json({"answers": result.n_answers, "accepted": result.n_accepted, "file": out})
        return
    if result.n_accepted is not None:
        share = f"{result.n_accepted / result.n_answers:.1%}"
        say(f"{result.n_accepted:,} of {result.n_answers:,} answers ({share}) are accepted by the rule.")
    say(f"{result.n_answers:,} answers with their confidence written to {out}.")
