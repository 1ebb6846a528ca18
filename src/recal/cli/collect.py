"""`recal collect`: from a model and inputs, a server or a log of a language model to views."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from recal.cli import options as opt
from recal.cli.files import check_calibration, check_exists, load_saved
from recal.cli.options import Inputs, split_names
from recal.cli.printing import on_interrupt, print_json, say, say_skipped, shell_line, working
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.answers.endpoint import Endpoint
    from recal.answers.scores import JoinedViews
    from recal.views import Views

_language = partial(Option, rich_help_panel="Language models")
INPUTS = opt.ALL
# The options of each way to get answers, besides those of every command.
_OF_MODEL = ("pool", "seed", *opt.ALL)
_OF_LOG = ("data", "labels", "label_column", "view", "options", "scores")
_OF_REQUESTS = ("model_name", "max_tokens", "top_logprobs", "concurrency")
_OF_SERVER = ("model", "data", "on_error", "template", "options", *_OF_REQUESTS)
_OF_VIEWS = ("label_column", "calibration")


def collect(
    ctx: Context,
    out: Annotated[Path, Option(help="Where to write: .zarr (resumable) or .npz.")],
    pool: Annotated[
        str,
        Option(
            help="Transformations, such as zoom:0.5-0.9:10+brightness:0.1-0.9:10 (recal "
            "transforms lists them); auto: the default ones for such inputs; or none."
        ),
    ] = "none",
    seed: Annotated[int | None, Option(help="Same seed, same pool.")] = None,
    model_name: Annotated[str | None, _language(help="The model's name on the server.")] = None,
    template: Annotated[
        list[Path] | None,
        _language(help="A prompt with {column} and {options}; repeat it for views."),
    ] = None,
    options: Annotated[str | None, _language(help="The answers, such as A,B,C,D.")] = None,
    view: Annotated[list[str] | None, _language(help="NAME=FILE: a log of another prompt.")] = None,
    scores: Annotated[
        str, _language(help="Of lm-evaluation-harness: acc, or acc_norm (divided by length).")
    ] = "acc",
    max_tokens: Annotated[int, _language(help="Tokens of an answer; more than 1 to reason.")] = 1,
    top_logprobs: Annotated[int, _language(help="How many likely tokens to ask for.")] = 20,
    concurrency: Annotated[int, _language(help="Requests at the same time.")] = 8,
    calibration: Annotated[
        Path | None, _language(help="Ask a server as for its fit, and only what it needs.")
    ] = None,
    system: Annotated[str | None, _language(help="Write a table of this system's answers.")] = None,
    samples: Annotated[int, _language(help="With --system: further answers for comparison.")] = 0,
    force: Annotated[
        bool, Option("--force", help="Overwrite existing files; start over instead of resuming.")
    ] = False,
) -> None:
    """Run a model on inputs and on transformed copies of them, and store the logits (views).

    Transformations act on the original inputs; normalisation (--divide, --mean, --std, --channels)
    comes after them. A .zarr store is written batch by batch: run the same command again to resume
    after an interruption.

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
    inputs: Inputs = ctx.obj
    model, data = inputs.model, inputs.data
    if (out.suffix.lower() in (".npz", ".zarr")) is (system is not None):
        what = "Views go to a name ending in .npz or .zarr"
        if system is not None:
            what = "--system writes a table (.jsonl, .csv, .parquet)"
        raise InputError(f"{what}, got {str(out)!r}.")
    if model is not None and model.startswith(("http://", "https://")):
        needs: dict[str, Any] = {"--data": data, "--model-name": model_name, "--template": template}
        needs |= {} if system else {"--options": options}
        if absent := [flag for flag, value in needs.items() if not value]:
            raise InputError(f"To ask a server, recal also needs {', '.join(absent)}.")
        own = ("system", "samples") if system else _OF_VIEWS
        opt.refuse_unused(ctx, f"the server {model}", (*_OF_SERVER, *own))
        if system and options is None and max_tokens == 1:
            max_tokens = 256  # free text does not end after the default of one token
        from recal.answers.endpoint import Endpoint

        limits: dict[str, Any] = {"max_tokens": max_tokens, "top_logprobs": top_logprobs}
        endpoint = Endpoint(model, str(model_name), **limits, concurrency=concurrency)
        if system:
            _ask_system(endpoint, system, samples, template or [], options, inputs, out)
        else:
            asked = _ask(endpoint, template or [], options, inputs, out, calibration, force=force)
            _write_joined(asked, out, calibration)
    elif system is not None:
        raise InputError("--system also needs --model URL, --model-name, --data and --template.")
    elif model is None and data is not None and (inputs.is_table or "json" in data.suffix):
        opt.refuse_unused(ctx, f"the log {data}", _OF_LOG)
        _write_joined(_read_log(data, view or [], options, scores, inputs), out)
    else:
        inputs.check_files()
        opt.refuse_unused(ctx, f"the model {model}", _OF_MODEL)
        _run_model(inputs, out, pool, seed, resume=not force)


def _run_model(inputs: Inputs, out: Path, pool: str, seed: int | None, *, resume: bool) -> None:
    """Run a model on its inputs and their views, and store the logits."""
    from recal.collecting import collect as run

    how = {**inputs.running(), "classes": inputs.class_names}
    adapter = inputs.open_model()
    how |= {"out": out, "resume": resume, **opt.without_none(seed=seed)}
    note = "No files were written; with --out NAME.zarr a run can be resumed."
    if out.suffix == ".zarr":
        note = f"What is done is kept in {out}: run the same command again to resume."
    source = inputs.open_labelled_data(adapter)
    with on_interrupt(note):
        views = run(adapter, source, pool, **how)
    facts = {**_shape(views), "skipped": source.skipped, "file": out}
    print_json({"transforms": list(map(str, views.transforms)), **facts})
    say_skipped(source.skipped)
    missing = () if views.labels is not None else ("--labels", "FILE")
    line = shell_line("fit", out, *missing, "--out", "calibration.recal")
    say(f"{views}. Written to {out}. Next: {line}")


def _shape(views: Views) -> dict[str, Any]:
    labelled = views.labels is not None
    return {"samples": views.n_samples, "classes": views.n_classes, "labelled": labelled}


def _read_log(
    log: Path, views: list[str], options: str | None, scores: str, inputs: Inputs
) -> JoinedViews:
    """Return the views of a log, joined with those of --view."""
    from recal.answers.logs import open_log

    others = {}
    for text in views:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise InputError(
                f"--view takes NAME=FILE, such as --view direct=direct.jsonl, got {text!r}."
            )
        others[name] = Path(path)
    for file in (log, *others.values(), inputs.labels):
        if file is not None:
            check_exists(file)
    labels = (inputs.labels, inputs.label_column)
    return open_log(log, others, split_names(options), *labels, scores)


def _ask(
    endpoint: Endpoint,
    templates: list[Path],
    options: str | None,
    inputs: Inputs,
    out: Path,
    calibration: Path | None,
    *,
    force: bool,
) -> JoinedViews:
    """Send the questions that have no answer yet; print the cost before the first request.

    For a calibration, refuse a server that is asked otherwise than for the fit, and ask further
    templates only where they are needed.
    """
    from recal.answers.interview import Interview, Template, check_asked
    from recal.answers.logs import label_array
    from recal.files.tables import read_table

    assert inputs.data is not None
    check_exists(inputs.data)
    questions, names = dict(read_table(inputs.data)), split_names(options) or []
    # A prompt must not contain the column of labels.
    column = inputs.label_column or ("label" if "label" in questions else None)
    labels = None
    if column is not None:
        if column not in questions:
            raise InputError(
                f"{inputs.data} has no column {column!r}; it has {', '.join(questions)}."
            )
        labels = label_array(inputs.data, questions.pop(column).tolist(), names, len(names))
    prompts = [Template.read(path) for path in templates]
    ledger, stored, needs_views = _ledger_of(out), None, None
    if calibration is not None:
        calibrator = check_calibration(*load_saved(calibration))
        stored = getattr(calibrator, "preprocessing_", None)
        fitted_map = getattr(calibrator, "map_", calibrator)
        needed, needs_views = list(map(str, fitted_map.transforms)), fitted_map.needs_views
        prompts[1:] = [one for one in prompts[1:] if one.name in needed]
        if len(prompts) <= len(needed):
            named = " ".join(f"--template {one}.txt" for one in needed)
            raise InputError(f"{calibration} needs these templates after the first one: {named}")
    interview = Interview(endpoint, questions, names, prompts, ledger, labels)
    check_asked(getattr(stored, "asked", None), interview.asked, force=force)
    say(f"{'At most ' if needs_views else ''}{interview.cost()}")
    with _keeping(ledger), working("Asking"):
        interview.run(inputs.on_error or "stop", needs_views)
    return interview.views()


def _ledger_of(out: Path) -> Path:
    """Return the file in which the answers of a server are kept as they arrive."""
    return Path(f"{out}.answers.jsonl")


@contextmanager
def _keeping(ledger: Path) -> Iterator[None]:
    """After an error or an interruption, also say where the answers so far are kept."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if ledger.exists():
            error.add_note(f"the answers so far are kept in {ledger}; the same command resumes")
        raise


def _ask_system(
    endpoint: Endpoint,
    name: str,
    samples: int,
    templates: list[Path],
    options: str | None,
    inputs: Inputs,
    out: Path,
) -> None:
    """Ask one system, and write a table with its answers and signals."""
    from recal.answers.endpoint import AnswerLog
    from recal.answers.interview import System, Template
    from recal.files.tables import read_table

    assert inputs.data is not None
    check_exists(inputs.data)
    if len(templates) != 1:
        raise InputError(f"--system takes one --template, got {len(templates)}.")
    table, ledger = read_table(inputs.data), _ledger_of(out)
    template = Template.read(templates[0])
    asking = System(name, endpoint, template, split_names(options), samples)
    n_asked = len(asking.rows(table))
    say(f"{n_asked:,} of {table.n_rows:,} rows are asked, {1 + samples} times each.")
    with _keeping(ledger), working(f"Asking {name}"):
        n_found = asking.answer(table, out, AnswerLog(ledger), inputs.on_error or "stop")
    print_json({"rows": table.n_rows, "asked": n_asked, "answered": n_found, "file": out})
    say(f"{n_found:,} answers of {name} written to {out}, in columns {name}_answer, ...")
    if n_found < n_asked:
        say(f"{n_asked - n_found:,} questions have no answer, such as refusals.")


def _write_joined(joined: JoinedViews, out: Path, calibration: Path | None = None) -> None:
    if str(joined):
        say(str(joined))
    views = joined.views
    views.write(out)
    facts = {"left_out": joined.n_left_out, "missing": joined.n_missing}
    facts |= {"unanswered": joined.n_unanswered, "other_option": joined.n_other, **_shape(views)}
    print_json({**facts, "views": list(map(str, views.transforms)), "file": out})
    next_line = shell_line("apply", calibration or "FOLDER", out, "--out", "answers.csv")
    if views.labels is not None and calibration is None:
        next_line = shell_line("calibrate", out, "--risk", 0.05, "--out", "calibrated")
    say(f"{views}. Written to {out}. Next: {next_line}")
