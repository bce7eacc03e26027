"""Checkpoints looked at and written otherwise, by the command and in Hugging Face's layout."""

import copy
import json

import pytest
import torch
import transformers
from counting_steps import CountingSteps
from typer.testing import CliRunner

import pyrannc
from pyrannc.checkpoint import tools
from pyrannc.cli import app

SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 32}
LLAMA = {**SMALL, "intermediate_size": 24, "num_key_value_heads": 2}
MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=16)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)),
    "mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**LLAMA, num_local_experts=4)
    ),
}


def equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("name", MODELS)
def test_from_pretrained_reads_the_folder_itself_and_what_is_converted(tmp_path, name):
    torch.manual_seed(0)
    model = MODELS[name]()
    expected = copy.deepcopy(model.state_dict())
    pyrannc.save(tmp_path / "run", model)
    kind = type(model)
    equal(kind.from_pretrained(tmp_path / "run").state_dict(), expected)

    tools.to_hugging_face(tmp_path / "run", tmp_path / "converted")
    equal(kind.from_pretrained(tmp_path / "converted").state_dict(), expected)
    # The names of the hub, as the model's own save_pretrained() writes them.
    model.save_pretrained(tmp_path / "own")
    names = [
        sorted(transformers.modeling_utils.load_state_dict(tmp_path / each / "model.safetensors"))
        for each in ("own", "converted")
    ]
    assert names[0] == names[1]
    tools.merge(tmp_path / "run", tmp_path / "merged")
    equal(kind.from_pretrained(tmp_path / "merged").state_dict(), expected)


def command(*arguments):
    return CliRunner().invoke(app, ["ckpt", *map(str, arguments)])


def test_the_command_tells_verifies_and_converts(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    run = tmp_path / "run"
    pyrannc.save(run, model, optimizer, extra={"epoch": 3})
    told = command("inspect", run).stdout
    found = json.loads(command("inspect", run, "--json").stdout)
    assert found["ranks"] == 1 and found["bytes"] == sum(found["files"].values())
    assert found["model"].keys() | found["tied"].keys() >= dict(model.named_parameters()).keys()
    for text in ("model: 2 tensors, 10 numbers", "AdamW, groups of [2]", "extra: {'epoch': 3}"):
        assert text in told, told
    assert "8 tensors are as they were saved" in command("verify", run).stdout

    assert command("convert", run, tmp_path / "torch", "--to", "torch").exit_code == 0
    equal(torch.load(tmp_path / "torch" / "model.pt"), model.state_dict())
    state = torch.load(tmp_path / "torch" / "optimizer-0.pt")
    other = torch.optim.AdamW(model.parameters())
    other.load_state_dict(state)
    equal(other.state_dict()["state"][0], optimizer.state_dict()["state"][0])
    assert other.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]

    result = command("convert", run, tmp_path / "hf")
    assert result.exit_code == 1 and "it is not of a model of transformers" in result.stderr
    part = next(run.glob("model-*.safetensors"))
    content = part.read_bytes()
    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    result = command("verify", run)
    assert result.exit_code == 1 and "is damaged" in result.stderr
    result = command("merge", tmp_path, tmp_path / "merged")
    assert result.exit_code == 1 and "holds no checkpoint" in result.stderr


def test_what_an_optimizer_keeps_of_no_parameter_is_converted(tmp_path):
    model = torch.nn.Linear(4, 2)
    optimizer = CountingSteps(model.parameters())
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    pyrannc.save(tmp_path / "run", model, optimizer)
    tools.to_torch(tmp_path / "run", tmp_path / "torch")
    state = torch.load(tmp_path / "torch" / "optimizer-0.pt")["state"]
    assert state.keys() == optimizer.state_dict()["state"].keys() == {"k", 0, 1}
    assert state["k"] == 1


def test_what_cannot_be_read_leaves_nothing(tmp_path):
    """Beside the target, too; the weights are whole, and a tensor of the optimizer is not."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    run = tmp_path / "run"
    pyrannc.save(run, model, optimizer)
    part = next(run.glob("state-*.safetensors"))
    content = part.read_bytes()
    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    result = command("convert", run, tmp_path / "new" / "torch", "--to", "torch")
    assert result.exit_code == 1 and "its bytes are not those that were saved" in result.stderr
    assert list((tmp_path / "new").iterdir()) == []
    part.write_bytes(content)
    (tmp_path / "new" / "torch").mkdir()
    result = command("convert", run, tmp_path / "new" / "torch", "--to", "torch")
    assert result.exit_code == 0 and result.stdout.endswith("torch reads it\n")
    assert {each.name for each in (tmp_path / "new" / "torch").iterdir()} == {
        "model.pt", "optimizer-0.pt"
    }  # fmt: skip
    result = command("merge", run, part)
    assert result.exit_code == 1 and "is a file" in result.stderr
