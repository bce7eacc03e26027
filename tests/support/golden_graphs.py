"""Writes what capturing the models of the zoo gives, one set for all front ends, into
tests/torch/capture/graphs/MODEL.txt.

Source lines are left out: they change with every edit of the models, and other tests check them.
"""

import functools
import re
from pathlib import Path

from loss_models import LOSSES
from models import FLOAT32_TRANSFORMERS, ZOO

from pyrannc.capture.model import capture

FOLDER = Path(__file__).parents[1] / "torch" / "capture" / "graphs"
#: Ways to capture a model, by name: each must give the same graphs.
FRONT_ENDS = {"torchscript": capture, "export": functools.partial(capture, front_end="export")}
#: Together they have every kind of value and node, and every property of them; sorted rows of
#: experts, selecting masks, and sums that are hoisted.
MODELS = (
    "mlp", "residual_cnn", "lstm_sequence_first", "tied_lm", "several_inputs", "in_place",
    "filled", "script_loop", "kwargs", "no_grad", "autocast", "custom_function", "frozen",
    "stray_tensor", "buffers", "experts", "selected_errors", "several_terms", "mixtral",
)  # fmt: skip
ENTRIES = ZOO | LOSSES | FLOAT32_TRANSFORMERS


def graph_text(front_end: str, model: str) -> str:
    """The text forms of the graphs that a front end gives for a model, preludes first; before them,
    as a comment, which library the model is from."""
    entry = ENTRIES[model]
    captured = FRONT_ENDS[front_end](entry.build(), *entry.inputs(4), entry.batch_dims)
    text = "".join(graph.text() for graph in (*captured.preludes, captured.graph))
    return library(model) + re.sub(r' at "[^"]*":\d+', "", text)


def library(model: str) -> str:
    """The first line of a golden file whose graph is that of one release of a library."""
    if model not in FLOAT32_TRANSFORMERS:
        return ""
    import transformers

    return f"// transformers {transformers.__version__}\n"


def golden(model: str) -> Path:
    return FOLDER / f"{model}.txt"


if __name__ == "__main__":
    for name in MODELS:
        golden(name).write_text(graph_text("torchscript", name))
