"""The tracer gives the committed graph of each model, to the letter; test_exported.py is of the
other front end."""

import difflib
import re

import pytest
from golden_graphs import FOLDER, MODELS, golden, graph_text, library

from pyrannc import _C


@pytest.mark.parametrize("model", MODELS)
def test_a_captured_graph_is_the_committed_one(model):
    old = golden(model).read_text()
    if old.startswith("//"):
        pytest.importorskip("transformers")
        if not old.startswith(library(model)):
            pytest.skip(f"the committed graph is that of {old.splitlines()[0].strip('/ ')}")
    new = graph_text("torchscript", model)
    changes = difflib.unified_diff(
        old.splitlines(), new.splitlines(), f"{model}.txt", "torchscript", "", "", 1, ""
    )
    assert old == new, "\n".join(["a graph changed; accept it with: make golden", *changes])


def test_committed_graphs_verify_and_each_belongs_to_a_model():
    assert {path.stem for path in FOLDER.iterdir()} == set(MODELS)
    for model in MODELS:
        for text in re.split("^(?=graph )", golden(model).read_text(), flags=re.M)[1:]:
            graph = _C.ir.parse(text)
            _C.ir.verify(graph)
            assert graph.text() == text
