"""Models that were built without values, in one process: where their values come from."""

import functools
import json
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import pyrannc
from pyrannc import Config, ConfigError, RaNNCError, RaNNCModule, TraceError, launch
from pyrannc.materialize import values


class Net(nn.Module):
    """A buffer that is computed in the constructor, a norm, a tied weight."""

    def __init__(self, size=6):
        super().__init__()
        self.first = nn.Linear(size, size)
        self.norm = nn.BatchNorm1d(size)
        self.second = nn.Linear(size, size)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.arange(float(size)), persistent=False)

    def forward(self, x):
        return self.second(self.norm(self.first(x)) * self.scale)


class Resetting(Net):
    def reset_parameters(self):
        self.scale.copy_(torch.arange(float(len(self.scale))))


def on_meta(made=Resetting, **arguments):
    with torch.device("meta"):
        return made(**arguments)


def first_call(model, **arguments):
    RaNNCModule(model, None, Config(pipeline_num=1), **arguments)(torch.ones(4, 6))
    return model


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(4)
    net = Net()
    state = {name: t for name, t in net.state_dict().items() if name != "second.weight"}
    save_file(state, tmp_path / "model.safetensors")
    return net, tmp_path


def test_modules_set_what_is_not_there_and_random_numbers_stay_as_they_were():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    model = first_call(on_meta())
    assert torch.equal(torch.get_rng_state(), before)
    assert model.first.weight is model.second.weight
    assert model.scale.tolist() == [0, 1, 2, 3, 4, 5]
    assert 0 < model.first.weight.abs().max() <= 6**-0.5  # as nn.Linear initialises it
    assert model.norm.weight.tolist() == [1] * 6
    torch.manual_seed(11)
    assert torch.equal(first_call(on_meta()).first.weight, model.first.weight)
    torch.manual_seed(12)
    assert not torch.equal(first_call(on_meta()).first.weight, model.first.weight)


def test_what_a_model_sets_of_its_modules_comes_after_what_they_set():
    class Own(Resetting):
        def _init_weights(self, module):
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.bias, 7.0)
            if module is self:  # of a module in it, as GPT-2 does
                self.second.bias.data[0] = 8.0

    model = first_call(on_meta(Own))
    assert model.first.bias.tolist() == [7] * 6
    assert model.second.bias.tolist() == [8] + [7] * 5


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_what_nothing_sets_is_an_error_that_names_it(kind):
    class Forgetful(Resetting):
        def __init__(self):
            super().__init__()
            self.inner = nn.Module()
            if kind == "parameter":
                self.inner.gain = nn.Parameter(torch.ones(6))
            else:
                self.inner.register_buffer("gain", torch.ones(6))

    with pytest.raises(RaNNCError, match=rf"nothing gives the {kind} 'inner.gain' \[6\] a value"):
        first_call(on_meta(Forgetful))


def test_what_is_set_in_part_only_is_an_error():
    class Half(Resetting):
        def reset_parameters(self):
            self.scale[:3].zero_()

    with pytest.raises(RaNNCError, match=r"reset_parameters\(\) of Half leaves a part of 'scale'"):
        first_call(on_meta(Half))


def test_a_method_that_needs_values_is_named():
    class Looks(Resetting):
        def reset_parameters(self):
            self.scale.fill_(self.first.weight.sum().item())

    with pytest.raises(RaNNCError, match=r"reset_parameters\(\) of Looks cannot run while"):
        first_call(on_meta(Looks))


def test_weights_are_read_from_a_file_and_a_folder_and_tied_ones_stay_tied(saved):
    net, folder = saved
    for path in (folder, folder / "model.safetensors"):
        model = first_call(on_meta(), weights=path)
        assert model.first.weight is model.second.weight
        for name, tensor in net.named_parameters():
            assert torch.equal(model.get_parameter(name), tensor), name
    # One with values takes them, too.
    assert torch.equal(first_call(Net(), weights=folder).second.bias, net.second.bias)


def test_shards_and_what_save_has_written_are_read(saved, tmp_path):
    net, _ = saved
    shards = tmp_path / "shards"
    shards.mkdir()
    state = {name: t for name, t in net.state_dict().items() if name != "second.weight"}
    names = sorted(state)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, keys in parts.items():
        save_file({key: state[key] for key in keys}, shards / file)
    index = {"weight_map": {key: file for file, keys in parts.items() for key in keys}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    ours = tmp_path / "ours"
    pyrannc.save(ours, net)
    for folder in (shards, ours):
        model = first_call(on_meta(), weights=folder)
        assert torch.equal(model.second.bias, net.second.bias)
        assert torch.equal(model.norm.running_var, torch.full((6,), 0.9))  # one step from 1


def broken(folder, state, what):
    if what == "missing":
        del state["first.bias"]
    elif what == "extra":
        state["third.bias"] = torch.ones(3)
    elif what == "misshapen":
        state["first.bias"] = torch.ones(7)
    elif what == "whole":
        state["first.bias"] = torch.ones(6, dtype=torch.int64)
    save_file(state, folder / "model.safetensors")
    if what == "cut off":
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-50])
    if what in ("outside", "no file", "elsewhere"):
        file = {"outside": "../model.safetensors", "no file": "x.safetensors"}.get(
            what, "model.safetensors"
        )
        index = {"weight_map": {"first.bias" if what != "elsewhere" else "y": file}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    "what, message",
    [
        ("missing", "1 of the model's .* tensors are not in it: 'first.bias'"),
        ("extra", "1 of its 9 tensors are not in the model: 'third.bias'"),
        ("misshapen", r"'first.bias' is \[6\] in the model and \[7\] in"),
        ("whole", "'first.bias' has floating numbers in the model and whole ones in"),
        ("cut off", "model.safetensors cannot be read"),
        ("outside", "names the file '../model.safetensors', which is not one of its own"),
        ("no file", "x.safetensors is missing"),
        ("elsewhere", "model.safetensors lacks 'y'"),
    ],
)
def test_wrong_weights_are_errors_that_name_what_is_wrong(saved, tmp_path, what, message):
    net, _ = saved
    folder = tmp_path / what.replace(" ", "-")
    folder.mkdir()
    state = {name: t for name, t in net.state_dict().items() if name != "second.weight"}
    broken(folder, state, what)
    with pytest.raises(RaNNCError, match=message):
        first_call(on_meta(), weights=folder)


def test_what_is_no_path_is_refused_at_once():
    with pytest.raises(ConfigError, match="weights=3 is no path"):
        RaNNCModule(Net(), weights=3)


def test_a_folder_without_weights_says_so(tmp_path):
    with pytest.raises(RaNNCError, match="holds no weights"):
        first_call(on_meta(), weights=tmp_path)


def test_what_is_missing_may_be_initialised_and_what_is_left_over_left_alone(saved, tmp_path):
    net, _ = saved
    folder = tmp_path / "loose"
    folder.mkdir()
    state = {name: t for name, t in net.state_dict().items() if name != "second.weight"}
    del state["first.bias"]
    save_file(state | {"third.bias": torch.ones(3)}, folder / "model.safetensors")
    model = first_call(on_meta(), weights=pyrannc.Weights(folder, strict=False))
    assert torch.equal(model.second.bias, net.second.bias)
    assert 0 < model.first.bias.abs().max() <= 6**-0.5
    save_file({f"inner.{name}": each for name, each in state.items()}, folder / "model.safetensors")
    with pytest.raises(RaNNCError, match="9 of the model's 9 tensors are not in it: "):
        first_call(on_meta(), weights=pyrannc.Weights(folder, strict=False))


def test_a_tensor_that_is_no_buffer_has_to_have_values():
    class Plain(Resetting):
        def __init__(self):
            super().__init__()
            self.plain = torch.ones(6)

        def forward(self, x):
            return super().forward(x) * self.plain

    with pytest.raises(TraceError, match=r"without values.*neither a parameter nor a buffer"):
        first_call(on_meta(Plain))


def test_a_tensor_that_shares_memory_with_another_is_refused():
    class Shares(Resetting):
        def __init__(self):
            super().__init__()
            self.register_buffer("part", self.scale[:2])

    with pytest.raises(RaNNCError, match="'part' and 'scale' are two tensors without values"):
        first_call(on_meta(Shares))


def test_training_takes_what_was_made_before_the_model_had_values(saved):
    """Optimizers, one of which keeps something of each parameter from the start, and hooks."""
    net, folder = saved
    seen = []
    # Adagrad began with the sum that its class has by default, not the one that it was made with.
    beginning = functools.partial(torch.optim.Adagrad, initial_accumulator_value=0.3)
    for made in (torch.optim.AdamW, torch.optim.Adagrad, beginning):
        model, twin = on_meta(), Net()
        twin.load_state_dict(net.state_dict())
        model.first.bias.register_hook(lambda gradient: seen.append(gradient.shape))
        optimizers = [made(each.parameters(), lr=0.1) for each in (model, twin)]
        wrapped = RaNNCModule(model, optimizers[0], Config(pipeline_num=1), weights=folder)
        for _ in range(2):
            for each, optimizer in zip((wrapped, twin), optimizers, strict=True):
                optimizer.zero_grad()
                torch.manual_seed(3)
                each(torch.randn(4, 6)).square().mean().backward()
                optimizer.step()
        for name, tensor in twin.named_parameters():
            if name == "first.bias":  # the norm takes it out again: its gradient is rounding errors
                continue
            torch.testing.assert_close(model.get_parameter(name), tensor, rtol=1e-4, atol=1e-5)
    assert len(seen) == 6


def test_a_checkpoint_is_read_in_the_first_call_with_the_optimizers_state(tmp_path):
    torch.manual_seed(4)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
    pyrannc.save(tmp_path / "saved", net, optimizer, extra=5)
    model = on_meta()
    mine = torch.optim.AdamW(model.parameters(), lr=0.3)
    with pytest.raises(RaNNCError, match=r"'first.bias' has no values"):
        pyrannc.save(tmp_path / "other", model)
    with pytest.raises(RaNNCError, match="Wrap it in a RaNNCModule first"):
        pyrannc.load(tmp_path / "saved", model)
    wrapped = RaNNCModule(model, mine)
    assert pyrannc.load(tmp_path / "saved", wrapped, mine) == 5
    assert mine.param_groups[0]["lr"] == 0.1
    mine.param_groups[0]["lr"] = 0.5  # it was that of the checkpoint again after the first call
    wrapped.eval()
    wrapped(torch.ones(4, 6))
    assert torch.equal(model.first.weight, net.first.weight)
    found, expected = mine.state[model.second.bias], optimizer.state[net.second.bias]
    assert torch.equal(found["exp_avg"], expected["exp_avg"])
    assert mine.param_groups[0]["lr"] == 0.5
    # Another plan keeps what is there now.
    with torch.no_grad():
        model.second.bias.fill_(3)
    wrapped.undeploy()
    wrapped(torch.ones(4, 6))
    assert model.second.bias.tolist() == [3] * 6


@pytest.mark.parametrize("how", ["load", "load_state_dict", "in part"])
def test_what_is_loaded_before_the_first_call_is_not_read_from_the_weights(saved, tmp_path, how):
    """The first call put the weights in the place of the checkpoint."""
    net, folder = saved
    trained, model = Net(), Net()
    wrapped = RaNNCModule(model, config=Config(pipeline_num=1), weights=folder)
    if how == "load":
        pyrannc.save(tmp_path / "trained", trained)
        pyrannc.load(tmp_path / "trained", wrapped)
    elif how == "load_state_dict":
        wrapped.load_state_dict(trained.state_dict())
    else:
        wrapped.load_state_dict({"first.weight": trained.first.weight}, strict=False)
    wrapped.eval()(torch.ones(4, 6))
    for name, value in model.state_dict().items():
        of_trained = how != "in part" or name in ("first.weight", "second.weight")
        other = trained if of_trained else net
        assert torch.equal(value, other.state_dict()[name]), name


def test_what_would_change_nothing_without_values_is_an_error(saved):
    """Torch had a warning for it at most, and the first call initialised the model."""
    net, _ = saved
    plain = torch.optim.AdamW(net.parameters())
    net(torch.randn(4, 6)).square().mean().backward()
    plain.step()
    model = on_meta()
    optimizer = torch.optim.AdamW(model.parameters())
    wrapped = RaNNCModule(model, optimizer)
    with pytest.raises(RaNNCError, match=r"'first.bias' of the model is on the meta device, with"):
        wrapped.load_state_dict(net.state_dict())
    with pytest.raises(RaNNCError, match=r"'first.weight' of the state_dict is on the meta dev"):
        RaNNCModule(Net()).load_state_dict(model.state_dict())
    with pytest.raises(RaNNCError, match="of AdamW: its parameters have no values yet"):
        optimizer.load_state_dict(plain.state_dict())
    with pytest.raises(RaNNCError, match=r"apply\(\) has written to 'second.bias'"):
        wrapped.apply(lambda each: torch.nn.init.zeros_(each.bias) if each is model.second else 0)
    wrapped.apply(lambda each: setattr(each, "seen", True))
    wrapped(torch.randn(4, 6))
    wrapped.load_state_dict(net.state_dict())
    optimizer.load_state_dict(plain.state_dict())
    wrapped.apply(lambda each: torch.nn.init.zeros_(each.bias) if each is model.second else 0)


def test_a_hook_that_may_compute_something_cannot_be_tried():
    model = on_meta()
    model.first.register_forward_hook(lambda module, args, output: None)
    with pytest.raises(RaNNCError, match=r"'first' has a hook.*no values yet"):
        first_call(model)


def test_models_of_0_7_are_built_without_parameters_but_with_buffers():
    with pyrannc.DistributeModelParams():
        model = Net()
    assert model.first.weight.is_meta and model.first.weight is model.second.weight
    assert model.scale.tolist() == [0, 1, 2, 3, 4, 5]
    first_call(model)
    assert 0 < model.first.weight.abs().max() <= 6**-0.5
    with pyrannc.DistributeModelParams(enable=False):
        assert not Net().first.weight.is_meta
    assert not Net().first.weight.is_meta


def test_ranks_that_build_other_models_are_told(monkeypatch):
    class World:
        rank, size = 0, 2

        def all_gather(self, mine):
            return [mine, pickle.dumps("another 0")]

    with pytest.raises(ConfigError, match="on rank 0 10 tensors have no values; on rank 1 0"):
        values.of(on_meta(Net), values.Wanted(), World())
    assert values.of(Net(), values.Wanted(), launch.world()) is None
