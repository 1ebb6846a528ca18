"""`recal collect`: from a model and inputs, a server or a log of a language model to views."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from recal.cli import options as opt
from recal.cli.files import check_exists
from recal.cli.inputs import Inputs, Questions, without_none
from recal.cli.options import split_names
from recal.cli.printing import on_interrupt, print_json, say, say_skipped, shell_line, working
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.answers.endpoint import Endpoint
    from recal.answers.scores import JoinedViews
    from recal.views import Views


def collect(
    out: Annotated[Path, Option(help="Where to write: .zarr (resumable) or .npz.")],
    inputs: Inputs,
    language: Questions,
    system: Annotated[str | None, opt.more(help="Write a table of this system's answers.")] = None,
    samples: Annotated[int, opt.more(help="With --system: further answers for comparison.")] = 0,
    pool: Annotated[
        str,
        Option(
            help="Transformations, such as zoom:0.5-0.9:10+brightness:0.1-0.9:10 (recal "
            "transforms lists them); auto: the default ones for such inputs; or none."
        ),
    ] = "none",
    seed: Annotated[int | None, opt.more(help="Same seed, same pool.")] = None,
    again: opt.Again = False,
    force: opt.Force = False,
) -> None:
    """Run a model on inputs and on transformed copies of them, and store the logits (views).

    Transformations act on the original inputs; normalisation (--divide, --mean, --std, --channels,
    or a function of your own) comes after them. A .zarr store is written batch by batch: run the
    same command again to resume after an interruption.

    Without --model, --data is a log of a language model: lm-evaluation-harness samples, chat
    completions or Batch API output with logprobs (.jsonl), or a table with one column per option.
    --view NAME=FILE adds other prompts for the same questions. With --model http://... a server is
    asked, and answers are kept as they arrive.

    Example: [bold]recal collect --data samples.jsonl --view direct=direct.jsonl --out
    views.npz[/bold]

    Example: [bold]recal collect --model net.onnx --data images/ --resize 256 --crop 224 --divide
    255 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --channels first --pool zoom:0.5-0.9:10
    --out views.zarr[/bold]
    """
    if system is not None:
        _collect_answers(system, samples, inputs, language, out)
        return
    if out.suffix.lower() not in (".npz", ".zarr"):
        raise InputError(f"Views go to a name ending in .npz or .zarr, got {str(out)!r}.")
    if is_log(inputs):
        _write_views(read_log(inputs, language), out)
    elif is_endpoint(inputs.model):
        _write_views(ask_endpoint(inputs, language, ledger_of(out)), out)
    else:
        inputs.check_files("collect")
        used = (*Inputs.names(), "pool", "seed", "again")
        opt.refuse_unused(f"the model {inputs.model}", used)
        _run_model(inputs, out, pool, seed, resume=not again)


def _run_model(inputs: Inputs, out: Path, pool: str, seed: int | None, *, resume: bool) -> None:
    """Run a model on its inputs and their views, and store the logits."""
    from recal.collecting import collect as run
    from recal.collecting.preflight import as_pool, preflight

    how = {**inputs.running(), "classes": inputs.class_names}
    adapter = inputs.open_model()
    names = ("preprocess", "classes", "outputs", "batch_size")
    checks = {name: how[name] for name in names if name in how}
    how |= {"out": out, "resume": resume, **without_none(seed=seed)}
    note = "No files were written; with --out NAME.zarr a run can be resumed."
    if out.suffix == ".zarr":
        note = f"What is done is kept in {out}: run the same command again to resume."
    try:
        source = inputs.open_labelled_data(adapter)
        transforms = as_pool(check_pool(pool), seed or 0, source, adapter)
        with on_interrupt(note):
            if inputs.engine is None:
                preflight(adapter, source, transforms, **checks)
            views = run(adapter, source, transforms, **how)
    except InputError as error:
        if inputs.labels is not None and error.argument == "labels":
            error.at(inputs.labels)
        raise
    facts = {**_shape(views), "skipped": source.skipped, "file": out}
    print_json({"transforms": list(map(str, views.transforms)), **facts})
    say_skipped(source.skipped)
    missing = () if views.labels is not None else ("--labels", "FILE")
    line = shell_line("fit", out, *missing, "--out", "calibration.recal")
    say(f"{views}. Written to {out}. Next: {line}")


def _shape(views: Views) -> dict[str, Any]:
    labelled = views.labels is not None
    return {"samples": views.n_samples, "classes": views.n_classes, "labelled": labelled}


def check_pool(pool: str) -> str:
    """Refuse an empty pool."""
    if not pool.strip():
        raise InputError(
            "--pool is empty; give none, auto, or transformations such as zoom:0.5-0.9:10."
        )
    return pool


def is_endpoint(model: str | None) -> bool:
    """Whether a model is the address of a server."""
    return model is not None and model.startswith(("http://", "https://"))


def is_log(inputs: Inputs) -> bool:
    """Whether there is data without a model, which can be a log of answers."""
    suffixes = (".jsonl", ".ndjson", ".json")
    suffix = "" if inputs.data is None else inputs.data.suffix.lower()
    return inputs.model is None and (inputs.is_table or suffix in suffixes)


def read_log(inputs: Inputs, language: Questions, used: Iterable[str] = ()) -> JoinedViews:
    """Return the views of a log, joined with those of --view; `used` are the command's options."""
    from recal.answers.logs import open_log

    assert inputs.data is not None
    own = ("data", "labels", "label_column", "view", "options")
    opt.refuse_unused(f"the log {inputs.data}", (*own, *used))
    others = {}
    for text in language.view or ():
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise InputError(
                f"--view takes NAME=FILE, such as --view direct=direct.jsonl, got {text!r}."
            )
        others[name] = Path(path)
    for file in (inputs.data, *others.values(), inputs.labels):
        if file is not None:
            check_exists(file)
    labels = (inputs.labels, inputs.label_column)
    return _print_joined(open_log(inputs.data, others, split_names(language.options), *labels))


def ask_endpoint(
    inputs: Inputs,
    language: Questions,
    ledger: Path,
    calibrator: Any = None,
    *,
    used: Iterable[str] = (),
    force: bool = False,
) -> JoinedViews:
    """Send the questions that have no answer yet; print the cost before the first request.

    For a `calibrator`, only its views are requested besides the first template, and a server that
    is asked otherwise than for the fit is refused. `used` are the command's own options.
    """
    from recal.answers.interview import Interview, Template, check_asked
    from recal.files.tables import read_table

    own = {*Questions.names(), "model", "data", "label_column", "on_error"} - {"view"}
    opt.refuse_unused(f"the server {inputs.model}", (*own, *used))
    needs: dict[str, Any] = {"--data": inputs.data, "--model-name": language.model_name}
    needs |= {"--options": language.options, "--template": language.template}
    if absent := [flag for flag, value in needs.items() if not value]:
        raise InputError(f"To ask a server, recal also needs {', '.join(absent)}.")
    assert inputs.data is not None
    check_exists(inputs.data)
    questions, options = dict(read_table(inputs.data)), split_names(language.options) or []
    labels = _take_labels(inputs, questions, options)
    templates = [Template.read(path) for path in language.template or ()]
    if calibrator is not None:
        templates = _needed(templates, calibrator)
    on_error, endpoint = _on_error(inputs), _endpoint(inputs, language)
    interview = Interview(endpoint, questions, options, templates, ledger, labels)
    if calibrator is not None:
        stored = getattr(calibrator, "preprocessing_", None)
        check_asked(getattr(stored, "asked", None), interview.asked, force=force)
    note = f"the answers so far are kept in {ledger}; the same command resumes"
    try:
        with on_interrupt(note):
            if calibrator is not None and calibrator.map_.gate is not None:
                interview.needed[:] = False
                say(f"First template: {interview.cost()}")
                with working("Asking"):
                    interview.run(on_error)
                logits = interview.views().views.logits
                interview.needed[:] = calibrator.map_.needs_views(logits)
            say(f"{interview.cost()}")
            with working("Asking"):
                interview.run(on_error)
    except Exception as error:
        error.add_note(note)
        raise
    return _print_joined(interview.views())


def _endpoint(inputs: Inputs, language: Questions, **how: Any) -> Endpoint:
    from recal.answers.endpoint import Endpoint

    return Endpoint(str(inputs.model), str(language.model_name), **(language.asking | how))


def ledger_of(out: Path) -> Path:
    """Return the file in which the answers of a server are kept as they arrive."""
    return Path(f"{out}.answers.jsonl")


def _on_error(inputs: Inputs) -> str:
    on_error = inputs.on_error or "stop"
    if on_error not in ("stop", "skip"):
        raise InputError(f"--on-error takes stop or skip, got {on_error!r}.")
    return on_error


def _collect_answers(
    name: str, samples: int, inputs: Inputs, language: Questions, out: Path
) -> None:
    """Ask one system, and write a table with its answers and signals."""
    from recal.answers.endpoint import AnswerLog
    from recal.answers.interview import System, Template
    from recal.files.tables import read_table

    own = {*Questions.names(), "model", "data", "on_error", "system", "samples"}
    opt.refuse_unused(f"the system {name}", own - {"view"})
    is_complete = is_endpoint(inputs.model) and inputs.data and language.model_name
    if not is_complete or len(language.template or ()) != 1:
        raise InputError(
            "--system also needs --model URL, --model-name, --data and one --template."
        )
    if out.suffix.lower() not in (".jsonl", ".csv", ".tsv", ".parquet"):
        raise InputError(f"--system writes a table (.jsonl, .csv, .parquet), got {str(out)!r}.")
    assert inputs.data is not None
    assert language.template
    check_exists(inputs.data)
    options = split_names(language.options)
    how = {}
    if options is None and language.max_tokens == 1:
        how["max_tokens"] = 256  # free text does not end after the default of one token
    template = Template.read(language.template[0])
    table, ledger = read_table(inputs.data), ledger_of(out)
    asking = System(name, _endpoint(inputs, language, **how), template, options, samples)
    n_asked = len(asking.rows(table))
    say(f"{n_asked:,} of {table.n_rows:,} rows are asked, {1 + samples} times each.")
    note = f"the answers so far are kept in {ledger}; the same command resumes"
    with on_interrupt(note), working(f"Asking {name}"):
        n_found = asking.answer(table, out, AnswerLog(ledger), _on_error(inputs))
    print_json({"rows": table.n_rows, "asked": n_asked, "answered": n_found, "file": out})
    say(f"{n_found:,} answers of {name} written to {out}, in columns {name}_answer, ...")
    if n_found < n_asked:
        say(f"{n_asked - n_found:,} questions have no answer, such as refusals.")


def _needed(templates: list[Any], calibrator: Any) -> list[Any]:
    """Return the first template and those that a calibration reads; refuse missing ones."""
    first, *others = templates
    by_name = {template.name: template for template in others}
    names = [str(transform) for transform in calibrator.needed_transforms()]
    for name in names:
        if name not in by_name:
            raise InputError(
                f"The calibration needs the view {name!r}; the first template is {first.name!r}, "
                f"and the others are {', '.join(by_name) or 'none'}. Give the same --template as "
                "for the fit, in the same order."
            )
    return [first, *(by_name[name] for name in names)]


def _take_labels(inputs: Inputs, questions: dict[str, Any], options: list[str]) -> Any:
    """Remove the column of labels from the questions, because a prompt must not contain it."""
    from recal.answers.logs import label_array

    name = inputs.label_column or ("label" if "label" in questions else None)
    if name is None:
        return None
    if name not in questions:
        raise InputError(f"{inputs.data} has no column {name!r}; it has {', '.join(questions)}.")
    labels = questions.pop(name).tolist()
    return label_array(inputs.data, labels, options, len(options))


def _print_joined(joined: JoinedViews) -> JoinedViews:
    if str(joined):
        say(str(joined))
    return joined


def _write_views(joined: JoinedViews, out: Path) -> None:
    views = joined.views
    views.write(out)
    facts: dict[str, Any] = {
        "left_out": joined.n_left_out,
        "missing": joined.n_missing,
        "unanswered": joined.n_unanswered,
        "views": list(map(str, views.transforms)),
    }
    print_json({**_shape(views), **facts, "file": out})
    next_line = shell_line("apply", "FOLDER", out, "--out", "answers.csv")
    if views.labels is not None:
        next_line = shell_line("calibrate", out, "--risk", 0.05, "--out", "calibrated")
    say(f"{views}. Written to {out}. Next: {next_line}")
