"""Models that torch.export has captured, on two ranks, against one process."""

import pytest

SETUP = """
import copy, torch, pyrannc
from torch import nn
from pyrannc import Config, RaNNCModule
from models import ZOO

rank, size = pyrannc.get_rank(), pyrannc.get_world_size()

def mine(tensor):
    return tensor.chunk(size)[rank] if torch.is_tensor(tensor) else tensor

def equal_steps(plain, args, kwargs, **settings):
    model = copy.deepcopy(plain)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.001) for each in (plain, model)]
    config = Config(frontend="export", calibrate=False, **settings)
    wrapped = RaNNCModule(model, optimizers[1], config)
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = plain(*args, **kwargs)
        found = wrapped(*map(mine, args), **{name: mine(each) for name, each in kwargs.items()})
        expected, found = (
            each.loss if hasattr(each, "loss") else each.square().mean()
            for each in (expected, found)
        )
        expected.backward()
        found.backward()
        for optimizer in optimizers:
            optimizer.step()
        if "labels" in kwargs:
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    state = wrapped.state_dict(rank0_only=False)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-6)
    assert wrapped._deployment.task.front_ends.used == "export"
"""


@pytest.mark.ranks(
    """
torch.manual_seed(0)
for name in ("mlp", "tied_lm"):
    entry = ZOO[name]
    args, kwargs = entry.inputs(8)
    equal_steps(entry.build(), args, kwargs, partition_num=2, pipeline_num=2)
""",
    before=SETUP,
)
def test_models_train_as_in_one_process(done):
    pass


@pytest.mark.ranks(
    """
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

shape = dict(vocab_size=100, use_cache=False)
models = [
    LlamaForCausalLM(LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, **shape,
    )),
    T5ForConditionalGeneration(T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0, **shape,
    )),
]
torch.manual_seed(0)
ids = torch.randint(0, 100, (8, 10))
for plain in models:
    equal_steps(plain, (), {"input_ids": ids, "labels": ids}, partition_num=2, pipeline_num=2)
""",
    before=SETUP,
)
def test_models_of_transformers_train_as_in_one_process(done):
    pass
