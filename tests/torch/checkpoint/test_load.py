"""Checkpoints in one process: what is loaded, and what is wrong with them."""

import copy
import errno
import json
import os
import random
from pathlib import Path

import numpy
import pytest
import torch
from counting_steps import CountingSteps
from extra_states import Counted
from torch import nn

import pyrannc
from pyrannc.errors import RaNNCError
from pyrannc.stored import index, parts


def make(wrapped=True, width=8, optimizer=torch.optim.AdamW):
    model = nn.Sequential(
        nn.Linear(4, width), nn.Tanh(), nn.BatchNorm1d(width), nn.Linear(width, 2)
    )
    steps = optimizer(model.parameters(), lr=0.1)
    config = pyrannc.Config(pipeline_num=1)  # batch normalisation is of each micro-batch
    return (pyrannc.RaNNCModule(model, steps, config) if wrapped else model), steps


def train(model, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model, optimizer = make()
    train(model, optimizer)
    pyrannc.save(tmp_path / "run", model, optimizer, extra={"step": 2})
    return tmp_path / "run"


def edit(folder, change):
    path = folder / index.NAME
    content = json.loads(path.read_text())
    del content["crc32"]
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("called", [True, False])
def test_a_run_goes_on_with_its_random_numbers_wrapped_or_not_before_a_call_or_after(
    tmp_path, wrapped, called
):
    torch.manual_seed(0)
    model, optimizer = make()
    train(model, optimizer)
    pyrannc.save(tmp_path, model, optimizer)
    train(model, optimizer)
    numbers = torch.rand(1), random.random()

    other, steps = make(wrapped)
    if called:
        train(other, steps, 1)
    pyrannc.load(tmp_path, other, steps)
    train(other, steps)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value)
    assert (torch.rand(1), random.random()) == numbers


# torch's load_state_dict() rounds NAdam's products of 32 bits to those of the weights.
@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.ASGD])
def test_numbers_of_a_state_keep_their_precision(tmp_path, kind):
    torch.manual_seed(0)
    model = nn.Linear(4, 2, dtype=torch.bfloat16)
    model.scale = nn.Parameter(torch.ones((), dtype=torch.bfloat16))
    optimizer = kind(model.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.randn(8, 4, dtype=torch.bfloat16)
        (model.scale * model(x)).square().mean().backward()
        optimizer.step()
    pyrannc.save(tmp_path, model, optimizer)
    other = copy.deepcopy(model)
    steps = kind(other.parameters(), lr=0.1)
    pyrannc.load(tmp_path, other, steps)
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert steps.state[mine].keys() == optimizer.state[theirs].keys()
        for key, value in optimizer.state[theirs].items():
            found = steps.state[mine][key]
            assert found.dtype == value.dtype and torch.equal(found, value), key


def of_kind(dtype, masters, wrapped=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if wrapped:
        model = pyrannc.RaNNCModule(model, optimizer, master_weights=masters)
    return model, optimizer


def steps_of_short(model, optimizer, steps):
    for step in range(steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x.to(next(model.parameters()).dtype)).float().square().mean().backward()
        optimizer.step()
    return [value.float() for value in model.state_dict().values()]


def test_masters_that_were_saved_are_stepped_without_a_wrapper_too(tmp_path):
    # The state stayed of 32 bits there, and AdamW's step failed on its dtypes.
    model, optimizer = of_kind(torch.bfloat16, True)
    steps_of_short(model, optimizer, 2)
    pyrannc.save(tmp_path, model, optimizer)
    wanted = steps_of_short(model, optimizer, 3)
    plain, own = of_kind(torch.bfloat16, False, wrapped=False)
    pyrannc.load(tmp_path, plain, own)
    torch.testing.assert_close(steps_of_short(plain, own, 3), wanted, rtol=2e-2, atol=1e-3)
    assert own.state[plain[0].weight]["master"].dtype == torch.float32


@pytest.mark.parametrize("called", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_checkpoints_with_masters_and_without_load_into_all_dtypes(tmp_path, wrapped, called):
    # Of weights without masters the state kept its 16 bits, and the first step of a master failed;
    # "master" stayed in the state of float32 weights.
    kinds = [(torch.bfloat16, True), (torch.bfloat16, False), (torch.float32, False),
             (torch.float16, True)]  # fmt: skip
    for number, kind in enumerate(kinds):
        model, optimizer = of_kind(*kind)
        steps_of_short(model, optimizer, 2)
        pyrannc.save(tmp_path / str(number), model, optimizer)
        wanted = steps_of_short(model, optimizer, 2)
        for other in kinds:
            model, optimizer = of_kind(*other, wrapped)
            if called:
                steps_of_short(model, optimizer, 1)
            pyrannc.load(tmp_path / str(number), model, optimizer)
            found = steps_of_short(model, optimizer, 2)
            torch.testing.assert_close(found, wanted, rtol=2e-2, atol=1e-2)
            parameter = next(model.parameters())
            masters = other[1] if wrapped else kind[1]
            expected = masters and parameter.dtype != torch.float32
            assert ("master" in optimizer.state[parameter]) == expected, (kind, other)


def test_schedulers_and_scalers_are_in_it(tmp_path):
    model, optimizer = make(wrapped=False)
    schedule = torch.optim.lr_scheduler
    schedulers = [
        schedule.OneCycleLR(optimizer, 0.1, total_steps=10),
        schedule.SequentialLR(
            optimizer,
            [schedule.LinearLR(optimizer), schedule.CosineAnnealingLR(optimizer, 5)],
            milestones=[2],
        ),
        schedule.ReduceLROnPlateau(optimizer),
    ]
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    before = [each.state_dict() for each in schedulers]
    pyrannc.save(tmp_path, model, optimizer, scheduler=schedulers, scaler=scaler)
    optimizer.step()
    schedulers[0].step()
    scaler.load_state_dict({**scaler.state_dict(), "scale": 1.0})
    pyrannc.load(tmp_path, model, optimizer, scheduler=schedulers, scaler=scaler)
    assert [each.state_dict() for each in schedulers] == before
    assert scaler.get_scale() == 64


# The library of safetensors refuses memory that stands in a file twice.
def test_options_of_groups_may_be_tensors_of_one_number(tmp_path):
    """Symptom: KeyError in load(), as nobody had saved the members of ``betas``."""
    saved = []
    for step in range(2):
        torch.manual_seed(step)
        model = nn.Linear(4, 2)
        betas = (torch.tensor(0.9 - step / 2), torch.tensor(0.999 - step / 2))
        optimizer = torch.optim.AdamW(model.parameters(), betas=betas, foreach=False)
        if step == 0:
            train(model, optimizer)
            pyrannc.save(tmp_path, model, optimizer)
        else:
            pyrannc.load(tmp_path, model, optimizer)
        saved.append(optimizer.param_groups[0]["betas"])
    assert saved[1] == saved[0] and all(map(torch.is_tensor, saved[1]))


def test_numbers_of_numpy_are_numbers(tmp_path):
    """A rate by numpy's cosine ended save() with an AttributeError."""
    model, optimizer = make(wrapped=False)
    optimizer.param_groups[0]["lr"] = 0.1 * (1 + numpy.cos(0.3))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: numpy.float32(0.5))
    before = scheduler.get_last_lr()
    extra = {"step": numpy.int64(3), "done": numpy.bool_(True)}
    pyrannc.save(tmp_path, model, optimizer, scheduler=scheduler, extra=extra)
    optimizer.param_groups[0]["lr"] = scheduler.last_epoch = 0
    found = pyrannc.load(tmp_path, model, optimizer, scheduler=scheduler)
    assert found == extra and type(found["step"]) is int and found["done"] is True
    assert [optimizer.param_groups[0]["lr"]] == before == scheduler.get_last_lr()


def test_what_is_loaded_does_not_lie_in_the_file(tmp_path):
    """What another host removed was gone from the memory of an optimizer that had not stepped."""
    model, optimizer = make(wrapped=False)
    train(model, optimizer)
    pyrannc.save(tmp_path, model, optimizer, extra=torch.ones(3))
    extra = pyrannc.load(tmp_path, model, optimizer)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert len(extra) == 3 and optimizer.state


def test_options_that_are_tensors_of_several_numbers_are_named(tmp_path):
    model, optimizer = make()
    optimizer.param_groups[0]["scales"] = torch.ones(3)
    with pytest.raises(RaNNCError, match=r"'optimizer.group.0.scales' is a tensor of 3 numbers"):
        pyrannc.save(tmp_path, model, optimizer)
    assert not list(tmp_path.iterdir())


def test_what_an_optimizer_keeps_of_no_parameter_is_loaded(tmp_path):
    """As MADGRAD's count of steps: load() ended with an error of torch's."""
    model, optimizer = make(optimizer=CountingSteps)
    train(model, optimizer, 3)
    pyrannc.save(tmp_path, model, optimizer)
    edited = {}
    for older in (False, True):
        if older:  # an index of before has no such entry
            edit(tmp_path, lambda content: edited.update(content["optimizers"][0].pop("of_none")))
        again, other = make(optimizer=CountingSteps)
        pyrannc.load(tmp_path, again, other)
        assert other.state.get("k") == (None if older else 3)
        for mine, theirs in zip(again.parameters(), model.parameters(), strict=True):
            assert torch.equal(other.state[mine]["sum"], optimizer.state[theirs]["sum"])
    assert edited


@pytest.mark.parametrize("where", ["model", "extra"])
def test_tensors_that_safetensors_has_no_form_for_are_named(tmp_path, where):
    """It was a KeyError of safetensors that named nothing but the dtype."""
    model, odd = nn.Linear(4, 2), torch.ones(2, dtype=torch.complex128)
    if where == "model":
        model.register_buffer("odd", odd)
    name = {"model": "odd", "extra": "beside.extra.odd"}[where]
    with pytest.raises(RaNNCError, match=f"'{name}' is of torch.complex128, and safetensors"):
        pyrannc.save(tmp_path, model, extra={"odd": odd})
    assert not list(tmp_path.iterdir())
    short = odd.to(torch.complex64)
    pyrannc.save(tmp_path, nn.Linear(4, 2), extra={"odd": short})
    assert torch.equal(pyrannc.load(tmp_path, nn.Linear(4, 2))["odd"], short)


def test_tensors_that_share_memory_are_saved(tmp_path):
    model, _ = make(wrapped=False)
    model[3].twin = nn.Parameter(model[3].weight.data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    schedule = torch.optim.lr_scheduler
    chained = schedule.ChainedScheduler([schedule.ExponentialLR(optimizer, 0.5)])
    optimizer.step()
    chained.step()
    numbers = torch.arange(3.0)
    extra = {"one": numbers, "two": numbers, "view": numbers.view(3, 1), "none": torch.empty(0)}
    pyrannc.save(tmp_path, model, optimizer, scheduler=chained, extra=extra)
    optimizer.param_groups[0]["lr"].fill_(3.0)
    found = pyrannc.load(tmp_path, model, optimizer, scheduler=chained)
    for name, value in extra.items():
        assert torch.equal(found[name], value)
    rate = optimizer.param_groups[0]["lr"]
    assert torch.is_tensor(rate) and rate.item() == pytest.approx(0.05)
    assert chained.get_last_lr() == [pytest.approx(0.05)]


def test_tied_and_untied_models_read_each_other(tmp_path):
    def build(tie):
        model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6, bias=False))
        if tie:
            model[1].weight = model[0].weight
        return model

    tied, untied = build(True), build(False)
    pyrannc.save(tmp_path / "tied", tied)
    assert list(index.read(tmp_path / "tied").model) == ["0.weight"]
    pyrannc.load(tmp_path / "tied", untied)
    assert torch.equal(untied[1].weight, tied[0].weight)
    pyrannc.save(tmp_path / "untied", untied)
    pyrannc.load(tmp_path / "untied", build(True))


def refused(folder, words, model=None, optimizer=None, **kwargs):
    if model is None:
        model, optimizer = make(wrapped=False)
    with pytest.raises(RaNNCError) as error:
        pyrannc.load(folder, model, optimizer, **kwargs)
    assert words in str(error.value), error.value


def test_what_is_not_a_whole_checkpoint_is_refused(saved, tmp_path):
    refused(tmp_path, "holds no checkpoint: there is no rannc.json in it")
    (tmp_path / index.WHOLE).touch()
    refused(tmp_path, "It holds weights alone, which RaNNCModule(weights=...)")
    refused(tmp_path / index.WHOLE, "holds no checkpoint: it is a file")
    name = next(iter(index.read(saved).files))
    content = (saved / name).read_bytes()
    (saved / name).write_bytes(content[:-1])
    refused(saved, f"has {len(content) - 1} bytes, and rannc.json says {len(content)}")
    (saved / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refused(saved, "is damaged: its bytes are not those that were saved")
    (saved / name).write_bytes(content[:8] + b"[" + content[9:])
    refused(saved, "cannot be read")
    (saved / name).unlink()
    refused(saved, f"{name} is missing")
    (saved / index.NAME).write_text('{"format": 1,')
    refused(saved, "rannc.json cannot be read")


def test_an_edited_index_is_refused(saved):
    def outside(content):
        content["files"]["../other.safetensors"] = 3

    original = (saved / index.NAME).read_text()
    changes = {
        "'../other.safetensors', which is not one of its own folder": outside,
        "has format 2, of pyrannc 9": lambda content: content.update(format=2, pyrannc="9"),
        "it has no format number": lambda content: content.pop("format"),
        "lacks 'tied'": lambda content: content.pop("tied"),
        "the entry of '0.weight' is damaged": lambda c: c["model"]["0.weight"].pop("crc32"),
        "which it lacks": lambda c: c["model"]["0.weight"].update(file="/etc/passwd"),
        "says float16": lambda c: c["model"]["0.weight"].update(dtype="float16"),
    }
    changes["was edited or is damaged (AttributeError"] = lambda c: c.update(model=[*c["model"]])
    for words, change in changes.items():
        (saved / index.NAME).write_text(original)
        edit(saved, change)
        refused(saved, words)
    # A number of the optimizer's was taken as it was.
    for change in ('"lr": 0.1', '"lr": 0.3'), ('"of_none": {}', '"of_none": []'):
        assert original.count(change[0]) == 1
        (saved / index.NAME).write_text(original.replace(*change))
        refused(saved, "was edited or is damaged: its content is not what was saved")
    (saved / index.NAME).write_text("[" * 100_000)
    refused(saved, "rannc.json cannot be read")


def test_another_models_or_optimizers_is_refused_and_nothing_changes(saved, capfd):
    model, optimizer = make(wrapped=False, width=9)
    before = model[3].bias.clone()
    refused(saved, "'0.bias' is [9] in the model and [8] in", model, optimizer)
    assert torch.equal(model[3].bias, before) and not optimizer.state
    refused(saved, "is not a checkpoint of this model", nn.Linear(4, 8))
    more = make(wrapped=False)[0].append(nn.Linear(2, 2))
    refused(saved, "2 of the model's 11 tensors are not in it: '4.bias', '4.weight'", more)
    pyrannc.load(saved, more, strict=False)
    assert (
        "2 of the model's 11 tensors are not in it: '4.bias', '4.weight'" in capfd.readouterr().err
    )
    refused(saved, "or a part of it, has other names", nn.Sequential(more), strict=False)
    refused(saved, "the optimizer is torch.optim.sgd.SGD", *make(False, optimizer=torch.optim.SGD))
    model, _ = make(wrapped=False)
    groups = [{"params": [model[0].weight]}, {"params": [*model.parameters()][1:]}]
    refused(saved, "has 1 parameter groups, this one has 2", model, torch.optim.AdamW(groups))
    few = torch.optim.AdamW([*model.parameters()][1:])
    refused(saved, "'0.weight' is in the checkpoint's only", model, few)
    refused(saved, "has the state of 1 optimizers, and 2 were given", model, [
        torch.optim.AdamW(model[0].parameters()), torch.optim.AdamW(model[2:].parameters())
    ])  # fmt: skip
    refused(saved, "has no scheduler: it was saved without", model, scheduler=object())


def test_the_extra_state_of_a_module_is_one_of_the_tensors_that_are_compared(tmp_path):
    """It was an error of torch's once all else had been loaded, with strict=False, too."""
    shapes = [(4, 2), (2, 2)]
    counted = nn.Sequential(nn.Linear(*shapes[0]), Counted(*shapes[1]))
    plain = nn.Sequential(*(nn.Linear(*shape) for shape in shapes))
    pyrannc.save(tmp_path / "counted", counted)
    pyrannc.save(tmp_path / "plain", plain)
    counted[1].rounds = 5
    pyrannc.load(tmp_path / "counted", counted)
    assert counted[1].rounds == 3
    refused(tmp_path / "counted", "1 of its 5 tensors are not in the model: '1._extra", plain)
    refused(tmp_path / "plain", "1 of the model's 5 tensors are not in it: '1._extra", counted)
    for folder, model in (("counted", plain), ("plain", counted), ("counted", plain[:1])):
        pyrannc.load(tmp_path / folder, model, strict=False)


def test_what_is_no_data_is_an_error_and_the_old_checkpoint_stays(saved):
    model, optimizer = make(wrapped=False)
    with pytest.raises(RaNNCError, match=r"scheduler= takes what has a state_dict\(\), or a list"):
        pyrannc.save(saved, model, optimizer, scheduler={"main": optimizer})
    before = sorted(path.name for path in saved.iterdir())
    with pytest.raises(RaNNCError, match=r"'beside.extra.f' is a builtins.function"):
        pyrannc.save(saved, model, optimizer, extra={"f": lambda: 0})
    assert sorted(path.name for path in saved.iterdir()) == before
    assert pyrannc.load(saved, model, optimizer) == {"step": 2}


def test_a_full_disk_is_an_error_and_the_old_checkpoint_stays(saved, monkeypatch):
    model, optimizer = make(wrapped=False)
    before = sorted(path.name for path in saved.iterdir())
    theirs = parts.save_file

    def full(tensors, path, metadata):
        theirs(tensors, path, metadata)
        os.truncate(path, 10)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(parts, "save_file", full)
    with pytest.raises(RaNNCError, match="No space left on device"):
        pyrannc.save(saved, model, optimizer, extra={"step": 3})
    assert sorted(path.name for path in saved.iterdir()) == before
    assert pyrannc.load(saved, model, optimizer) == {"step": 2}


# What failed once the index was there removed the files that it names.
def test_an_error_after_the_index_has_been_written_leaves_what_it_names(saved, monkeypatch):
    model, optimizer = make(wrapped=False)

    def late(folder):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(index.shutil, "rmtree", late)
        pyrannc.save(saved, model, optimizer, extra={"step": 3})  # what others left may stay
    assert pyrannc.load(saved, model, optimizer) == {"step": 3}
    write = index.files.write_safely

    def renamed_but_not_on_the_disk(path, text):
        write(path, text)
        if path.name == index.NAME:
            late(path)

    with monkeypatch.context() as patch:
        patch.setattr(index.files, "write_safely", renamed_but_not_on_the_disk)
        with pytest.raises(RaNNCError, match="Input/output error"):
            pyrannc.save(saved, model, optimizer, extra={"step": 4})
    assert pyrannc.load(saved, model, optimizer) == {"step": 4}
