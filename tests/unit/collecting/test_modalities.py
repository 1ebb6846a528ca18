"""Models and inputs of every modality: texts, sounds, bytes, tables, series of different lengths,
video.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile
import torch
from PIL import Image
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from recal import CalibratedClassifier, TemperatureScaling, collect
from recal.calibrators import ViewAveraging
from recal.cli.app import run
from recal.collecting import apply
from recal.collecting.models import as_model, import_model
from recal.collecting.sources import as_source
from recal.errors import FileError, InputError
from tests.unit.export.onnx_zoo import linear

RNG = np.random.default_rng(0)
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 16}
TEXTS = ["the cat sat on the mat", "a dog", "rain and wind and rain", "cat", "the dog and the cat"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from transformers import BertTokenizer

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *sorted({word for text in TEXTS for word in text.split()})]
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(words))
    return BertTokenizer(str(path))


@pytest.fixture(scope="module")
def bert(tokenizer):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), num_labels=3, **SMALL)
    return BertForSequenceClassification(config).eval()


def alone(model, tokenizer, texts):
    with torch.no_grad():
        encoded = [tokenizer(text, return_tensors="pt") for text in texts]
        return np.stack([model(**one).logits[0].numpy() for one in encoded])


def test_hugging_face_texts_in_any_order_of_lengths(bert, tokenizer):
    texts = TEXTS * 9  # more than are asked at a time
    # An untrained model gives nearly the same logits for all.
    pool = "tokendrop:0.5+chardrop:0.2"
    views = collect((bert, tokenizer), texts, pool, preflight=False)
    np.testing.assert_allclose(views.logits, alone(bert, tokenizer, texts), atol=1e-5)
    first = views.transforms[0]
    expected = alone(bert, tokenizer, first(texts))
    np.testing.assert_allclose(views.transformed(first), expected, atol=1e-5)


def test_a_folder_of_hugging_face_text_and_the_command_line(
    bert, tokenizer, tmp_path, monkeypatch, capsys
):
    bert.save_pretrained(tmp_path / "net")
    tokenizer.save_pretrained(tmp_path / "net")
    assert as_model(tmp_path / "net").takes == "text"
    (tmp_path / "texts.csv").write_text(
        "text,label\n" + "\n".join(f"{t},{i % 3}" for i, t in enumerate(TEXTS))
    )
    monkeypatch.chdir(tmp_path)
    typed = shlex.split("collect --model net --data texts.csv --text-column text --pool auto")
    assert run([*typed, "--out", "views.npz"]) == 0
    assert "5 samples, 3 classes, 9 transformations, labelled" in capsys.readouterr().out


@pytest.fixture
def sounds(tmp_path):
    """Two classes of tones, as WAV and FLAC, of different lengths."""
    for row in range(8):
        name, pitch = ("high", 0.9) if row % 2 else ("low", 0.1)
        tone = 0.5 * np.sin(np.arange(1600 + 100 * row) * pitch)
        path = tmp_path / "sounds" / name / f"{row}.{'flac' if row < 4 else 'wav'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, np.stack([tone, tone], 1), 16000)
    return tmp_path / "sounds"


def crossings(batch):
    """Two scores from how often a sound crosses zero, for arrays and for sounds of different
    lengths.
    """
    rates = np.array([np.mean(np.diff(np.sign(sound)) != 0) for sound in batch])
    return np.stack([0.15 - rates, rates - 0.15], axis=1) * 40


def test_folders_of_sounds_as_they_are_and_cut_to_one_length(sounds):
    ragged = as_source(sounds)
    assert (ragged.classes, ragged.rate, ragged.n_samples) == (("high", "low"), 16000, 8)
    batch = ragged.read(range(8))
    assert batch.dtype == object
    np.testing.assert_allclose(batch[0][:50], 0.5 * np.sin(np.arange(1700)[:50] * 0.9), atol=1e-3)
    assert as_source(sounds, seconds=0.1).read(range(8)).shape == (8, 1600)
    assert as_source(sounds, seconds=0.2).read(range(1)).shape == (1, 3200)
    views = collect(crossings, sounds, "auto")
    assert views.logits.argmax(1).tolist() == [1 - label for label in views.labels]
    assert {transform.kind for transform in views.transforms} >= {"noise", "timemask"}
    soundfile.write(sounds / "low" / "other.wav", np.zeros(100), 8000)
    with pytest.raises(InputError, match=r"the first has 16000 Hz and .*other\.wav has 8000"):
        collect(crossings, sounds, None)
    (sounds / "low" / "other.wav").write_bytes(b"no sound")
    with pytest.raises(FileError, match=r"other\.wav cannot be read"):
        collect(crossings, sounds, None)
    assert as_source(sounds, on_error="skip").skipped == ("low/other.wav",)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["sounds", "videos"])
def test_sounds_and_videos_are_applied_as_they_were_collected(kind, sounds):
    inputs, model, labels, pool = sounds, crossings, None, "noise:20+timemask:0.2"
    if kind == "videos":
        inputs = RNG.integers(0, 256, (40, 6, 12, 12, 1), dtype=np.uint8)
        labels, pool = np.arange(40) % 3, "frames:0.5+shift:1"

        def model(batch):
            return np.asarray(batch, dtype=float).mean((2, 3, 4))[:, :3] / 5 - 20

    views = collect(model, inputs, pool, labels=labels)
    fitted = ViewAveraging().fit(views)
    found = apply(fitted, model, inputs).probs
    np.testing.assert_allclose(found, fitted.predict_proba(views), atol=1e-9)


def test_hugging_face_sounds(sounds, tmp_path):
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification
    from transformers import Wav2Vec2FeatureExtractor as Extractor

    torch.manual_seed(0)
    layers = {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 8)}
    layers |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    config = Wav2Vec2Config(classifier_proj_size=8, num_labels=2, **SMALL, **layers)
    net = Wav2Vec2ForSequenceClassification(config).eval()
    extractor = Extractor(return_attention_mask=True)
    net.save_pretrained(tmp_path / "net")
    extractor.save_pretrained(tmp_path / "net")
    assert as_model(tmp_path / "net").takes == "audio"
    views = collect((net, extractor), as_source(sounds), "noise:20")
    first = as_source(sounds).read(range(1))[0]
    with torch.no_grad():
        expected = net(**extractor(first, sampling_rate=16000, return_tensors="pt")).logits.numpy()
    np.testing.assert_allclose(views.logits[:1], expected, atol=1e-4)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_new_files_may_lack_a_class_that_the_calibration_knows(tmp_path):
    for part, kinds in (("held-out", "abc"), ("new", "ac")):
        for row in range(60):
            path = tmp_path / part / kinds[row % len(kinds)] / f"{row}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes([97 + (row % 3 if row % 7 else 1)]) * 9)

    def model(files):
        return np.array([[text.count(letter) for letter in "abc"] for text in files], dtype=float)

    views = collect(model, tmp_path / "held-out", None)
    applied = apply(TemperatureScaling().fit(views), model, tmp_path / "new")
    assert applied.classes.tolist() == ["a", "b", "c"]
    assert sorted(set(applied.labels.tolist())) == [0, 2]


def table(n=300):
    town = RNG.choice(["Bonn", "Oslo", "Rome"], n)
    age = RNG.integers(18, 90, n)
    y = ((age > 50) ^ (town == "Oslo") ^ (RNG.random(n) < 0.2)).astype(int)
    return pd.DataFrame(
        {"age": age, "height": RNG.normal(1.7, 0.1, n), "town": pd.Categorical(town)}
    ), y


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_columns_by_name(kind):
    frame, y = table()
    parts = make_column_transformer(
        (OneHotEncoder(), ["town"]), (StandardScaler(), ["age", "height"])
    )
    model = make_pipeline(parts, LogisticRegression()).fit(frame, y)
    expected = collect(model, frame, None).logits
    given = frame
    if kind == "polars":
        import polars

        given = polars.from_pandas(frame)
    elif kind == "pyarrow":
        import pyarrow

        given = pyarrow.Table.from_pandas(frame)
    views = collect(model, given, "auto", labels=y)
    np.testing.assert_allclose(views.logits, expected)
    assert {transform.kind for transform in views.transforms} == {"median"}
    fitted = CalibratedClassifier(model, TemperatureScaling()).fit(given, y)
    assert fitted.predict_proba(given).shape == (300, 2)


def test_a_model_of_skops_and_a_table_by_the_command_line(tmp_path, monkeypatch, capsys):
    import skops.io

    frame, y = table()
    numbers = frame[["age", "height"]]
    skops.io.dump(LogisticRegression().fit(numbers, y), tmp_path / "net.skops")
    numbers.assign(label=y).to_csv(tmp_path / "data.csv", index=False)
    monkeypatch.chdir(tmp_path)
    typed = shlex.split(
        "collect --model net.skops --data data.csv --pool auto --out views.npz --force"
    )
    assert run(typed) == 0
    assert "300 samples, 2 classes, 8 transformations, labelled" in capsys.readouterr().out
    skops.io.dump(RandomForestClassifier(3).fit(numbers, y), tmp_path / "net.skops")
    run(typed)
    (tmp_path / "net.skops").write_bytes(b"PK no zip")
    assert run(typed) == 2
    assert "net.skops cannot be read as a skops file" in capsys.readouterr().err


def test_inputs_that_a_model_of_scikit_learn_was_not_fitted_on_are_named_with_the_remedy(
    tmp_path, capsys, monkeypatch
):
    import skops.io

    frame, y = table()
    numbers = frame[["age", "height"]]
    skops.io.dump(LogisticRegression().fit(numbers, y), tmp_path / "net.skops")
    numbers.assign(name="a", sick=y).to_csv(tmp_path / "data.csv", index=False)
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split("collect --model net.skops --data data.csv --out views.npz")) == 2
    said = "was not fitted on the column 'name', 'sick'.*--label-column sick"
    assert re.search(said, " ".join(capsys.readouterr().err.split()))
    assert collect(LogisticRegression().fit(numbers.to_numpy(), y), numbers, None).n_samples == 300


class Doubling(StandardScaler):
    """A type that skops does not know."""


def test_a_type_of_someones_own_must_be_trusted(tmp_path):
    import skops.io

    frame, y = table()
    model = make_pipeline(Doubling(), LogisticRegression()).fit(frame[["age", "height"]], y)
    path = tmp_path / "net.skops"
    skops.io.dump(model, path)
    with pytest.raises(InputError, match=r"not known to be harmless: .*Doubling.*--trust"):
        import_model(str(path))
    (name,) = skops.io.get_untrusted_types(file=path)
    assert as_model(import_model(str(path), trusted=[name])).name == "Pipeline"


def folder_of_images(root: Path, mode: str) -> Path:
    for row in range(4):
        path = root / mode / "ab"[row % 2] / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode == "I;16":
            Image.fromarray((np.arange(64).reshape(8, 8) * 1000).astype(np.uint16)).save(path)
        else:
            Image.fromarray(RNG.integers(0, 256, (8, 8, 4), dtype=np.uint8), "RGBA").convert(
                mode
            ).save(path)
    return root / mode


@pytest.mark.parametrize(
    ("pixels", "shape", "dtype"), [("gray", (4, 8, 8), "uint8"), ("rgb", (4, 8, 8, 3), "uint8")]
)
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "I;16"])
def test_images_as_the_model_wants_them(tmp_path, pixels, shape, dtype, mode):
    batch = as_source(folder_of_images(tmp_path, mode), pixels=pixels).read(range(4))
    assert (batch.shape, batch.dtype) == (shape, dtype)


def test_the_command_line_reads_grey_where_the_model_is_grey(tmp_path, monkeypatch):
    linear(tmp_path / "net.onnx", (1, 8, 8), 2)
    folder_of_images(tmp_path, "RGB")
    monkeypatch.chdir(tmp_path)
    command = "collect --model net.onnx --data RGB --pool zoom:0.5 --out v.npz"
    assert run(shlex.split(command)) == 0
