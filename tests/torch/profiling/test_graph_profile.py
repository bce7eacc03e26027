"""``rannc capture``: models as the planner's input, without memory for their parameters."""

import json
import pathlib
import re
import resource

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

from pyrannc.capture.model import capture
from pyrannc.cli import app
from pyrannc.errors import ConfigError
from pyrannc.profiling.graph_profile import graph_profile, load_build

GOLDEN = pathlib.Path(__file__).parent / "golden" / "tiny.graph.json"
SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x))).mean()

class Depends(Net):
    def forward(self, x):
        return x if x.sum() > 0 else -x

def build():
    return Net(), (torch.randn(2, 4),)

def depends():
    return Depends(), (torch.randn(2, 4),)

def reads():
    return Net(), (torch.randn(int(torch.rand(()).item()) + 2, 4),)

def one():
    return Net()

def three():
    return Net(), torch.randn(2, 4), 1

def other():
    return "a model", (torch.randn(2, 4),)

def bare():
    return Net(), torch.randn(2, 4)

def broken():
    return nn.Linear(4, "five")

number = 3
"""


def rannc(*arguments):
    return CliRunner().invoke(app, ["capture", *map(str, arguments)])


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return path


def test_a_small_model_gives_this_file(train, tmp_path):
    output = tmp_path / "g.json"
    done = rannc(f"{train}:build", "-o", output, "--rows", "1,4")
    assert done.exit_code == 0, done.output
    assert re.fullmatch(
        r".*g\.json: Net, 4 nodes, weights as built, compute in the same; \d+\.\d s\n", done.stdout
    )
    # Everything fits in the 6000 ns between two kernels of the program: one per operator and
    # matrix product, and in the backward of `up` one for its bias. The input is saved by `up`
    # (4 floats a row), the activation by `relu` and `down` together, once (8 floats a row).
    assert output.read_text().replace(str(train), "train.py") == GOLDEN.read_text()


def test_levels_differ_in_grain_not_in_sums(train):
    build = load_build(f"{train}:build")
    found = {
        name: json.loads(graph_profile(build, rows=[1, 4], **options).to_json())["nodes"]
        for name, options in {
            "operator": {},
            "module": {"level": "module"},
            "one": {"level": "module", "depth": 1},
        }.items()
    }
    names = {level: [node["name"] for node in nodes] for level, nodes in found.items()}
    assert names["operator"] == ["up.linear", "relu", "down.linear", "mean"]
    assert names["module"] == names["one"] == ["up", "relu", "down", "mean"]
    for cost in ("forward_ns", "backward_ns", "saved_bytes"):
        sums = [[sum(node[cost][i] for node in nodes) for i in (0, 1)] for nodes in found.values()]
        assert sums[0] == sums[1] == sums[2]


class Mixed(nn.Module):
    """Many kinds of operators, dropout, a tensor that is no buffer, and a batch norm."""

    def __init__(self):
        super().__init__()
        self.scale = torch.arange(8.0)
        self.embed = nn.Embedding(10, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.conv, self.norm = nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 10)

    def forward(self, tokens, targets):
        x = self.layer(self.embed(tokens) * self.scale)
        x = F.gelu(self.norm(self.conv(x.transpose(1, 2)))).transpose(1, 2)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def build_mixed():
    tokens = torch.randint(10, (2, 6))
    return Mixed(), {"tokens": tokens, "targets": tokens}


class AllPairs(nn.Module):
    """Similarities of all pairs of rows, as contrastive losses take."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 8)

    def forward(self, x):
        y = self.up(x)
        return (y @ y.t()).exp().mean()


def saved_in_eager(model, *inputs):
    """Bytes that autograd keeps of a real run, each storage once, without parameters."""
    states = [*model.parameters(), *model.buffers()]
    states += [value for value in vars(model).values() if isinstance(value, torch.Tensor)]
    kept = {tensor.untyped_storage().data_ptr(): 0 for tensor in states}
    held = []

    def pack(tensor):
        storage = tensor.untyped_storage()
        held.append(storage)  # so that its address is not given to another
        kept.setdefault(storage.data_ptr(), storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        model(*inputs)
    return sum(kept.values())


def saved_by_node(build, rows):
    found = json.loads(graph_profile(build, rows=rows).to_json())
    return [sum(node["saved_bytes"][i] for node in found["nodes"]) for i in range(len(rows))]


def test_saved_bytes_are_those_of_a_real_run_at_every_number_of_rows():
    rows = [1, 2, 5, 8]
    tokens = torch.randint(10, (8, 6))
    # The loss is a sum divided by a count; the division keeps the count, four bytes.
    assert saved_by_node(build_mixed, rows) == [
        saved_in_eager(Mixed(), tokens[:count].clone(), tokens[:count].clone()) + 4
        for count in rows
    ]


def test_saved_bytes_are_exact_where_they_grow_with_the_square_of_the_rows():
    rows = [1, 2, 5, 8]
    saved = saved_by_node(lambda: (AllPairs(), (torch.randn(4, 6),)), rows)
    # x and y, 24 and 32 bytes a row, and the exponentials of all pairs.
    assert saved == [56 * count + 4 * count**2 for count in rows]
    assert saved == [saved_in_eager(AllPairs(), torch.randn(count, 6)) for count in rows]


def test_names_are_those_of_the_captured_graph():
    model, inputs = build_mixed()
    graph = capture(model, (), inputs).graph
    found = json.loads(graph_profile(build_mixed).to_json())
    names = [node.name for node in graph.nodes]
    assert set(node["name"] for node in found["nodes"]) <= set(names)
    assert "layer.self_attn.scaled_dot_product_attention" in names


def test_tensors_that_are_no_buffers_count_as_frozen_parameters():
    found = json.loads(graph_profile(build_mixed).to_json())
    scale = next(param for param in found["params"] if param["id"] == "scale")
    assert (scale["bytes"], scale["trainable"]) == (32, False)


def test_dtype_casts_parameters_and_inputs(train):
    found = json.loads(graph_profile(load_build(f"{train}:build"), dtype="bf16").to_json())
    assert found["dtype"] == "bfloat16"
    assert found["inputs"] == [{"name": "x", "bytes_per_row": 8}]
    assert [param["bytes"] for param in found["params"]] == [64, 16, 64]


def test_models_beyond_memory_take_none():
    def build():
        # 160 GB, then twice as much.
        layers = [nn.Linear(200_000, 200_000, bias=False) for _ in range(3)]
        return nn.Sequential(*layers), (torch.randn(1, 200_000),)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = graph_profile(build, level="module")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB
    assert found.node_count == 3


def test_measured_costs_are_taken_here(train):
    found = json.loads(graph_profile(load_build(f"{train}:build"), device="measured").to_json())
    assert all(node["forward_ns"][0] > 0 for node in found["nodes"])
    computed = json.loads(graph_profile(load_build(f"{train}:build")).to_json())
    for one, other in zip(found["nodes"], computed["nodes"], strict=True):
        assert one["saved_bytes"] == other["saved_bytes"]
        assert one["forward_ns"] != other["forward_ns"]


@pytest.mark.parametrize(
    "function, options, message",
    [
        ("build", ["--device", "h10"], "unknown device 'h10'; did you mean 'h100'?"),
        ("build", ["--dtype", "bf61"], "unknown dtype 'bf61'; did you mean 'bf16'?"),
        ("build", ["--rows", "4,2"], "rows must be at least 1 and rise strictly, found [4, 2]"),
        ("build", ["--rows", "0"], "rows must be at least 1 and rise strictly, found [0]"),
        ("build", ["--rows", "many"], "--rows takes numbers, as 1,2,4,8; found 'many'"),
        ("build", ["--level", "modul"], "unknown level 'modul'; did you mean 'module'?"),
        ("build", ["--depth", "2"], "depth 2: it is a number of components for level 'module'"),
        ("bild", [], "has no function 'bild'; did you mean 'build'?"),
        ("number", [], "has no function 'number'"),
        ("one", [], "build() must return (model, inputs), but returned a Net"),
        ("three", [], "build() must return (model, inputs), but returned a tuple of 3"),
        ("other", [], "with an nn.Module first, but returned a str there"),
        ("bare", [], "dict of keyword arguments, but returned a Tensor there"),
        ("broken", [], "train.py:40: TypeError"),
        ("reads", [], "train.py:25: RuntimeError: Tensor.item() cannot be called on meta tensors"),
        ("reads", [], "give it real ones: --real"),
        ("depends", [], "the values of a tensor decide what runs next"),
    ],
)
def test_wrong_input_says_what_to_do(train, tmp_path, function, options, message):
    output = tmp_path / "g.json"
    done = rannc(f"{train}:{function}", "-o", output, *options)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.startswith("rannc: ")
    assert not output.exists()


def test_a_build_that_reads_its_tensors_works_with_real_ones(train, tmp_path):
    done = rannc(f"{train}:reads", "-o", tmp_path / "g.json", "--real")
    assert done.exit_code == 0, done.output


def test_wrong_files_are_named(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import torch\nx = = 1\n")
    for target, message in {
        "train.py": "'train.py' names no function; expected FILE:FUNCTION, as train.py:build",
        "nowhere.py:build": "there is no file 'nowhere.py'",
        f"{broken}:build": "SyntaxError",
    }.items():
        done = rannc(target, "-o", tmp_path / "g.json")
        assert done.exit_code == 2
        assert message in done.stderr
    with pytest.raises(ConfigError, match="names no function"):
        load_build("build")


def test_an_unwritable_output_is_named(train, tmp_path):
    done = rannc(f"{train}:build", "-o", tmp_path / "nowhere" / "g.json")
    assert done.exit_code == 2
    assert "cannot write" in done.stderr
