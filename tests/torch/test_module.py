"""RaNNCModule in one process, without mpirun: the same code paths with a world of one."""

import contextlib
import copy
import json
import math

import models
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal

import pyrannc
from pyrannc import Config, ConfigError, PlanError, RaNNCError, RaNNCModule, TraceError


def build():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, 4)
    )


def wrap(model, **config):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return RaNNCModule(model, optimizer, Config(**config)), optimizer


def batch(seed=0, rows=6):
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))


def loss_of(model, x):
    return model(x).square().mean()


@pytest.fixture
def pair():
    """A wrapped model with its optimizer, and its unwrapped twin with the same weights."""
    plain = build()
    twin = copy.deepcopy(plain)
    model, optimizer = wrap(plain, pipeline_num=1)
    return model, optimizer, twin, torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)


def assert_equal_state(model, twin):
    state = model.state_dict()
    assert list(state) == list(twin.state_dict())
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-6)


def test_the_plain_loop_trains_as_without_the_wrapper(pair):
    model, optimizer, twin, twin_optimizer = pair
    for step in range(3):
        for one, its_optimizer in ((model, optimizer), (twin, twin_optimizer)):
            its_optimizer.zero_grad()
            loss_of(one, batch(step)).backward()
            its_optimizer.step()
    assert_equal_state(model, twin)


def test_no_sync_accumulates_for_the_next_step(pair):
    model, optimizer, twin, twin_optimizer = pair
    with model.no_sync():  # before the first call
        loss_of(model, batch(1)).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(RaNNCError, match=r"optimizer.step\(\): gradients of 1 backward passes"):
        optimizer.step()
    loss_of(model, batch(2)).backward()
    optimizer.step()
    for seed in (1, 2):
        loss_of(twin, batch(seed)).backward()
    twin_optimizer.step()
    assert_equal_state(model, twin)


def test_steps_over_kept_gradients_are_errors_unless_a_setting_says_no():
    for guards in (True, False):
        model, optimizer = wrap(nn.Linear(8, 4), pipeline_num=1, guard_no_sync=guards)
        other = torch.optim.SGD(model.parameters(), lr=0.1)  # younger than the plan
        loss_of(model, batch()).backward()
        optimizer.step()
        with model.no_sync():
            loss_of(model, batch()).backward()
        for each in (optimizer, other):
            with pytest.raises(RaNNCError) if guards else contextlib.nullcontext():
                each.step()


# The failing backward had taken what was kept, and the next step went on without it.
def test_what_a_failing_backward_loses_of_no_sync_is_an_error_until_zero_grad():
    fails = False

    class Check(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if fails:
                raise ValueError("a bad value")
            return gradient

    class Checked(nn.Linear):
        def forward(self, x):
            return Check.apply(super().forward(x))

    model, optimizer = wrap(Checked(8, 4), schedule="gpipe", pipeline_num=1)
    loss_of(model, batch(2)).backward()
    once = model.weight.grad.clone()
    model.zero_grad()
    with model.no_sync():
        loss_of(model, batch(1)).backward()
    fails = True
    with pytest.raises(ValueError, match="a bad value"):
        loss_of(model, batch(2)).backward()
    fails = False
    loss_of(model, batch(2)).backward()
    for step in (optimizer.step, lambda: model.clip_grad_norm(1.0)):
        with pytest.raises(RaNNCError, match=r"kept under no_sync.. were lost in a backward that"):
            step()
    model.zero_grad()
    loss_of(model, batch(2)).backward()
    torch.testing.assert_close(model.weight.grad, once)
    optimizer.step()


def test_what_is_kept_of_parameters_that_the_last_call_does_not_use_counts_too():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x, use_first):
            return self.first(x) if use_first else (self.first(x) + self.second(x))

    torch.manual_seed(1)
    twin = Either()
    model, optimizer = wrap(copy.deepcopy(twin), pipeline_num=1)
    model(batch(1), False).square().mean()  # captured, and not used
    with model.no_sync():
        model(batch(1), False).square().mean().backward()
    model(batch(2), True).square().mean().backward()
    optimizer.step()
    twin(batch(1), False).square().mean().backward()
    twin(batch(2), True).square().mean().backward()
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, parameter.grad)


def test_modes_and_grad_modes_may_come_in_any_order(pair):
    model, optimizer, twin, twin_optimizer = pair
    for training, grad in [
        (True, False),
        (False, True),
        (True, True),
        (False, False),
        (True, True),
    ]:
        results = []
        for one, its_optimizer in ((model, optimizer), (twin, twin_optimizer)):
            one.train(training)
            with torch.set_grad_enabled(grad):
                loss = loss_of(one, batch(1))
            if grad:
                its_optimizer.zero_grad()
                loss.backward()
                its_optimizer.step()
            assert loss.requires_grad == grad
            results.append(loss.detach())
        torch.testing.assert_close(*results)
    assert_equal_state(model, twin)


def train_once(one, its_optimizer, x):
    its_optimizer.zero_grad()
    loss_of(one, x).backward()
    its_optimizer.step()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("made_inside", [True, False])
def test_inference_mode_is_as_no_grad(pair, training, begins, made_inside):
    # What a run keeps was made of inference tensors: "Inference tensors cannot be saved for
    # backward", and no gradient edge ('NoneType' object has no attribute 'next_functions').
    model, optimizer, twin, twin_optimizer = pair
    outputs, x = [], batch()
    for one, its_optimizer in ((model, optimizer), (twin, twin_optimizer)):
        if not begins:
            train_once(one, its_optimizer, batch(1))
        one.train(training)
        with torch.inference_mode():
            outputs.append(one(batch() if made_inside else x))
            assert torch.is_inference_mode_enabled()
        one.train()
        train_once(one, its_optimizer, batch(2))
    assert not outputs[0].requires_grad
    torch.testing.assert_close(*outputs)
    assert_equal_state(model, twin)


def test_gradients_accumulate_over_two_forwards_and_backwards_in_any_order(pair):
    model, _, twin, _ = pair
    for one in (model, twin):
        first, second = loss_of(one, batch(1)), loss_of(one, batch(2))
        if one is twin:
            second.backward()
            (first / 3).backward()
        else:
            (first / 3).backward()
            second.backward()
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)


def test_hooks_and_autograd_grad_see_the_total_gradient_once(pair):
    model, _, twin, _ = pair
    seen = []
    model.model[0].weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    loss_of(model, batch()).backward()
    loss_of(twin, batch()).backward()
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], twin[0].weight.grad)
    (gradient,) = torch.autograd.grad(loss_of(model, batch()), [model.model[4].weight])
    torch.testing.assert_close(
        gradient, torch.autograd.grad(loss_of(twin, batch()), [twin[4].weight])[0]
    )


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.left(x), self.right(x)


@pytest.fixture
def two_heads():
    plain = TwoHeads()
    model = RaNNCModule(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    return plain, lambda: model(torch.randn(6, 4))[0].sum()  # the loss leaves one head out


def test_a_norm_that_is_not_a_number_makes_all_gradients_so_as_in_torch(pair):
    model, _, twin, _ = pair
    for one, clip in (
        (model, model.clip_grad_norm),
        (twin, lambda norm: nn.utils.clip_grad_norm_(twin.parameters(), norm)),
    ):
        loss_of(one, batch()).backward()
        next(iter(one.parameters())).grad[0, 0] = float("nan")
        assert math.isnan(clip(1.0))
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, equal_nan=True)


def test_hooks_of_parameters_without_a_gradient_are_not_called(two_heads):
    plain, loss = two_heads
    called = []
    for name, parameter in plain.named_parameters():
        parameter.register_hook(lambda gradient, name=name: called.append((name, gradient.shape)))
    handle = plain.left.bias.register_hook(lambda gradient: 3 * gradient)
    for _ in range(2):
        loss().backward()
    assert sorted(called) == 2 * [("left.bias", (2,))] + 2 * [("left.weight", (2, 4))]
    assert plain.left.bias.grad.tolist() == [36, 36]  # twice six rows
    handle.remove()
    late = loss()
    plain.right.bias.register_hook(lambda gradient: called.append(("late", gradient)))
    late.backward()
    assert plain.left.bias.grad.tolist() == [42, 42]
    assert "late" not in [name for name, _ in called]


def test_a_setting_leaves_hooks_as_the_user_registered_them():
    plain = TwoHeads()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    model = RaNNCModule(plain, optimizer, Config(wrap_hooks=False))
    called = []
    hook = called.append
    plain.right.bias.register_hook(hook)
    model(torch.randn(6, 4))[0].sum().backward()
    assert called == [None]  # as torch calls those of a node that has other gradients
    assert list(plain.right.bias._backward_hooks.values()) == [hook]


def test_nor_are_those_after_the_gradient_was_added(two_heads):
    plain, loss = two_heads
    called = []
    for name, parameter in plain.named_parameters():
        parameter.grad = torch.ones_like(parameter)  # what is there from before is none of this one
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: called.append(name))
    loss().backward()
    assert sorted(called) == ["left.bias", "left.weight"]
    # With a gradient from elsewhere in the same backward.
    (loss() + plain.right.bias.sum()).backward()
    assert sorted(called[2:]) == ["left.bias", "left.weight", "right.bias"]


def test_a_hook_on_several_parameters_waits_for_all_of_them(two_heads):
    plain, loss = two_heads
    called = []
    handle = torch.autograd.graph.register_multi_grad_hook(
        list(plain.parameters()), lambda gradients: called.append([g is None for g in gradients])
    )
    for _ in range(2):
        loss().backward()
    handle.remove()
    assert called == 2 * [[False, False, True, True]]


def test_gradients_flow_to_inputs_that_require_them(pair):
    model, _, twin, _ = pair
    ours, theirs = batch().requires_grad_(), batch().requires_grad_()
    loss_of(model, ours).backward()
    loss_of(twin, theirs).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_second_backward_is_a_clear_error(pair):
    outputs = pair[0](batch())
    outputs.mean().backward()
    with pytest.raises(RuntimeError, match=r"freed by the first.*\n.*retain_graph=True"):
        outputs.square().mean().backward()


def test_a_write_to_a_parameter_before_its_backward_is_an_error_as_without_rannc(pair):
    loss = loss_of(pair[0], batch())
    with torch.no_grad():
        pair[0].model[4].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("what", ["4.weight", "arg0"])
def test_also_where_the_forward_is_computed_again(what):
    model, _ = wrap(build(), recompute="always")
    x = batch()
    loss = loss_of(model, x)
    with torch.no_grad():
        (x if what == "arg0" else model.model[4].weight).mul_(2)
    with pytest.raises(RaNNCError, match="was modified by an in-place operation after the forward"):
        loss.backward()


def test_second_derivatives_are_a_clear_error(pair):
    loss = loss_of(pair[0], batch())
    with pytest.raises(RaNNCError, match="create_graph=True"):
        loss.backward(create_graph=True)


def test_state_loads_before_and_after_the_first_call(pair):
    model = pair[0]
    other = build()
    with torch.no_grad():
        other[0].weight.add_(1)
    model.load_state_dict(other.state_dict())
    loss_of(model, batch())
    with torch.no_grad():
        other[0].weight.add_(1)
    model.load_state_dict(other.state_dict())
    assert_equal_state(model, other)
    with pytest.raises(RaNNCError, match=r'Missing key.*"4\.bias"'):
        model.load_state_dict({k: v for k, v in other.state_dict().items() if k != "4.bias"})


class OwnState(nn.Linear):
    """Has more state than tensors, and other names in its checkpoints."""

    def __init__(self):
        super().__init__(8, 8)
        self.rounds = 0
        self.register_state_dict_post_hook(self.rename)
        self.register_load_state_dict_pre_hook(self.rename_back)

    @staticmethod
    def rename(module, state, prefix, metadata):
        state[f"{prefix}matrix"] = state.pop(f"{prefix}weight") * 2

    @staticmethod
    def rename_back(module, state, prefix, *_):
        state[f"{prefix}weight"] = state.pop(f"{prefix}matrix") / 2

    def get_extra_state(self):
        return {"rounds": self.rounds}

    def set_extra_state(self, state):
        self.rounds = state["rounds"]


def test_modules_save_and_load_by_their_own_methods_and_hooks():
    plain = nn.Sequential(OwnState(), nn.ReLU(), nn.Linear(8, 4))
    plain[2].half_way = plain[2].weight  # under two names
    twin, other = copy.deepcopy(plain), copy.deepcopy(plain)
    model, _ = wrap(plain)
    loss_of(model, batch())
    plain[0].rounds = twin[0].rounds = 3

    state, expected = model.state_dict(), twin.state_dict()
    assert list(state) == list(expected)
    assert state["0._extra_state"] == {"rounds": 3}
    assert torch.equal(state["0.matrix"], expected["0.matrix"])
    assert state["2.half_way"].data_ptr() == state["2.weight"].data_ptr()

    with torch.no_grad():
        for tensor in other.parameters():
            tensor.add_(1)
    other[0].rounds = 5
    given = other.state_dict()
    noted = copy.deepcopy(given._metadata)
    assert model.load_state_dict(given) == ([], [])
    assert given._metadata == noted
    torch.testing.assert_close(plain[0].weight, other[0].weight)
    torch.testing.assert_close(plain[2].weight, other[2].weight)
    assert plain[0].rounds == 5

    with pytest.raises(RaNNCError, match=r"rank 0: '?0\.matrix"):  # of the hook
        model.load_state_dict({name: v for name, v in given.items() if name != "0.matrix"})
    torch.testing.assert_close(plain[2].weight, other[2].weight)


def test_a_model_is_wrapped_once():
    with pytest.raises(RaNNCError, match=r"^the model is a RaNNCModule already"):
        RaNNCModule(RaNNCModule(build()))
    with pytest.raises(RaNNCError, match=r"^'0' of the model is a RaNNCModule already"):
        RaNNCModule(nn.Sequential(RaNNCModule(build()), nn.Linear(4, 4)))


@pytest.mark.parametrize("called", [False, True])
def test_an_outer_module_saves_and_loads_the_wrapped_model_by_its_names(called):
    # The outer one's recursion hands down a dict and a prefix, which were ignored: a checkpoint was
    # without the wrapped model, and loading one left its weights as they were.
    outer = nn.Sequential(wrap(build())[0], nn.Linear(4, 1))
    twin, other = (nn.Sequential(build(), nn.Linear(4, 1)) for _ in range(2))
    if called:
        with torch.no_grad():
            outer(batch())
    with torch.no_grad():
        for value in other.state_dict().values():
            value.add_(1)
    assert outer.load_state_dict(other.state_dict()) == ([], [])
    state = outer.state_dict()
    assert_equal_state(outer, other)
    assert state._metadata == twin.state_dict()._metadata
    twin.load_state_dict(state)

    state["0.4.more"] = state.pop("0.4.bias")
    found = outer.load_state_dict(state, strict=False)
    assert found == (["0.4.bias"], ["0.4.more"])
    with pytest.raises(RuntimeError, match=r'(?s)Missing.*"0\.4\.bias".*Unexpected.*"0\.4\.more"'):
        outer.load_state_dict(state)


def test_the_versions_of_an_outer_modules_state_reach_the_wrapped_model():
    class Versioned(nn.Linear):
        _version = 3

        def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
            versions.append(local_metadata.get("version"))
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    versions = []
    outer = nn.Sequential(RaNNCModule(nn.Sequential(Versioned(8, 4))))
    outer.load_state_dict(outer.state_dict())
    outer.load_state_dict(dict(outer.state_dict()))
    assert versions == [3, None]


def test_names_are_those_of_the_model():
    model, _ = wrap(build())
    assert [name for name, _ in model.named_parameters()] == [
        name for name, _ in build().named_parameters()
    ]
    assert isinstance(model, nn.Module)
    assert model.get_submodule("4").out_features == 4
    model.model.note = "mine"
    assert model.note == "mine"  # what RaNNCModule does not have is the model's


def test_the_plan_is_there_after_the_first_call_and_reloads(tmp_path, monkeypatch):
    model, _ = wrap(build(), partition_num=1, pipeline_num=2)
    with pytest.raises(RaNNCError, match="first call"):
        _ = model.plan
    loss_of(model, batch())
    assert model.plan.micro_batches == 2
    path = tmp_path / "plan.json"
    model.save_deployment(path)
    saved = json.loads(path.read_text())
    assert saved["format"] == "rannc-plan"
    assert saved["notes"]["bucket_bytes"] == 2**25  # nothing is summed

    def no_measuring(*_):
        raise AssertionError("measured although a plan was given")

    monkeypatch.setattr("pyrannc.profiling.operators.profile", no_measuring)
    again = RaNNCModule(build(), load_deployment=path)
    loss_of(again, batch())
    assert again.plan.micro_batches == 2
    other = RaNNCModule(build(), load_deployment=path)  # of another batch
    loss_of(other, batch(rows=8))
    assert other.plan == again.plan

    def reloads_with(**notes):
        path.write_text(json.dumps({**saved, "notes": {**saved["notes"], **notes}}))
        loss_of(RaNNCModule(build(), load_deployment=path), batch())

    for wrong in (2**20 - 1, "2 MiB"):
        with pytest.raises(ConfigError, match=r"plan\.json is no.*\.bucket_bytes: expected an int"):
            reloads_with(bucket_bytes=wrong)
    for name in ("step_peak_bytes", "step_idle_ns", "step_bubble_ns"):
        with pytest.raises(ConfigError, match=rf"plan\.json is no.*\.{name}: expected an array"):
            reloads_with(**{name: "many"})
    with pytest.raises(ConfigError, match=r"step_peak_bytes: has 2 numbers, but the plan has 1"):
        reloads_with(step_peak_bytes=[1, 2])
    for name in ("step_idle_ns", "step_bubble_ns"):
        with pytest.raises(PlanError, match=rf"plan\.json: {name} is .*it needs 1 numbers"):
            reloads_with(**{name: [1, 2]})


def test_the_environment_saves_and_loads_the_plan(tmp_path, monkeypatch):
    monkeypatch.setenv("RANNC_DEPLOYMENT_FILE", str(tmp_path / "p.json"))
    monkeypatch.setenv("RANNC_SAVE_DEPLOYMENT", "true")
    loss_of(wrap(build())[0], batch())
    monkeypatch.delenv("RANNC_SAVE_DEPLOYMENT")
    monkeypatch.setenv("RANNC_LOAD_DEPLOYMENT", "yes")
    monkeypatch.setattr("pyrannc.profiling.operators.profile", None)
    loss_of(wrap(build())[0], batch())


def test_a_scalar_loss_inside_the_model_is_returned_as_such():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build()

        def forward(self, x, labels):
            return nn.functional.cross_entropy(self.inner(x), labels)

    plain = WithLoss()
    twin = copy.deepcopy(plain)
    model, _ = wrap(plain, pipeline_num=1)
    labels = torch.arange(6) % 4
    loss, expected = model(batch(), labels), twin(batch(), labels)
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(model.model.inner[0].weight.grad, twin.inner[0].weight.grad)


def test_it_prints_like_a_module_around_the_model():
    plain = nn.Sequential(build(), nn.Tanh())
    model = RaNNCModule(plain)
    around = nn.Module()
    around.module = plain
    expected = repr(around).replace("Module(", "RaNNCModule(", 1)
    assert repr(model) == expected
    model(batch())
    assert repr(model) == expected


def test_a_copy_is_possible_before_the_first_call(tmp_path):
    plain = build()
    model = RaNNCModule(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for copied in (copy.deepcopy(model), loaded):
        assert_equal_state(copied, plain)
        assert copied.model is not plain
        copied(batch())


# -- bad input: one clear message each ---------------------------------------------------------


def test_an_argument_may_be_called_like_a_parameter():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.tensor([1.0, 2.0]))
            self.register_buffer("shift", torch.ones(2))

        def forward(self, x, shift):
            return (x * self.x + self.shift * shift).sum()

    model = RaNNCModule(Scaled())
    x = torch.tensor([[3.0, 4.0]] * 2)
    loss = model(x, torch.zeros(2, 1))
    loss.backward()
    assert loss.item() == 22
    assert model.model.x.grad.tolist() == [6, 8]


def test_a_shape_that_the_model_does_not_take_is_its_own_error(pair):
    model = pair[0]
    loss_of(model, batch())
    with pytest.raises(TraceError, match="9"):
        model(torch.randn(6, 9))
    loss_of(model, batch()).backward()  # nothing is lost


def test_a_tensor_on_another_device_is_an_error(pair):
    with pytest.raises(RaNNCError, match="meta"):
        pair[0](torch.empty(6, 8, device="meta"))


def test_an_optimizer_over_other_parameters_is_an_error():
    with pytest.raises(ConfigError, match=r"group 0, position 0, shape \(16, 8\)"):
        RaNNCModule(build(), torch.optim.SGD(build().parameters(), lr=0.1))


def test_lbfgs_is_an_error_by_name():
    # Its step said "'Steps' object has no attribute '_optimizer_begin'".
    model = build()
    with pytest.raises(ConfigError, match=r"LBFGS .* all parameters in one place.*\n.*AdamW"):
        RaNNCModule(model, torch.optim.LBFGS(model.parameters()))


def test_control_flow_on_values_is_an_error_with_its_line():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            if self.inner(x).sum() > 0:  # the line that is named
                return x
            return -x

    with pytest.raises(TraceError, match=r"test_module\.py:\d+"):
        wrap(Branches())[0](batch())


@pytest.mark.parametrize(
    "forced", [{"replica_nums": [2]}, {"partition_num": 50}, {"pipeline_num": 7},
               {"partition_num": 2, "replica_nums": [1]}]
)  # fmt: skip
def test_a_forced_plan_that_cannot_be_is_an_error(forced):
    with pytest.raises((ConfigError, pyrannc.InfeasibleError)):
        wrap(build(), **forced)[0](batch())


def test_when_nothing_fits_the_error_names_the_block_and_the_bytes():
    with pytest.raises(pyrannc.InfeasibleError, match=r"needs .*KiB"):
        wrap(build(), mem_limit_gb=1e-6)[0](batch())


def test_attributes_that_forward_changes_are_a_warning_once(capfd):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 4)
            self.count = 0

        def forward(self, x):
            self.count += 1
            return self.inner(x)

    model, _ = wrap(nn.Sequential(Counting()), calibrate=False)
    for rows in (6, 4):
        model(batch(rows=rows))
    assert (
        capfd.readouterr().err.count("forward() changes attributes of the model: '0.count'.") == 1
    )
    assert model.model[0].count == 0


def test_arguments_that_forward_writes_stay_what_they_were_and_are_a_warning_once(capfd):
    class Doubling(nn.Linear):
        def forward(self, x):
            x.mul_(2)
            return super().forward(x)

    plain = Doubling(8, 4)
    model, _ = wrap(copy.deepcopy(plain), calibrate=False)
    for _ in range(2):
        x = batch()
        torch.testing.assert_close(model(x), plain(batch()))
        torch.testing.assert_close(x, batch())
    assert capfd.readouterr().err.count("forward() writes into its arguments: args[0]. It") == 1


def test_one_rank_returns_what_pairs_every_row_with_every_other():
    """CLIP's logits; several ranks could not tell their rows apart in it."""

    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 4)

        def forward(self, x):
            logits = self.inner(x) @ self.inner(-x).t()
            return nn.functional.cross_entropy(logits, torch.arange(x.shape[0])), logits

    plain = Pairs()
    twin = copy.deepcopy(plain)
    model, _ = wrap(plain, calibrate=False)
    for one in (model, twin):
        loss, logits = one(batch())
        (loss + logits.pow(3).mean()).backward()
    torch.testing.assert_close(plain.inner.weight.grad, twin.inner.weight.grad)
    torch.testing.assert_close(model(batch()), twin(batch()))


def test_a_model_may_return_the_number_of_its_rows():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 4)

        def forward(self, x):
            return self.inner(x).square().mean(), x.shape[0]

    model, _ = wrap(Counting(), calibrate=False, pipeline_num=2)
    assert [model(batch(rows=rows))[1] for rows in (6, 4)] == [6, 4]


@pytest.mark.parametrize(
    "made", [lambda y: Normal(y, 1.0), lambda y: Categorical(logits=y), lambda y: (y, y.shape)]
)
def test_a_model_may_return_a_distribution_or_sizes(made):
    # "the result of the model depends on the batch size": a size was one constant.
    class Policy(nn.Linear):
        def forward(self, x):
            return made(super().forward(x))

    plain = Policy(8, 4)
    twin = copy.deepcopy(plain)
    model, _ = wrap(plain, calibrate=False, pipeline_num=2)
    for rows in (6, 4):
        found, expected = model(batch(rows=rows)), twin(batch(rows=rows))
        assert type(found) is type(expected)
        if isinstance(found, tuple):
            assert found[1] == expected[1]
            continue
        assert (found.batch_shape, found.event_shape) == (expected.batch_shape, torch.Size())
        actions = expected.sample()
        assert found.sample().shape == actions.shape
        for each in (found, expected):
            each.log_prob(actions).mean().backward()
        torch.testing.assert_close(plain.weight.grad, twin.weight.grad)


def test_rows_that_interact_run_as_one_micro_batch_and_say_so(capfd, tmp_path):
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 4)

        def forward(self, x):
            y = self.inner(x)
            return y - y.mean(0)

    plain = Centred()
    twin = copy.deepcopy(plain)
    model, _ = wrap(plain)
    torch.testing.assert_close(model(batch()), twin(batch()))
    assert model.plan.micro_batches == 1
    assert "rows interact" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="rows of the batch interact"):
        wrap(Centred(), pipeline_num=2)[0](batch())
    # A plan from a file must respect it, too.
    path = tmp_path / "plan.json"
    model.save_deployment(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"micro_batches": 2}))
    with pytest.raises(PlanError, match="rows of the batch interact"):
        RaNNCModule(Centred(), load_deployment=path)(batch())


def test_a_copy_after_the_first_call_is_an_error_that_says_what_to_copy(pair, tmp_path):
    model = pair[0]
    model(batch())
    for make in (copy.copy, copy.deepcopy, lambda it: torch.save(it, tmp_path / "model.pt")):
        with pytest.raises(RaNNCError, match=r"copied or pickled.*\n.*state_dict\(\)"):
            make(model)


@pytest.mark.parametrize("balanced", [False, True])
def test_a_mixture_of_experts_trains_as_without_the_wrapper(balanced):
    """Its grouped products in float32 could not be traced: "Expected inputs of BF16 type"; nor
    could its balancing loss, which divides by a float of the batch size."""
    pytest.importorskip("transformers")
    plain = models.mixtral()
    twin = copy.deepcopy(plain)
    model, optimizer = wrap(plain, calibrate=False, pipeline_num=1)
    twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for step in range(2):
        _, kwargs = models.language_ids(4, torch.Generator().manual_seed(step))
        kwargs["output_router_logits"] = balanced
        for one, its_optimizer in ((model, optimizer), (twin, twin_optimizer)):
            its_optimizer.zero_grad()
            one(**kwargs).loss.backward()
            its_optimizer.step()
    assert_equal_state(model, twin)


class Followed(nn.Module):
    """A layer, and what ``follow`` writes in each forward: a frozen copy or the layer itself."""

    def __init__(self, follow):
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.teacher = nn.Linear(8, 8).requires_grad_(False)
        self.register_buffer("scale", torch.ones(()))
        self.follow = follow

    def forward(self, x):
        with torch.no_grad():
            self.follow(self)
        hidden = torch.tanh(self.layer(x * self.scale)) - self.teacher(x)
        return self.last(hidden).square().mean()


def averaged(model):
    for slow, fast in zip(model.teacher.parameters(), model.layer.parameters(), strict=True):
        slow.mul_(0.9).add_(fast, alpha=0.1)


def bounded(model):
    model.layer.weight.mul_(0.9).clamp_(-0.2, 0.2)


def nothing(model):
    pass


def train_both(make, between=lambda model, step: None, **config):
    """Three steps of a model in four micro-batches, and of its twin; ``between`` comes before."""
    plain = make()
    twin = copy.deepcopy(plain)
    model, optimizer = wrap(plain, **{"pipeline_num": 4} | config)
    twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        for called, one, its_optimizer in (
            (model, plain, optimizer),
            (twin, twin, twin_optimizer),
        ):
            between(one, step)
            its_optimizer.zero_grad()
            called(batch(step, 8)).backward()
            its_optimizer.step()
    assert_equal_state(model, twin)


@pytest.mark.parametrize("recompute", ["auto", "always"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("follow", [averaged, bounded])
def test_parameters_that_forward_writes_are_written_once_and_keep_their_gradients(
    follow, schedule, recompute
):
    train_both(lambda: Followed(follow), schedule=schedule, recompute=recompute)


def test_a_tensor_that_takes_the_place_of_another_between_calls_is_used():
    def replace(model, step):
        if step > 0:
            model.scale = torch.tensor(1.0 + step)
            model.teacher.weight = nn.Parameter(torch.full((8, 8), 0.1), requires_grad=False)

    train_both(lambda: Followed(nothing), replace)


def test_buffers_may_repeat_their_memory():
    def make():
        model = Followed(nothing)
        model.register_buffer("repeated", torch.ones(1).expand(8))
        model.follow = lambda model: model.scale.copy_(model.repeated.mean())
        return model

    model, _ = wrap(make())
    model(batch()).backward()
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    assert torch.equal(model.state_dict()["repeated"], torch.full((8,), 2.0))


def test_a_constant_that_is_returned_is_a_new_tensor_in_each_call():
    class Counts(nn.Linear):
        def forward(self, x):
            return super().forward(x).square().mean(), torch.tensor([1.0, 2.0])

    model, _ = wrap(Counts(8, 4), schedule="gpipe")
    for _ in range(2):
        _, counts = model(batch())
        assert counts.tolist() == [1, 2]
        counts.add_(1)


def test_complex_sums_over_the_batch_keep_their_imaginary_part():
    class Spectrum(nn.Linear):
        def forward(self, x):
            waves = torch.fft.fft(super().forward(x))
            return waves.abs().square().mean(), waves.mean(0)

    plain = Spectrum(8, 4)
    expected = plain(batch())[1]
    model, _ = wrap(plain, schedule="gpipe", pipeline_num=2)
    torch.testing.assert_close(model(batch())[1], expected)


def test_a_buffer_may_take_the_place_of_another_that_is_replaced_in_the_same_call():
    def shift(model):
        model.before = model.scale
        model.scale = model.scale * 0.5 + 1

    def make():
        model = Followed(shift)
        model.scale.mul_(2)
        model.register_buffer("before", torch.zeros(()))
        return model

    train_both(make, self_check=False)


def test_backward_may_need_what_a_buffer_held_before_it_was_replaced():
    def raise_scale(model):
        model.scale = model.scale * 0.5 + 1

    class Scaled(Followed):
        def forward(self, x):
            weight = self.layer.weight * self.scale  # backward needs this scale
            self.follow(self)
            return (x @ weight.t()).square().mean()

    train_both(lambda: Scaled(raise_scale))
