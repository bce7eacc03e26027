"""Weights of a pretrained model, read into one that has it inside, or in which adapters are."""

import math

import peft
import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

import pyrannc
from pyrannc import Config, RaNNCError, RaNNCModule, Weights

IDS = torch.randint(0, 64, (4, 8), generator=torch.Generator().manual_seed(1))


def llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=64, max_position_embeddings=32, use_cache=False,
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    model = llama()
    model.save_pretrained(folder)
    return model, folder


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


def with_injected_adapters(**settings):
    """The model itself, in which some layers have others inside."""
    settings = peft.LoraConfig(target_modules=["q_proj", "v_proj"], **settings)
    with torch.device("meta"):
        return peft.inject_adapter_in_model(settings, llama())


def with_adapters(kind=peft.LoraConfig, **settings):
    settings = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"]} | settings
    with torch.device("meta"):
        return peft.get_peft_model(llama(), kind(**settings))


def first_step(model, weights):
    """Its loss, and the module."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    module = RaNNCModule(model, optimizer, Config(pipeline_num=1), weights=weights)
    loss = module(input_ids=IDS, labels=IDS).loss
    loss.backward()
    return loss.item(), module


@pytest.mark.parametrize("around", [False, True])
def test_adapters_begin_as_peft_makes_them_in_weights_that_are_read(base, around):
    plain, folder = base
    model = with_adapters(r=4, modules_to_save=["lm_head"])
    loss, _ = first_step(Around(model) if around else model, folder)
    torch.testing.assert_close(loss, plain(input_ids=IDS, labels=IDS).loss.item())
    inner = model.get_base_model()
    layer = inner.model.layers[1].self_attn.q_proj
    assert torch.equal(layer.base_layer.weight, plain.model.layers[1].self_attn.q_proj.weight)
    made = layer.lora_A["default"].weight
    assert 0.9 / math.sqrt(32) < made.abs().max() <= 1 / math.sqrt(32)
    assert not layer.lora_B["default"].weight.any() and layer.lora_B["default"].weight.grad.any()
    head, copied = inner.lm_head.original_module, inner.lm_head.modules_to_save["default"]
    assert torch.equal(head.weight, plain.lm_head.weight)
    assert torch.equal(copied.weight, plain.lm_head.weight) and copied.weight is not head.weight


def test_adapters_may_be_in_the_model_itself(base):
    plain, folder = base
    model = with_injected_adapters(r=4)
    loss, _ = first_step(model, folder)
    torch.testing.assert_close(loss, plain(input_ids=IDS, labels=IDS).loss.item())
    assert not model.model.layers[0].self_attn.q_proj.lora_B["default"].weight.any()


def test_adapters_are_trained_with_checkpoints(base):
    plain, folder = base
    model = with_adapters(r=4)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    loss, module = first_step(model, folder)
    torch.testing.assert_close(loss, plain(input_ids=IDS, labels=IDS).loss.item())
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    assert layer.lora_B["default"].weight.grad.any()
    assert not module._deployment.task.hooks.observed


def test_scaling_adapters_begin_with_one(base):
    plain, folder = base
    model = with_adapters(
        peft.IA3Config, target_modules=["q_proj", "down_proj"], feedforward_modules=["down_proj"]
    )
    loss, _ = first_step(model, folder)
    torch.testing.assert_close(loss, plain(input_ids=IDS, labels=IDS).loss.item())
    assert (model.get_base_model().model.layers[0].mlp.down_proj.ia3_l["default"] == 1).all()


def test_an_adapter_that_needs_values_of_its_layer_is_refused(base):
    with pytest.raises(RaNNCError, match=r"(?s)lora_magnitude_vector.*without use_dora, or IA3"):
        first_step(with_adapters(use_dora=True), base[1])


def test_what_was_saved_with_its_adapters_is_read_again(base, tmp_path):
    _, module = first_step(with_adapters(r=4), base[1])
    with torch.no_grad():
        for name, each in module.named_parameters():
            if "lora_B" in name:
                each.fill_(0.25)
        expected = module(input_ids=IDS, labels=IDS).loss.item()
    pyrannc.save(tmp_path / "saved", module)
    loss, _ = first_step(with_adapters(r=4), tmp_path / "saved")
    assert loss == pytest.approx(expected, rel=1e-6)


def test_adapters_that_were_merged_leave_another_model(base, tmp_path):
    _, module = first_step(with_adapters(), base[1])
    with module.summon():
        module.module.merge_and_unload().save_pretrained(tmp_path)
    merged = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(merged.lm_head.weight, base[0].lm_head.weight)
    with pytest.raises(RaNNCError, match=r"q_proj.weight' is a tensor that the model did not have"):
        module.state_dict()


class Two(nn.Module):
    def __init__(self, other):
        super().__init__()
        self.one, self.other = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), other

    def forward(self, x):
        return self.other(self.one(x))


def test_weights_of_a_part_are_read_into_it(tmp_path):
    part = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    save_file(part.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        around, head = Around(Two(nn.Identity())), Two(nn.Linear(6, 2))
        alike = Two(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)))
    path = tmp_path / "model.safetensors"

    def call(model, weights):
        RaNNCModule(model, None, Config(pipeline_num=1), weights=weights)(torch.ones(4, 6))

    call(around, path)
    assert torch.equal(around.inner.one[1].weight, part[1].weight)
    with pytest.raises(RaNNCError, match=r"2 of the model's 6 .* 'other.bias', 'other.weight'"):
        call(head, path)
    call(head, Weights(path, strict=False))
    assert torch.equal(head.one[0].bias, part[0].bias) and head.other.weight.abs().max() <= 6**-0.5
    with pytest.raises(RaNNCError, match="8 of the model's 8 tensors are not in it"):
        call(alike, path)
