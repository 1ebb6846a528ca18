from __future__ import annotations

from pathlib import Path

import pytest

from paper.options import parse_models, parse_recipes
from recal.errors import InputError


def test_recipes_are_read_by_the_kind_of_each_value():
    assert parse_recipes(
        ["lenet5:epochs=30,rate=0.05", "lenet5:flip=no", "resnet20:milestones=0.5/0.75"]
    ) == {
        "lenet5": {"epochs": 30, "rate": 0.05, "flip": False},
        "resnet20": {"milestones": (0.5, 0.75)},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs=30", "network:name=value"),
        ("lenet5:", "network:name=value"),
        ("lenet5:epochs", "name=value, got 'epochs'"),
        ("lenet5:epoch=3", "no 'epoch'; it has: epochs"),
        ("lenet5:epochs=many", "epochs is a whole number, got 'many'"),
        ("lenet5:epochs=3.5", "a whole number"),
        ("lenet5:flip=maybe", "yes or no"),
        ("lenet5:milestones=a/b", "numbers joined by /"),
    ],
)
def test_what_is_no_recipe_is_refused_with_what_came(text, message):
    with pytest.raises(InputError, match=message):
        parse_recipes([text])


def test_models_are_files_by_name():
    assert parse_models(["resnet152=a=b.onnx"]) == {"resnet152": Path("a=b.onnx")}
    for text in ("resnet152", "=x.onnx", "resnet152="):
        with pytest.raises(InputError, match="network=FILE"):
            parse_models([text])
