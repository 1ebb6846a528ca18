"""The store: views written batch by batch into a zarr folder, so that an interrupted collect goes on where it was.

    name.zarr/logits, labels, transformed   what `read_views` reads
    name.zarr/manifest.json                 which model, pool and data; at the end also a digest of every block
    name.zarr/checksums.json                what `read_views` compares the blocks with
    name.zarr/.stamps.json                  when the input files were touched last, so that they need not be read again
    name.zarr/journal.jsonl                 one line per finished block; there only while the store is unfinished

A block's arrays are written first and its line afterwards. Whatever is not vouched for by a line with the right
checksums is computed again, so a kill, a full disk or a power cut costs the blocks under way and nothing else.
Nothing in a store but the stamps depends on time, place or engine: two runs of one job give the same bytes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np

from recal.collecting.fingerprint import digest, digest_array
from recal.collecting.inputs.sources import Batch, Source
from recal.collecting.job import Block, Job
from recal.collecting.sinks.blocks import BlockWriter, StoreArrays, Written, cannot_write, describe_block
from recal.collecting.sinks.journal import open_journal
from recal.collecting.sinks.memory import ViewsSink
from recal.collecting.sinks.resuming import differ_by_rounding, version_of
from recal.collecting.sinks.unchanged import Inputs, same_inputs
from recal.errors import FileError, InputError, Remedy
from recal.files.atomic import replacing
from recal.files.checksums import Checksums, checksum, describe
from recal.files.locks import WORD, Lock, Word, lock_folder
from recal.files.origin import JOURNAL, is_beginning, is_empty_journal
from recal.files.places import exists, is_remote, remove_inside
from recal.files.view_folders import header
from recal.files.views import read_views
from recal.views import Views

_PACKAGES = ("recal-calibration", "numpy", "zarr", "scikit-learn", "torch", "onnxruntime")
# What must be the same to go on, and how a message calls it.
_JOB = {
    "model": "another model",
    "pool": "another pool of transformations",
    "data": "other inputs",
    "batch_size": "another batch_size",
    "outputs": "another kind of outputs",
    "preprocess": "another preprocess",
    "labels": "other labels",
}
_REMEDY = Remedy(
    "Choose another name, or pass resume=False to start over and replace it",
    typed="Choose another name, or add --again to start over and replace it",
)


class StoreSink(ViewsSink):
    """Writes blocks into a zarr folder, and continues one that was left unfinished."""

    wants_digests: ClassVar[bool] = True

    def __init__(
        self,
        job: Job,
        source: Source,
        classes: Sequence[Any] | None,
        target: Path,
        *,
        batch_size: int,
        resume: bool,
    ) -> None:
        super().__init__(job, source, classes)
        self.target, self.batch_size, self.resume = target, batch_size, resume
        self._manifest = self._describe()
        self._between = None if job.preprocessing is None else job.preprocessing.as_json()
        self._arrays = StoreArrays(target, batch_size)
        self._token: Word | None = None
        self._probe: int | None = None
        self._lock: Lock | None = None

    def _describe(self) -> dict[str, Any]:
        given, record = self.source.labels, self.job.preprocessing
        return {
            "kind": "recal collect",
            "version": 1,
            "complete": False,
            # Of the record where it is known: a digest of all weights takes seconds for a large model.
            "model": (record and record.model) or self.job.model.fingerprint(),
            "model_name": self.job.model.name,
            "pool": [str(transform) for transform in self.job.transforms],
            "data": {"fingerprint": self.source.fingerprint(), "skipped": list(self.source.skipped)},
            "batch_size": self.batch_size,
            "outputs": self.job.outputs,
            "preprocess": None if self.job.preprocess is None else digest(self.job.preprocess),
            "labels": None if given is None else digest([np.asarray(given), self.source.classes, self.asked_classes]),
            "versions": {name: version_of(name) for name in _PACKAGES},
        }

    # --- opening

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException as error:  # __exit__ does not follow
            if self._lock is not None:
                self._lock.close()
            if isinstance(error, OSError):
                raise cannot_write(self.target, error) from error
            raise
        return self

    def _open(self) -> None:
        self._complete = False
        if exists(self.target):
            self._read_manifest()  # what collect did not make is refused before anything is touched
        if not is_remote(self.target):
            self.target.mkdir(parents=True, exist_ok=True)
        # From here on nobody else writes; whoever did so before has left what it wrote.
        self._lock = lock_folder(self.target)
        found = self._read_manifest()
        if not self.resume:
            # The folder stays: its lock is what keeps others out. The manifest says whose it is, if this is stopped.
            remove_inside(self.target, WORD, "manifest.json")
        elif found["complete"] or self._has_blocks():
            self._compare(found)
            self._complete = found["complete"]
        self._journal = open_journal(self.target / JOURNAL, finished=self._complete)
        if self._complete:
            self._reopen(found)
        if not self._complete:
            self._begin()
        inputs = Inputs(self.source, self.batch_size, self.target)
        if (changed := inputs.changed(self._journal.records)) is not None:
            raise self._other_inputs(changed)
        inputs.remember()
        self.done = frozenset(self._journal.records)
        if self.done:
            # One block is computed again: only what comes out tells a changed preprocess or function.
            self._probe = min(self.done)
            self.done -= {self._probe}

    @property
    def _held(self) -> Lock:
        assert self._lock is not None, "a store is written between its __enter__ and its __exit__"
        return self._lock

    def _reopen(self, found: dict[str, Any]) -> None:
        """Take over a finished store; where a block is not what was written, the store is unfinished again."""
        records = dict(enumerate(found["chunks"]))
        try:
            views = read_views(self.target)
            damaged = [index for index, record in records.items() if not self._is_fine(views, index, record)]
        except (FileError, InputError):  # its description or its labels
            damaged = [index for index, record in records.items() if not self._is_intact(index, record)]
            self._complete = False
        if damaged:
            self._complete = False
        if self._complete:
            self._journal.records = records
            return
        self._journal = open_journal(self.target / JOURNAL)
        for index in sorted(set(records) - set(damaged)):
            self._journal.add(index, records[index])
        self._write_manifest()

    def _is_fine(self, views: Views, index: int, record: dict[str, Any]) -> bool:
        """Whether a block has its checksums; it is compared as it is read."""
        start = index * self.batch_size
        try:
            rows = views[start : start + record["rows"]]
            for layer in (views._logits, *views._transformed.values()):
                layer[start : start + record["rows"]]
        except (FileError, InputError):
            return False
        return rows.n_samples == record["rows"]

    def _has_blocks(self) -> bool:
        """Whether an unfinished store holds anything that a beginning with another job would lose."""
        journal = self.target / JOURNAL
        return journal.exists() and not is_empty_journal(journal)

    def _begin(self) -> None:
        """Keep what is vouched for, and clear away the rest."""
        if not is_remote(self.target):  # where nothing is ever partial
            for pattern in ("*.partial", "*.part"):  # zarr's, and a manifest's
                for partial in self.target.rglob(pattern):
                    partial.unlink()
        if self._journal.records:
            self._open_arrays()
            broken = [index for index, record in self._journal.records.items() if not self._is_intact(index, record)]
            self._journal.forget(broken)
        if not self._journal.records:
            remove_inside(self.target, JOURNAL, "manifest.json", WORD)
            self._arrays.forget()
            self._write_manifest()

    def _read_manifest(self) -> dict[str, Any]:
        """Return the manifest of what stands at the target; a folder that collect did not make is never touched."""
        path = self.target / "manifest.json"
        if self.target.is_dir() and not path.exists() and is_beginning(self.target):
            return {**self._manifest, "complete": False}  # killed before its first file was whole
        try:
            if not path.is_file():
                raise ValueError("it is missing")
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if found["kind"] != "recal collect" or found["version"] != 1:
                raise ValueError(f"kind {found['kind']!r}, version {found['version']!r}")
            if found["complete"] and not isinstance(found["chunks"], list):
                raise ValueError("it lists no chunks")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise FileError(
                f"{self.target} already exists and was not written by collect (no readable manifest.json: {error}); "
                "it was not changed. Choose another name."
            ) from error
        return found

    def _compare(self, found: dict[str, Any]) -> None:
        different = [words for key, words in _JOB.items() if found.get(key) != self._manifest[key]]
        if different:
            raise InputError(
                f"{self.target} was made with {' and '.join(different)}; views of two jobs are not mixed",
                remedy=_REMEDY,
            )
        self._manifest["versions"] = found.get("versions")  # of the run that began it

    # --- blocks

    def put(self, block: Block) -> None:
        self._check(block)
        record = describe_block(block, self.source.labels is None)
        if block.index == self._probe:
            self._compare_block(block, record)
            self._probe = None
            return
        if self._complete:
            raise self._other_inputs(block.index)  # there are more than when it was finished
        try:
            self._held.check()
            if not self._arrays:
                described = header(self._manifest["pool"], "", self._between)
                self._arrays.create(block, described, self.source.n_samples)
            self._arrays.grow(block)
            self._arrays.write(block)
            self._vouch(block.index, record)
        except OSError as error:
            raise cannot_write(self.target, error) from error

    def finisher(self) -> BlockWriter | None:
        # What the arrays are is known from the first block on; and the one that is compared must come here.
        if self._complete or self._probe is not None or not self._arrays:
            return None
        if self._token is None:  # where the lock itself is a word, workers look for that one
            own = f".writers-{secrets.token_hex(8)}.part"
            self._token = self._held if isinstance(self._held, Word) else Word(self.target, own)
        return BlockWriter(self._arrays, self._token, self.source.labels is None, self.job.model.name)

    def take(self, finished: Written) -> None:
        try:
            self._vouch(finished.index, finished.record)
        except OSError as error:
            raise cannot_write(self.target, error) from error

    def _vouch(self, index: int, record: dict[str, Any]) -> None:
        """Write the line that makes a block count."""
        self._held.check()
        self._journal.add(index, record)

    def meet_again(self, batch: Batch) -> None:
        if not same_inputs(batch, self._journal.records[batch.index]):
            raise self._other_inputs(batch.index)

    def _compare_block(self, block: Block, record: dict[str, Any]) -> None:
        recorded = self._journal.records[block.index]
        if record["inputs"] != recorded["inputs"] and None not in (record["inputs"], recorded["inputs"]):
            raise self._other_inputs(block.index)
        if record["logits"] == recorded["logits"] and record["transformed"] == recorded["transformed"]:
            return
        stored = self._arrays.read(block.index, recorded["rows"])
        pairs = zip(stored, (block.logits, block.transformed))
        # Another machine may round the last bits otherwise; another model gives other answers.
        if not all(old.shape == new.shape and differ_by_rounding(old, new) for old, new in pairs):
            raise InputError(
                f"{self.target} was made with another model or another preprocess: computed again, its block "
                f"{block.index} differs. {_REMEDY}"
            )

    def _other_inputs(self, index: int) -> InputError:
        return InputError(
            f"{self.target} was made with other inputs: batch {index} differs from the one recorded. A loader must "
            f"give the same order each time (shuffle=False). {_REMEDY}"
        )

    def _open_arrays(self) -> None:
        self._arrays.open()
        self._first = self._arrays.first

    def _is_intact(self, index: int, record: dict[str, Any]) -> bool:
        if not isinstance(record.get("sums"), list):  # of an older version
            return False
        try:
            logits, transformed = self._arrays.read(index, record["rows"])
        except Exception:  # a damaged chunk; it is computed again
            return False
        return digest_array(logits) == record["logits"] and digest_array(transformed) == record["transformed"]

    # --- the end

    def finish(self) -> Views:
        if not self._complete:
            try:
                self._seal()
            except OSError as error:
                raise cannot_write(self.target, error) from error
        return read_views(self.target)

    def _seal(self) -> None:
        import zarr

        records = self._journal.records
        missing = set(range(max(records, default=-1) + 1)) - set(records)
        n_samples = sum(record["rows"] for record in records.values())
        if missing or (self.source.n_samples is not None and n_samples != self.source.n_samples):
            raise InputError(f"{self.target}: {self.source.n_samples} samples were expected and {n_samples} arrived.")
        if self.source.labels is None:
            self._labels = {i: np.array(r["labels"]) for i, r in records.items() if r["labels"] is not None}
        labels, columns = self.labels(n_samples, self._arrays.first[0])
        root: Any = zarr.open_group(str(self.target), mode="a")
        pool, n_classes = self._manifest["pool"], self._arrays.first[0]
        names = None if columns is None else columns.tolist()
        sums = Checksums(self.batch_size, describe(pool, names, (len(pool), n_samples, n_classes), self._between))
        each = [records[index]["sums"] for index in sorted(records)]
        sums.logits, sums.transformed = [own[0] for own in each], [list(layer) for layer in zip(*each)][1:]
        if labels is not None:
            stored = labels.astype(np.int64)
            root.create_array("labels", data=stored, chunks=(n_samples,), fill_value=-1, overwrite=True)
            sums.labels = checksum(stored)
        if names is not None:
            root.attrs["classes"] = names
        sums.write(self.target)
        root.attrs["recal"] = header(pool, sums.generation, self._between)
        kept = ("rows", "inputs", "logits", "transformed", "sums", "labels")
        chunks = [{key: records[index][key] for key in kept} for index in sorted(records)]
        self._manifest |= {"complete": True, "chunks": chunks}
        if self._token is not None and self._token is not self._lock:
            self._token.close()
        self._held.check()
        self._write_manifest()
        self._journal.remove()

    def _write_manifest(self) -> None:
        with replacing(self.target / "manifest.json") as file:
            file.write(json.dumps(self._manifest, indent=1).encode())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            self._token.close()
        self._journal.close()
        self._held.close()
