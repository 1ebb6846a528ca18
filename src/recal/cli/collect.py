"""`recal collect`: from a model and inputs, a server or a log of a language model to views."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from recal.cli import options as opt
from recal.cli.files import check_exists, refuse_unused
from recal.cli.inputs import ModelInputs, Questions
from recal.cli.options import split_names
from recal.cli.printing import SESSION, on_interrupt, print_json, say, say_skipped, shell_line
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.answers.scores import JoinedViews

# The answers of a server are stored next to the views, with this ending.
LEDGER = ".answers.jsonl"
# Options of a server that have a default; whether they were typed is not known.
ASKING = ("max_tokens", "top_logprobs", "concurrency", "timeout")


def collect(
    out: Annotated[
        Path, Option(help="Where to write: .zarr (resumable; a folder or a URL, s3://...) or .npz.")
    ],
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
    system: Annotated[
        str | None,
        Option(
            help="Write a table with this system's answers and signals, for a panel.",
            rich_help_panel=opt.MORE,
        ),
    ] = None,
    samples: Annotated[
        int,
        Option(
            help="With --system: further answers, to see how many agree.", rich_help_panel=opt.MORE
        ),
    ] = 0,
    pool: Annotated[
        str,
        Option(
            help="Transformations, such as zoom:0.5-0.9:10+brightness:0.1-0.9:10 (recal "
            "transforms lists them); auto: the default ones for such inputs; or none."
        ),
    ] = "none",
    seed: Annotated[
        int | None, Option(help="Same seed, same pool and same pilot.", rich_help_panel=opt.MORE)
    ] = None,
    pilot: Annotated[
        int | None,
        Option(
            help="Try the whole pool on this many labelled samples, then only views that help.",
            rich_help_panel=opt.MORE,
        ),
    ] = None,
    again: opt.Again = False,
    force: opt.Force = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run a model on inputs and on transformed copies of them, and store the logits (views).

    Transformations act on the original inputs; normalisation (--divide, --mean, --std, --channels,
    or a function of your own) comes after them. A .zarr store is written batch by batch: run the
    same command again to resume after an interruption. With --pilot 1000, all views are computed
    for 1,000 samples only, and those that help for all.

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
    values = locals()
    inputs, language = ModelInputs.of(values), Questions.of(values)
    transforming = {"--pool": pool != "none", "--pilot": pilot}
    if system is not None:
        refuse_unused(transforming, f"the system {system}")
        _collect_answers(system, samples, inputs, language, out)
        return
    refuse_unused({"--samples": samples}, "options without --system NAME")
    if out.suffix.lower() not in (".npz", ".zarr"):
        raise InputError(f"Views go to a name ending in .npz or .zarr, got {str(out)!r}.")
    if is_log(inputs):
        refuse_unused(transforming, f"the log {inputs.data}")
        _write_views(read_log(inputs, language), out)
        return
    if is_endpoint(inputs.model):
        refuse_unused(transforming, f"the server {inputs.model}")
        _write_views(ask_endpoint(inputs, language, Path(f"{out}{LEDGER}")), out)
        return
    inputs.check_files("collect")
    refuse_unused(language.flags(*ASKING), f"the model {inputs.model}")
    if pilot is not None and pool == "none":
        raise InputError(
            "--pilot finds out which transformations help: name them with --pool, such as --pool auto."
        )
    from recal.collecting import collect as run
    from recal.collecting import run_pilot
    from recal.collecting.pilot import needs_pilot
    from recal.collecting.pools import as_pool
    from recal.collecting.preflight import preflight

    prepare, adapter = inputs.preprocessing(), inputs.open_model()
    source = inputs.open_labelled_data(adapter)
    how: dict[str, Any] = inputs.running() | ({} if seed is None else {"seed": seed})
    how |= {"out": out, "resume": not again, "preprocess": prepare, "classes": inputs.class_names}
    transforms, trial = as_pool(check_pool(pool), seed or 0, source, adapter), None
    checks = {
        name: value
        for name, value in how.items()
        if name not in ("engine", "out", "progress", "resume")
    }
    note = "No files were written; with --out NAME.zarr a run can be resumed."
    if out.suffix == ".zarr":
        note = f"What is done is kept in {out}: run the same command again to resume."
    try:
        with on_interrupt(note):
            preflight(adapter, source, transforms, run_model=inputs.engine is None, **checks)
            if pilot is not None and transforms and needs_pilot(source, pilot):
                trial = run_pilot(adapter, source, transforms, pilot, **how)
                say(f"{trial}.")
            views = run(adapter, source, transforms if trial is None else trial.chosen, **how)
    except InputError as error:
        if inputs.labels is not None and error.argument == "labels":
            error.at(inputs.labels)
        raise
    specs, is_labelled = (
        [str(transform) for transform in views.transforms],
        views.labels is not None,
    )
    shape = {"samples": views.n_samples, "classes": views.n_classes, "transforms": specs}
    cost = (
        {}
        if trial is None
        else {"pilot": pilot, "passes": trial.passes, "without_pilot": trial.passes_without}
    )
    print_json({**shape, **cost, "labelled": is_labelled, "skipped": source.skipped, "file": out})
    say_skipped(source.skipped)
    missing = () if is_labelled else ("--labels", "FILE")
    say(
        f"{views}. Written to {out}. Next: {shell_line('fit', out, *missing, '--out', 'calibration.recal')}"
    )


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


def is_log(inputs: ModelInputs) -> bool:
    """Whether there is data without a model, which can be a log of answers."""
    suffixes = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
    return (
        inputs.model is None and inputs.data is not None and inputs.data.suffix.lower() in suffixes
    )


def read_log(inputs: ModelInputs, language: Questions) -> JoinedViews:
    """Return the views of a log, joined with those of --view."""
    from recal.answers.logs import open_log

    assert inputs.data is not None
    unused = language.flags("view", "options", "floor", "scores", *ASKING)
    refuse_unused(unused | inputs.flags("data", "labels", "label_column"), f"the log {inputs.data}")
    others = {}
    for text in language.view or ():
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise InputError(
                f"--view takes NAME=FILE, such as --view direct=direct.jsonl, got {text!r}."
            )
        others[name] = Path(path)
    for file in (
        inputs.data,
        *others.values(),
        *([] if inputs.labels is None else [inputs.labels]),
    ):
        check_exists(file)
    options = split_names(language.options)
    how = (inputs.labels, inputs.label_column, language.floor, language.scores or "acc")
    joined = open_log(inputs.data, others, options, *how)
    stored = joined.views.preprocessing
    asked = () if stored is None or stored.asked is None else stored.asked
    if ("scores", "acc") in asked:
        say("Scores are log-likelihoods (acc); --scores acc_norm divides them by the length.")
    elif ("scores", "acc_norm") in asked:
        say("Scores are log-likelihoods per character of the option (acc_norm).")
    return _print_joined(joined)


def ask_endpoint(
    inputs: ModelInputs,
    language: Questions,
    ledger: Path,
    calibrator: Any = None,
    *,
    force: bool = False,
) -> JoinedViews:
    """Send the questions that have no answer yet; print the cost before the first request.

    For a `calibrator`, only its views are requested besides the first template, and a server that
    is asked otherwise than for the fit is refused.
    """
    from recal.answers.endpoint import Endpoint, Interview
    from recal.answers.templates import Template, check_asked, ways_to_ask
    from recal.files.tables import read_table

    data: Any = inputs.data
    needs: dict[str, Any] = {"--data": data, "--model-name": language.model_name}
    needs |= {"--options": language.options, "--template": language.template}
    refuse_unused({"--scores": language.scores}, f"the server {inputs.model}")
    if absent := [flag for flag, value in needs.items() if not value]:
        raise InputError(f"To ask a server, recal also needs {', '.join(absent)}.")
    check_exists(data)
    questions, options = dict(read_table(data)), split_names(language.options) or []
    labels = _take_labels(inputs, questions, options)
    templates = [Template.read(path) for path in language.template or ()]
    how = {name: getattr(language, name) for name in ASKING}
    endpoint = Endpoint(str(inputs.model), str(language.model_name), **how)
    askings = ways_to_ask(templates, options, list(questions), language.permute)
    if calibrator is not None:
        askings = _needed(askings, calibrator)
    interview = Interview(endpoint, questions, options, askings, ledger, labels)
    if calibrator is not None:
        stored = getattr(calibrator, "preprocessing_", None)
        check_asked(getattr(stored, "asked", None), interview.asked, force=force)
    on_error = inputs.on_error or "stop"
    if on_error not in ("stop", "skip"):
        raise InputError(f"--on-error takes stop or skip, got {on_error!r}.")
    floor = language.floor
    note = f"the answers so far are kept in {ledger}; the same command resumes"
    try:
        with on_interrupt(note):
            if calibrator is not None and calibrator.map_.gate is not None:
                first = interview.first()
                say(f"First template: {first.cost()}")
                first.run(_print_answers, on_error)
                found = first.views(floor)
                floor = found.floor
                interview.needed = calibrator.map_.needs_views(found.views.logits).tolist()
            say(f"{interview.cost()}")
            interview.run(_print_answers, on_error)
    except Exception as error:
        error.add_note(note)
        raise
    return _print_joined(interview.views(floor))


def _print_answers(done: int, total: int) -> None:
    if sys.stderr.isatty() and SESSION.progress:
        end = "\n" if done == total else ""
        print(f"\r{done:,} of {total:,} answers", end=end, file=sys.stderr, flush=True)


def _collect_answers(
    name: str, samples: int, inputs: ModelInputs, language: Questions, out: Path
) -> None:
    """Ask one system, and write a table with its answers and signals."""
    from recal.answers.endpoint import Endpoint, Ledger
    from recal.answers.systems import System
    from recal.answers.templates import Template
    from recal.files.tables import read_table

    if not (
        is_endpoint(inputs.model) and inputs.data and language.model_name and language.template
    ):
        raise InputError("--system also needs --model URL, --model-name, --template and --data.")
    refuse_unused(
        {"a second --template": language.template[1:], "--permute": language.permute},
        f"the system {name}",
    )
    if out.suffix.lower() not in (".jsonl", ".csv", ".tsv", ".parquet"):
        raise InputError(f"--system writes a table (.jsonl, .csv, .parquet), got {str(out)!r}.")
    check_exists(inputs.data)
    how = {asked: getattr(language, asked) for asked in ASKING}
    options = split_names(language.options)
    if options is None and language.max_tokens == 1:
        how["max_tokens"] = 256  # free text does not end after the default of one token
    endpoint = Endpoint(str(inputs.model), language.model_name, **how)
    template = Template.read(language.template[0])
    table, ledger = read_table(inputs.data), Path(f"{out}{LEDGER}")
    asking = System(name, endpoint, template, options, samples)
    n_asked = len(asking.rows(table))
    say(f"{n_asked:,} of {table.n_rows:,} rows are asked, {1 + samples} times each.")
    on_error = inputs.on_error or "stop"
    with on_interrupt(f"the answers so far are kept in {ledger}; the same command resumes"):
        n_found = asking.answer(table, out, Ledger(ledger), _print_answers, on_error)
    print_json({"rows": table.n_rows, "asked": n_asked, "answered": n_found, "file": out})
    say(f"{n_found:,} answers of {name} written to {out}, in columns {name}_answer, ...")


def _needed(askings: list[Any], calibrator: Any) -> list[Any]:
    """Return the first way to ask and those that a calibration reads; refuse missing ones."""
    first, *others = askings
    by_name = {way.name: way for way in others}
    names = [str(transform) for transform in calibrator.needed_transforms()]
    for name in names:
        if name not in by_name:
            raise InputError(
                f"The calibration needs the view {name!r}; the first template is {first.name!r}, "
                f"and the other ways to ask are {', '.join(by_name) or 'none'}. Give the same "
                "--template and --permute as for the fit, in the same order."
            )
    return [first, *(by_name[name] for name in names)]


def _take_labels(inputs: ModelInputs, questions: dict[str, Any], options: list[str]) -> Any:
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
    shape = {"samples": views.n_samples, "classes": views.n_classes, "left_out": joined.n_left_out}
    specs, is_labelled = (
        [str(transform) for transform in views.transforms],
        views.labels is not None,
    )
    counts = {"missing": joined.n_missing, "floor": joined.floor, "unanswered": joined.n_unanswered}
    counts |= {"failed": joined.n_failed, "text_names_another": joined.n_other}
    print_json({**shape, "views": specs, **counts, "labelled": is_labelled, "file": out})
    next_line = shell_line("apply", "FOLDER", out, "--out", "answers.csv")
    if is_labelled:
        next_line = shell_line("calibrate", out, "--risk", 0.05, "--out", "calibrated")
    say(f"{views}. Written to {out}. Next: {next_line}")
