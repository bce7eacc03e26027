"""What frameworks write of a wrapped model, on all ranks; each is left out where it is not there.

Run by mpirun; prints one line of JSON for each case: its name and, on each rank, what went wrong.
"""

import copy
import json
import os
import sys
import tempfile
import traceback

import torch
from torch import nn

import pyrannc
from pyrannc import Config, RaNNCModule, launch

RANK = pyrannc.get_rank()
CASES = {}
CONFIG = {"partition_num": 2, "calibrate": False, "self_check": False, "log_level": "error"}


def case(function):
    CASES[function.__name__] = function
    return function


def wrapped(plain):
    """Also an optimizer whose steps change nothing, so the model stays ``plain``."""
    model = copy.deepcopy(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return RaNNCModule(model, optimizer, Config(**CONFIG)), optimizer


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def language_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=16, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def check(path, load, plain):
    """On every rank the file is there, whole, and nothing has replaced it."""
    launch.barrier()
    state = load(path)
    assert state.keys() == plain.state_dict().keys(), list(state)
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=0, atol=0)
    launch.barrier()


def safetensors(path):
    from safetensors.torch import load_file

    return load_file(path)


@case
def accelerate(folder):
    from accelerate import Accelerator

    plain = network()
    accelerator = Accelerator()
    model, _ = accelerator.prepare(*wrapped(plain))
    accelerator.backward(model(torch.ones(4, 8)).mean())
    accelerator.save_state(folder)
    assert accelerator.is_main_process and accelerator.process_index == 0  # as before
    check(f"{folder}/model.safetensors", safetensors, plain)
    assert sorted(os.listdir(folder))[-2:] == ["random_states_0.pkl", "random_states_1.pkl"]
    accelerator.save_model(model, f"{folder}/model")
    check(f"{folder}/model/model.safetensors", safetensors, plain)


@case
def trainer(folder):
    from transformers import LlamaForCausalLM, Trainer, TrainingArguments

    plain = language_model()
    model, optimizer = wrapped(plain)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (8, 6))]
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4, max_steps=1, save_steps=1, report_to=[],
        remove_unused_columns=False, save_only_model=True, disable_tqdm=True,
    )  # fmt: skip
    # Without a scheduler of its own; the rate is 0.
    Trainer(model, arguments, train_dataset=rows, optimizers=(optimizer, None)).train()
    launch.barrier()
    found = LlamaForCausalLM.from_pretrained(f"{folder}/checkpoint-1").state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


@case
def peft(folder):
    from peft import LoraConfig, PeftModel, get_peft_model

    base = language_model()
    lora = LoraConfig(task_type="CAUSAL_LM", r=2, init_lora_weights=False)
    plain = get_peft_model(copy.deepcopy(base), lora).eval()
    model, _ = wrapped(plain)
    ids = torch.randint(4, 32, (2, 5), generator=torch.Generator().manual_seed(RANK))
    model(input_ids=ids, labels=ids)
    model.save_pretrained(folder)
    launch.barrier()
    found = PeftModel.from_pretrained(base, folder).state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)
    found, expected = (
        each.generate(input_ids=ids, max_new_tokens=8, do_sample=False) for each in (model, plain)
    )
    torch.testing.assert_close(found, expected)


@case
def lightning(folder):
    import lightning as pl

    plain = network()

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.optimizer = wrapped(plain)

        def training_step(self, batch, index):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return self.optimizer

    fit = pl.Trainer(
        max_steps=1, accelerator="cpu", devices=1, default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    fit.fit(Module(), torch.utils.data.DataLoader(torch.ones(8, 8), batch_size=4))
    if RANK > 0:  # it must not get there
        fit.strategy.checkpoint_io.save_checkpoint = None
    fit.save_checkpoint(f"{folder}/last.ckpt")

    def load(path):
        state = torch.load(path, weights_only=False)["state_dict"]
        return {name.removeprefix("net."): value for name, value in state.items()}

    check(f"{folder}/last.ckpt", load, plain)


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        fault = ""
        with tempfile.TemporaryDirectory() as own:
            folder = launch.world().broadcast(own.encode(), 0).decode()
            try:
                CASES[name](folder)
            except Exception:
                fault = traceback.format_exc()
            launch.barrier()
        print(json.dumps({"case": name, "rank": RANK, "fault": fault}) + "\n", end="", flush=True)
        pyrannc.barrier()
