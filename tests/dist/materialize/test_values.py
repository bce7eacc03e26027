"""Models that were built without values, on four ranks that hold a part of them each."""

import json

import pytest

SETUP = """
import json, shutil, tempfile, torch, pyrannc
from pathlib import Path
from torch import nn
from pyrannc import Config, RaNNCError, RaNNCModule, launch
from pyrannc.checkpoint import tools
from pyrannc.state.released import is_released

rank, size = pyrannc.get_rank(), pyrannc.get_world_size()
world = launch.world()

def folder():  # rank 0's, on every rank
    made = tempfile.mkdtemp().encode() if rank == 0 else b""
    return Path(world.broadcast(made, 0).decode())

def on_rank_0(work):
    if rank == 0:
        work()
    world.barrier()

def settings(**more):
    return Config(**{"partition_num": 4, "pipeline_num": 2, "calibrate": False} | more)

def mine(batch):
    return batch[rank * len(batch) // size : (rank + 1) * len(batch) // size]
"""


def four(code):
    return pytest.mark.ranks(code, number=4, before=SETUP)


@four("""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.heads = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.norm(self.heads(x, x, x)[0]).square().mean()

def built(**more):
    torch.manual_seed(7 + rank)  # rank 0's counts
    with torch.device("meta"):
        model = Net()
    module = RaNNCModule(model, None, settings(**more))
    module(torch.ones(2, 3, 8)).backward()
    return model, module.state_dict(rank0_only=False)

model, one = built()
assert any(map(is_released, model.parameters()))
_, other = built(partition_num=2, replica_nums=[1, 3], pipeline_num=1)
assert one.keys() == other.keys()
for name in one:
    assert torch.equal(one[name], other[name]), name
from pyrannc.materialize.initialised import Initialisers
whole = Net()
tensors = dict(whole.named_parameters())
with Initialisers(whole).at_work() as make:
    for name, tensor in tensors.items():
        assert torch.equal(make(name, tensor, 7), one[name]), name
assert not torch.equal(one["layers.0.weight"], one["layers.1.weight"])
""")
def test_initialised_values_depend_neither_on_the_plan_nor_on_the_ranks(done):
    pass


@four("""
from pyrannc.job import process
from pyrannc.report import resident_memory
from safetensors.torch import save_file

def build():
    return nn.Sequential(*(nn.Linear(3000, 3000, bias=False) for _ in range(12)))

path = folder() / "model.safetensors"
tensors = {f"{i}.weight": torch.full((3000, 3000), 1e-4 * i) for i in range(12) if rank == 0}
on_rank_0(lambda: save_file(tensors, path))
del tensors
with torch.device("meta"):
    model = build()
whole = sum(each.nbytes for each in model.parameters())
assert whole > 400e6
# Parameters, gradients and half as much again: stages of at most a third of the model.
limit = 0.75 * whole / 2**30
module = RaNNCModule(model, None, settings(mem_limit_gb=limit), weights=path)
process.restart_resident_peak()
before = resident_memory.resident_bytes()
with torch.no_grad():
    module(torch.ones(2, 3000))
peak = resident_memory.peak_bytes() - before
part = sum(each.nbytes for each in model.parameters() if not is_released(each))
read = module._deployment.task.value_source.bytes_read
print("FIGURES", json.dumps({"whole": whole, "part": part, "peak": peak, "read": read}))
on_rank_0(path.unlink)
""")
def test_a_rank_takes_less_than_half_of_the_model_and_reads_its_part(done):
    figures = [json.loads(line.split(" ", 1)[1]) for line in done.stdout.splitlines()]
    assert len(figures) == 4
    for each in figures:
        assert each["peak"] < each["whole"] / 2, figures
        assert each["part"] <= each["whole"] / 3, figures
        assert each["part"] <= each["read"] < 1.1 * each["part"], figures


@four("""
from transformers import LlamaConfig, LlamaForCausalLM

here = folder()
shape = LlamaConfig(
    hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=128, vocab_size=300, use_cache=False,
)
def write():
    torch.manual_seed(3)
    LlamaForCausalLM(shape).save_pretrained(here / "base", max_shard_size="200KB")
on_rank_0(write)
assert (here / "base" / "model.safetensors.index.json").exists()
with torch.device("meta"):
    model = LlamaForCausalLM(shape)
whole = sum(each.nbytes for each in model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
# No rank may hold it, with gradients and the optimizer's state.
module = RaNNCModule(
    model, optimizer, settings(mem_limit_gb=2 * whole / 2**30), weights=here / "base"
)
torch.manual_seed(5)
batches = torch.randint(0, 300, (3, 8, 10))
losses = []
for batch in batches:
    optimizer.zero_grad()
    loss = module(input_ids=mine(batch), labels=mine(batch)).loss
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
held = [each for each in model.parameters() if not is_released(each)]
assert sum(each.nbytes for each in held) < whole / 2
pyrannc.save(here / "tuned", module, optimizer)
def compare():
    tools.to_hugging_face(here / "tuned", here / "out")
    found = LlamaForCausalLM.from_pretrained(here / "out")
    plain = LlamaForCausalLM.from_pretrained(here / "base").train()
    own = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    for batch, loss in zip(batches, losses):
        own.zero_grad()
        expected = plain(input_ids=batch, labels=batch).loss
        expected.backward()
        own.step()
        torch.testing.assert_close(expected.item(), loss, rtol=1e-5, atol=0)
    state = plain.state_dict()
    assert found.state_dict().keys() == state.keys()
    for name, tensor in found.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=2e-4)
    buffers = dict(found.named_buffers())
    for name, tensor in plain.named_buffers():
        torch.testing.assert_close(buffers[name], tensor)
on_rank_0(compare)

# Another job goes on from what was saved, and reads the optimizer's state in its first call.
with torch.device("meta"):
    again = LlamaForCausalLM(shape)
own = torch.optim.AdamW(again.parameters(), lr=1e-3)
resumed = RaNNCModule(again, own, settings(partition_num=2, replica_nums=[2, 2]))
pyrannc.load(here / "tuned", resumed, own)
for each, steps in ((resumed, own), (module, optimizer)):
    steps.zero_grad()
    loss = each(input_ids=mine(batches[0]), labels=mine(batches[0])).loss
    loss.backward()
    steps.step()
    losses.append(loss.item())
torch.testing.assert_close(losses[-1], losses[-2], rtol=1e-5, atol=0)
one, other = (each.state_dict(rank0_only=False) for each in (resumed, module))
for name, tensor in one.items():
    torch.testing.assert_close(tensor, other[name], rtol=0, atol=2e-4)
on_rank_0(lambda: shutil.rmtree(here))
""")
def test_a_llama_that_no_rank_can_hold_is_fine_tuned_from_one_folder_to_another(done):
    pass


@four("""
from accelerate import init_empty_weights
from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM

here = folder()
shapes = {
    MixtralForCausalLM: MixtralConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, vocab_size=200, num_local_experts=12, use_cache=False,
        experts_implementation="batched_mm",
    ),
    GPT2LMHeadModel: GPT2Config(
        n_embd=32, n_layer=4, n_head=4, vocab_size=200, use_cache=False, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    ),
}
for kind, shape in shapes.items():
    path = here / kind.__name__
    on_rank_0(lambda: kind(shape).save_pretrained(path))
    with init_empty_weights():
        model = kind(shape)
    model.tie_weights()
    model.eval()
    module = RaNNCModule(model, None, settings(), weights=path)
    torch.manual_seed(1)
    ids = torch.randint(0, 200, (8, 6))
    with torch.no_grad():
        found = module(input_ids=mine(ids)).logits
        plain = kind.from_pretrained(path).eval()
        expected = plain(input_ids=ids).logits
    torch.testing.assert_close(found, mine(expected), rtol=1e-4, atol=1e-5)
    state = module.state_dict(rank0_only=False)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(state[name], tensor), name
on_rank_0(lambda: shutil.rmtree(here))
""")
def test_experts_and_tied_weights_are_read_as_from_pretrained_reads_them(done):
    pass


@four("""
import peft
from transformers import LlamaConfig, LlamaForCausalLM

here = folder()
shape = LlamaConfig(
    hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=64, vocab_size=100, use_cache=False,
)
on_rank_0(lambda: LlamaForCausalLM(shape).save_pretrained(here / "base"))
adapter = peft.LoraConfig(r=2, task_type="CAUSAL_LM", modules_to_save=["lm_head"])
with torch.device("meta"):
    model = peft.get_peft_model(LlamaForCausalLM(shape), adapter)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
module = RaNNCModule(model, optimizer, settings(), weights=here / "base")
plain = peft.get_peft_model(LlamaForCausalLM.from_pretrained(here / "base"), adapter).train()
own = torch.optim.AdamW(plain.parameters(), lr=1e-2)
torch.manual_seed(5)
for step, ids in enumerate(torch.randint(0, 100, (3, 8, 10))):
    loss = module(input_ids=mine(ids), labels=mine(ids)).loss
    if step == 0:  # adapters are drawn by their names, and the base is that of the folder
        begun = module.state_dict(rank0_only=False)
        drawn = {name: each for name, each in begun.items() if "lora_A" in name}
        assert drawn and not set(plain.load_state_dict(drawn, strict=False).unexpected_keys)
        for name, tensor in plain.state_dict().items():
            assert torch.equal(begun[name], tensor), name
    expected = plain(input_ids=ids, labels=ids).loss
    torch.testing.assert_close(loss.item(), expected.item(), rtol=1e-5, atol=0)
    for each, steps in ((loss, optimizer), (expected, own)):
        each.backward()
        steps.step()
        steps.zero_grad()
module.save_pretrained(here / "adapter")
with module.summon():
    if rank == 0:
        model.merge_and_unload().save_pretrained(here / "merged")
world.barrier()
tuned = peft.PeftModel.from_pretrained(
    LlamaForCausalLM.from_pretrained(here / "base"), here / "adapter"
)
merged = LlamaForCausalLM.from_pretrained(here / "merged")
plain.eval()
with torch.no_grad():
    expected = plain(input_ids=ids).logits
    for each in (tuned.eval(), merged.eval()):
        torch.testing.assert_close(each(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)
world.barrier()
on_rank_0(lambda: shutil.rmtree(here))
""")
def test_adapters_are_trained_in_a_base_that_no_rank_holds(done):
    pass


@four("""
class Forgetful(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return (x * self.gain).sum()

with torch.device("meta"):
    models = Forgetful(), nn.Linear(6, 6)
path = folder()
(path / "model.safetensors.index.json").write_text('{"weight_map": {"weight": "../x"}}')
world.barrier()
for model, weights, said in (
    (models[0], None, "nothing gives the parameter 'gain'"),
    (models[1], path, "names the file '../x'"),
):
    try:
        RaNNCModule(model, None, settings(partition_num=0), weights=weights)(torch.ones(2, 6))
    except RaNNCError as error:
        assert said in str(error), error
    else:
        raise AssertionError("no error")
""")
def test_what_is_wrong_is_an_error_on_every_rank(done):
    pass
