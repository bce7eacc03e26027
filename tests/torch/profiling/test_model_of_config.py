"""``rannc capture --hf``: models of transformers from their configuration alone."""

import json

import pytest
import torch
import transformers
from typer.testing import CliRunner

from pyrannc.cli import app
from pyrannc.errors import ConfigError
from pyrannc.profiling.graph_profile import graph_profile
from pyrannc.profiling.model_of_config import build_of

SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
TEXT = SMALL | {"vocab_size": 99, "intermediate_size": 64, "max_position_embeddings": 64}
KINDS = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**TEXT)),
    "gpt2": (
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=64, vocab_size=99),
    ),
    "classifier": (transformers.BertForSequenceClassification, transformers.BertConfig(**TEXT)),
    "t5": (
        transformers.T5ForConditionalGeneration,
        transformers.T5Config(
            vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
            decoder_start_token_id=0,
        ),
    ),
    "images": (
        transformers.ViTForImageClassification,
        transformers.ViTConfig(**SMALL, intermediate_size=64, image_size=32, patch_size=8),
    ),
}  # fmt: skip


def write(folder, kind, **more):
    model, config = KINDS[kind]
    path = folder / "config.json"
    path.write_text(json.dumps(config.to_dict() | {"architectures": [model.__name__]} | more))
    return path


def trained_bytes(graph):
    return sum(entry["bytes"] for entry in graph["params"] if entry.get("trainable", True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_configuration_is_enough(kind, tmp_path):
    path = write(tmp_path, kind)
    found = json.loads(graph_profile(build_of(path, batch=4, length=16), rows=[4]).to_json())
    model, config = KINDS[kind]
    with torch.device("meta"):
        wanted = sum(each.nbytes for each in model(config).parameters())
    assert trained_bytes(found) == wanted
    assert graph_profile(build_of(tmp_path, length=16), rows=[4]).node_count == len(found["nodes"])


def test_the_command_says_what_it_has_taken_for_granted(tmp_path):
    path, graphs = write(tmp_path, "llama"), {}
    for options in ("--dtype fp32", "--dtype bf16", "--autocast bf16"):
        output = tmp_path / "g.json"
        wanted = ["capture", "--hf", str(path), "-o", str(output), "--batch", "4", "--length", "16"]
        done = CliRunner().invoke(app, [*wanted, *options.split()])
        assert done.exit_code == 0, done.output
        graphs[options] = json.loads(output.read_text()), done.output
    fp32, bf16, autocast = (trained_bytes(graph) for graph, _ in graphs.values())
    assert fp32 == autocast == 2 * bf16
    said = [output.splitlines()[-1] for _, output in graphs.values()]
    assert "weights fp32, compute in the same, 4 rows of 16 tokens" in said[0]
    assert "weights fp32, compute under autocast in bf16" in said[2]
    counts = [len(graph["nodes"]) for graph, _ in graphs.values()]
    assert counts[0] == counts[1] < counts[2]  # the casts


@pytest.mark.parametrize(
    "change, options, message",
    [
        ({"architectures": ["LlamaModel"]}, {}, "is of LlamaModel, whose inputs are not known"),
        ({"architectures": ["Nothing"]}, {}, r"has to name one class .* it names \['Nothing'\]"),
        ({"architectures": None}, {}, "it names none"),
        ({"model_type": "no such"}, {}, "is no configuration of transformers"),
        ({}, {"length": 65}, "--length 65 is longer than the 64 positions"),
    ],
)
def test_what_cannot_be_built_says_why(tmp_path, change, options, message):
    with pytest.raises(ConfigError, match=message):
        build_of(write(tmp_path, "llama", **change), **options)


def test_wrong_words_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no configuration '.*config.json'"):
        build_of(tmp_path)
    path = write(tmp_path, "llama")
    with pytest.raises(ConfigError, match="autocast computes in bf16 or fp16, not in fp32"):
        graph_profile(build_of(path, length=16), autocast="fp32")
    for arguments in ([], ["train.py:build", "--hf", str(path)]):
        done = CliRunner().invoke(app, ["capture", *arguments])
        assert done.exit_code == 2 and "one model is wanted" in done.output.replace("\n", " ")
