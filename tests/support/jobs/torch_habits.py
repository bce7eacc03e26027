"""Habits of PyTorch users that stand in no list of ours, on several ranks; see habits.py."""

import argparse
import collections
import contextlib
import copy
import enum
import gc
import inspect
import io
import types

import numpy as np
import torch
from habits import RANK, SIZE, Net, backward, equal_weights, main, mine, pair, raises, rows
from torch import nn
from torch.nn.utils import (
    clip_grad_norm_,
    clip_grad_value_,
    parameters_to_vector,
    parametrizations,
    parametrize,
)
from torch.optim import swa_utils

from pyrannc import Config, RaNNCModule, launch

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def trains(wrapping=lambda model: None, between=lambda model, step: None, kind=None, steps=3):
    """Both models train alike: ``wrapping(model)`` happens after wrapping, before the first call;
    ``between(model, step)`` between a backward and the optimizer's step. Returns both."""
    plain, own, wrapped, theirs = pair()
    if kind is not None:
        own, theirs = (kind(each.parameters()) for each in (plain, wrapped.module))
        wrapped = RaNNCModule(wrapped.module, theirs, wrapped.config)
    wrapping(plain), wrapping(wrapped)
    for step in range(steps):
        own.zero_grad(), theirs.zero_grad()
        backward(plain, wrapped, step)
        between(plain, step), between(wrapped, step)
        own.step(), theirs.step()
        equal_weights(plain, wrapped)
    return plain, own, wrapped, theirs


def elsewhere():
    """An error of what other ranks hold; with all of it here, nothing is wrong."""
    return raises("that this rank has released")


class Scaled(Net):
    def forward(self, x, scale):
        return super().forward(x) * scale.sum()


@case
def an_argument_without_rows():
    """a tensor argument without rows, such as a temperature: the same on all ranks; others"""
    model = Scaled()
    config = Config(partition_num=min(SIZE, 2), calibrate=False)
    wrapped = RaNNCModule(copy.deepcopy(model), config=config)
    for scale in (torch.tensor(2.0), torch.tensor(3.0), torch.arange(9.0)):
        torch.testing.assert_close(
            wrapped(mine(rows()), scale), model(mine(rows()), scale), rtol=1e-5, atol=1e-6
        )
        with raises("'args[1]' has no rows, and is not the same on every rank"):
            wrapped(mine(rows()), scale + RANK)


@case
def gradients_changed_in_place():
    """`for p in model.parameters(): p.grad.clamp_(...)`, `p.grad.div_(4)`, `p.grad = p.grad * 2`"""

    def change(model, step):
        for p in model.parameters():
            if step == 0:
                p.grad.clamp_(-0.01, 0.01)
            elif step == 1:
                p.grad.data.div_(4).mul_(2)
            else:
                p.grad = p.grad * 2

    trains(between=change)


@case
def a_norm_of_gradients_by_hand_is_an_error_where_some_are_elsewhere():
    """`sum(p.grad.norm() ** 2 for p in model.parameters() if p.grad is not None)`"""
    plain, _, wrapped, _ = pair()
    backward(plain, wrapped)
    whole = SIZE == 1
    assert all(p.grad is not None for p in wrapped.parameters())
    with contextlib.nullcontext() if whole else elsewhere():
        sum(p.grad.norm() ** 2 for p in wrapped.parameters() if p.grad is not None)
    with contextlib.nullcontext() if whole else raises("use torch.nn.utils.get_total_norm()"):
        torch.cat([p.grad.flatten() for p in wrapped.parameters()])
    assert launch.world().all_gather(str(wrapped.calc_grad_norm()).encode())


@case
def sgd_by_hand():
    """SGD by hand: `p -= lr * p.grad`, `p.data.add_(p.grad, alpha=-lr)`, `p.grad = None`"""
    plain, _, wrapped, _ = pair()
    wrapped = RaNNCModule(wrapped.module, config=wrapped.config)
    for step in range(3):
        backward(plain, wrapped, step)
        for model in (plain, wrapped):
            with torch.no_grad():
                for p in model.parameters():
                    if step:
                        p.data.add_(p.grad, alpha=-0.1)
                    else:
                        p -= 0.1 * p.grad
                    p.grad = None
        equal_weights(plain, wrapped)
        assert all(p.grad is None for p in wrapped.parameters(from_global=False))


@case
def gradients_clipped_by_value():
    """`clip_grad_value_(model.parameters(), x)`, of one of two optimizers' parameters"""
    trains(between=lambda model, _: clip_grad_value_(model.parameters(), 0.005))

    # torch fails where none has a gradient, as on the ranks without a part of an optimizer.
    plain, _, wrapped, _ = pair()
    kept = []
    for model in (plain, wrapped.module):
        others = [each for each in model.parameters() if each is not model.first.bias]
        kept.append([torch.optim.Adagrad([model.first.bias]), torch.optim.Adam(others, 0.01)])
    wrapped = RaNNCModule(wrapped.module, kept[1], wrapped.config)
    for step in range(3):
        backward(plain, wrapped, step)
        for optimizers in kept:
            for optimizer in optimizers:
                clip_grad_value_(optimizer.param_groups[0]["params"], 0.005)
                optimizer.step(), optimizer.zero_grad()
        equal_weights(plain, wrapped)


@case
def weights_clipped():
    """`p.data.clamp_(-0.1, 0.1)` after each step, as in a WGAN"""
    trains(between=lambda model, _: [p.data.clamp_(-0.2, 0.2) for p in model.parameters()])


@case
def accumulation_by_dividing():
    """`(loss / 4).backward()` four times; `zero_grad()` of the model, also with zeros"""
    plain, own, wrapped, theirs = pair()
    for round_ in range(3):
        for step in range(4):
            batch = rows(seed=4 * round_ + step)
            (plain(batch).square().mean() / 4).backward()
            (wrapped(mine(batch)).square().mean() / 4).backward()
        own.step(), theirs.step()
        equal_weights(plain, wrapped)
        plain.zero_grad(set_to_none=round_ == 0), wrapped.zero_grad(set_to_none=round_ == 0)


@case
def tensors_of_the_kind_of_a_parameter():
    """`next(model.parameters()).new_zeros(2, 3)`, `x.type_as(p)`, `x.to(p)`: of its kind alone"""
    plain, _, wrapped, _ = pair()
    backward(plain, wrapped)
    for model in (plain, wrapped):
        for p in model.parameters():
            assert p.new_zeros(2, 3).sum().item() == 0 and p.new_tensor([1, 2]).sum().item() == 3
            assert p.new(2, 3).zero_().dtype == p.dtype == torch.ones(2).double().to(p).dtype
            assert torch.ones(2).double().type_as(p).sum().item() == 2


@case
def importance_of_weights():
    """elastic weight consolidation: `fisher[n] = torch.zeros_like(p)`, `+= p.grad ** 2`"""

    def keep(model, step):
        if step == 0:
            kept[model] = {
                n: (torch.zeros_like(p), p.detach().clone()) for n, p in model.named_parameters()
            }
        for name, p in model.named_parameters():
            fisher, before = kept[model][name]
            fisher += p.grad.data.clone().pow(2) / 3
            p.grad += 0.1 * fisher * (p.detach() - before) + 0.01 * (p.grad**2 > 1e-4)

    kept = {}
    trains(between=keep, steps=4)


@case
def recorded_by_torch():
    """`torch.jit.trace(model, batch)`, as TensorBoard's `add_graph` does; of all attributes"""
    plain, _, wrapped, _ = pair()
    with raises("called inside torch.jit.trace()"):
        torch.jit.trace(wrapped, mine(rows()))
    backward(plain, wrapped)
    assert "forward" in dict(inspect.getmembers(wrapped))
    with wrapped.summon():
        traced = torch.jit.trace(wrapped.module, mine(rows()))
        torch.testing.assert_close(traced(mine(rows())), plain(mine(rows())))


@case
def wrapped_again_with_another_optimizer():
    """pre-training, then `RaNNCModule(classifier, optimizer)` around what was trained"""

    def training(model, optimizer, wrapped, other):
        for step in range(2):
            optimizer.zero_grad(), other.zero_grad()
            backward(model, wrapped, step)
            optimizer.step(), other.step()

    plain, own, wrapped, theirs = pair()
    training(plain, own, wrapped, theirs)
    head = nn.Linear(6, 6)
    whole = nn.Sequential(plain, head)
    model = nn.Sequential(wrapped.module, copy.deepcopy(head))
    own, theirs = (torch.optim.Adam(each.parameters(), lr=0.01) for each in (whole, model))
    again = RaNNCModule(model, theirs, wrapped.config)
    training(whole, own, again, theirs)
    equal_weights(whole, again)
    with contextlib.nullcontext() if SIZE == 1 else raises("made of this model, or of a part"):
        wrapped(mine(rows()))
    again.undeploy()
    torch.testing.assert_close(wrapped(mine(rows())), plain(mine(rows())))


@case
def centred_gradients_and_masked_weights():
    """`p.grad.sub_(p.grad.mean(dim=1, keepdim=True))`; `p.masked_fill_(mask == 0, 0)` by a mask"""

    def change(model, step):
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.grad.data.add_(-p.grad.data.mean(dim=1, keepdim=True))
                p.grad.mul_(1 / (1 + p.grad.norm(2, 1, True)))
            kept[model, name] = (p.detach().abs() > 0.1).float() if step == 0 else kept[model, name]
            with torch.no_grad():
                p.masked_fill_(kept[model, name] == 0, 0)
                p.copy_(torch.where(p > 0.2, p * 0.5, p))

    kept = {}
    trains(between=change)
    plain, _, wrapped, _ = pair()
    wrapped(mine(rows()))
    for p, own in zip(wrapped.parameters(), plain.parameters(), strict=True):
        assert abs(p.mean(0).sum().item() - own.mean(0).sum().item()) < 1e-9
    wrapped.state_dict()  # until here the ranks answer each other


@case
def parameters_beside_the_model():
    """an optimizer for parameters of the loss beside the model's (a warning that ranks differ)"""
    before = pair()[2]  # which goes between the steps
    before(mine(rows()))
    _, _, wrapped, theirs = pair()
    centers = nn.Parameter(torch.zeros(6))
    other = torch.optim.SGD([centers], lr=0.1)
    for step in range(2):
        (wrapped(mine(rows(seed=step))) - centers).square().mean().backward()
        theirs.step(), other.step()
        before = None
        gc.collect()


@case
def parameters_as_a_vector_are_an_error():
    """`parameters_to_vector(model.parameters())`, `torch.cat`, `torch._foreach_norm`"""
    _, _, wrapped, _ = pair()
    wrapped(mine(rows())).square().mean().backward()
    for use in (
        lambda: parameters_to_vector(wrapped.parameters()),
        lambda: torch.cat([p.flatten() for p in wrapped.parameters()]),
        lambda: torch._foreach_norm(list(wrapped.parameters())),
    ):
        with contextlib.nullcontext() if SIZE == 1 else elsewhere():
            use()


@case
def parametrizations_before_the_first_call_and_after():
    """`torch.nn.utils.parametrize`: before the first call (equal), later (error)"""

    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).mT

    def symmetric(model):
        parametrize.register_parametrization(model.second, "weight", Symmetric())

    _, _, wrapped, _ = trains(wrapping=symmetric)
    wrapped = trains()[2]
    with raises(""):  # where the weight is elsewhere, torch's own look at it fails
        symmetric(wrapped)
        wrapped(mine(rows()))


@case
def dtypes_changed_after_wrapping():
    """`model.double()` after wrapping (equal); `.half()`, `.to(torch.bfloat16)` after a call"""
    plain, own, wrapped, theirs = pair()
    plain.double(), wrapped.double()
    for step in range(2):
        own.zero_grad(), theirs.zero_grad()
        batch = rows(seed=step).double()
        plain(batch).square().mean().backward()
        wrapped(mine(batch)).square().mean().backward()
        own.step(), theirs.step()
        equal_weights(plain, wrapped)
    wrapped.to("cpu"), wrapped.cpu(), wrapped.double()
    for change in (lambda: wrapped.half(), lambda: wrapped.to(torch.bfloat16), wrapped.float):
        with raises("after the first call"):
            change()
    equal_weights(plain, wrapped)


@case
def copies_after_the_first_call_are_an_error():
    """`copy.deepcopy(model)` after the first call"""
    wrapped = trains()[2]
    with raises("cannot be copied"):
        copy.deepcopy(wrapped)
    best = copy.deepcopy(wrapped.state_dict(rank0_only=False))  # as one keeps the best weights
    wrapped.load_state_dict(best)


@case
def layers_frozen_and_unfrozen():
    """`requires_grad_(False)` of a layer in the middle of the training, and back"""

    def change(model, step):
        model.second.requires_grad_(step % 2 == 1)

    trains(between=change, steps=5)


@case
def weights_tied_after_wrapping():
    """`model.second.weight = model.first.weight` after wrapping (equal), after a call (error)"""

    def tie(model):
        model.second.weight = model.first.weight

    _, _, wrapped, _ = trains(wrapping=tie, kind=lambda p: torch.optim.SGD(p, lr=0.1))
    wrapped = trains()[2]
    tie(wrapped.module)
    with raises("'second.weight' of the model was replaced"):
        wrapped(mine(rows()))


@case
def buffers_registered_later():
    """`register_buffer` of the model after wrapping"""

    def register(model):
        model.register_buffer("steps", torch.zeros(()))
        model.second.register_buffer("scale", torch.ones(6))

    _, _, wrapped, _ = trains(wrapping=register)
    with raises("register_buffer() after the first call"):
        wrapped.register_buffer("more", torch.zeros(()))


@case
def gradients_by_torch_autograd_grad():
    """`torch.autograd.grad(loss, ...)` for own parameters (equal), for all (error), for inputs"""
    plain, _, wrapped, _ = pair()
    backward(plain, wrapped)
    here = dict(wrapped.named_parameters(from_global=False))  # none on a rank without a stage
    batch = mine(rows(seed=1)).requires_grad_()
    whole = rows(seed=1).requires_grad_()
    found = torch.autograd.grad(wrapped(batch).square().mean(), [*here.values(), batch])
    wanted = [plain.get_parameter(name) for name in here]
    expected = torch.autograd.grad(plain(whole).square().mean(), [*wanted, whole])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other if other.shape == one.shape else mine(other))
    if SIZE > 1:
        with raises("", (RuntimeError, Exception)):
            torch.autograd.grad(wrapped(batch).square().mean(), list(wrapped.parameters()))


@case
def two_backwards_of_one_loss_and_two_losses():
    """`loss.backward(retain_graph=True)`; two losses of one call, one after the other, and added"""
    plain, own, wrapped, theirs = pair()
    one, other = plain(rows()), wrapped(mine(rows()))
    for model_output in (one, other):
        first, second = model_output.square().mean(), model_output.abs().mean()
        first.backward(retain_graph=True)
        second.backward(retain_graph=True)
        (first + 0.5 * second).backward()
    own.step(), theirs.step()
    equal_weights(plain, wrapped)


@case
def a_group_added_later():
    """`optimizer.add_param_group(...)` in the middle of the training"""
    plain, _, wrapped, _ = pair()
    own, theirs = (
        torch.optim.AdamW(each.second.parameters(), lr=0.1) for each in (plain, wrapped.module)
    )
    wrapped = RaNNCModule(wrapped.module, theirs, wrapped.config)
    for step in range(4):
        plain.zero_grad(), wrapped.zero_grad()
        backward(plain, wrapped, step)
        if step == 1:
            for optimizer, model in ((own, plain), (theirs, wrapped)):
                optimizer.add_param_group({"params": list(model.last.parameters()), "lr": 0.02})
        own.step(), theirs.step()
        equal_weights(plain, wrapped)
    states = [own.state_dict(), theirs.state_dict(rank0_only=False)]
    for number, entry in states[0]["state"].items():
        torch.testing.assert_close(states[1]["state"][number], entry)
    theirs.load_state_dict(copy.deepcopy(states[0]))
    plain.zero_grad(), wrapped.zero_grad()
    backward(plain, wrapped, 4)
    own.step(), theirs.step()
    equal_weights(plain, wrapped)


@case
def states_of_an_optimizer_looked_at():
    """`optimizer.state[p]` for each parameter, as monitors of averages do, and then its state"""
    plain, own, wrapped, theirs = trains(kind=lambda p: torch.optim.Adam(p, lr=0.01))
    seen = {
        model: [optimizer.state[p].get("step") for p in model.parameters()]
        for model, optimizer in ((plain, own), (wrapped, theirs))
    }
    known = [each for each in seen[wrapped] if each is not None]
    assert known or not [*wrapped.parameters(from_global=False)]  # a rank without a stage
    assert known == seen[plain][: len(known)]
    state = theirs.state_dict(rank0_only=False)
    assert state["state"].keys() == own.state_dict()["state"].keys()
    theirs.load_state_dict(state)


@case
def schedules_that_look_at_a_groups_first_parameter():
    """`AdafactorSchedule(optimizer)` of transformers, with a group for each layer"""
    try:
        from transformers.optimization import Adafactor, AdafactorSchedule
    except ImportError:
        return

    def kind(parameters):
        groups = [{"params": [each]} for each in parameters]
        return Adafactor(groups, lr=None, scale_parameter=True, warmup_init=True)

    plain, own, wrapped, theirs = trains(kind=kind, steps=1)
    schedules = [AdafactorSchedule(each) for each in (own, theirs)]
    for step in range(3):
        own.zero_grad(), theirs.zero_grad()
        backward(plain, wrapped, step)
        own.step(), theirs.step()
        for each in schedules:
            each.step()
    equal_weights(plain, wrapped)


@case
def groups_by_name_and_learning_rates_set_by_hand():
    """no decay for biases by `named_parameters()`; `optimizer.param_groups[0]["lr"] = ...`"""

    def kind(parameters):
        listed = list(parameters)
        matrices, others = ([p for p in listed if (p.dim() > 1) == wide] for wide in (True, False))
        groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0}]
        return torch.optim.AdamW(groups, lr=0.05)

    plain, own, wrapped, theirs = trains(kind=kind)
    for step in range(3):
        for optimizer in (own, theirs):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (step + 1)
            optimizer.zero_grad()
        backward(plain, wrapped, step)
        own.step(), theirs.step()
        equal_weights(plain, wrapped)


@case
def a_learning_rate_finder():
    """states of model and optimizer saved, a few steps with growing rates, and loaded back"""
    plain, own, wrapped, theirs = trains(kind=lambda p: torch.optim.AdamW(p, lr=0.01))
    before = copy.deepcopy(plain.state_dict()), copy.deepcopy(own.state_dict())
    saved = wrapped.state_dict(), copy.deepcopy(theirs.state_dict())
    file = io.BytesIO()
    torch.save(saved, file)
    for step in range(3):
        for optimizer in (own, theirs):
            optimizer.param_groups[0]["lr"] *= 10
        own.zero_grad(), theirs.zero_grad()
        backward(plain, wrapped, step)
        own.step(), theirs.step()
    file.seek(0)
    saved = torch.load(file)
    plain.load_state_dict(before[0]), own.load_state_dict(before[1])
    wrapped.load_state_dict(saved[0]), theirs.load_state_dict(saved[1])
    equal_weights(plain, wrapped)
    own.zero_grad(), theirs.zero_grad()
    backward(plain, wrapped, 5)
    own.step(), theirs.step()
    equal_weights(plain, wrapped)


class Checkpointed(Net):
    def forward(self, x):
        x = torch.utils.checkpoint.checkpoint(
            lambda x: torch.tanh(self.first(x)), x, use_reentrant=False
        )
        return self.last(torch.tanh(self.second(x)))


@case
def gradient_checkpointing():
    """`torch.utils.checkpoint.checkpoint(...)` in the model"""
    torch.manual_seed(0)
    plain = Checkpointed()
    wrapped = RaNNCModule(copy.deepcopy(plain), config=pair()[2].config)
    backward(plain, wrapped)
    for name, each in wrapped.named_parameters(from_global=False):
        torch.testing.assert_close(each.grad, plain.get_parameter(name).grad)


@case
def hooks_on_saved_tensors_around_the_model():
    """`checkpoint(model, batch)`, `with save_on_cpu():` around the wrapped model"""
    from torch.autograd.graph import save_on_cpu
    from torch.utils.checkpoint import checkpoint

    def on_cpu(model, batch):
        with save_on_cpu():
            return model(batch)

    for call in (
        lambda model, batch: checkpoint(model, batch, use_reentrant=False),
        lambda model, batch: checkpoint(model, batch, use_reentrant=True),
        on_cpu,
    ):
        plain, own, wrapped, theirs = pair()
        for step in range(2):
            own.zero_grad(), theirs.zero_grad()
            batch = rows(seed=step).requires_grad_()
            plain(batch).square().mean().backward()
            call(wrapped, mine(batch.detach()).requires_grad_()).square().mean().backward()
            own.step(), theirs.step()
            equal_weights(plain, wrapped)


@case
def evaluations_in_between():
    """`inference_mode()`, `no_grad()`, `eval()` and back, between forward and backward, too"""

    def look(model, _):
        batch = rows(seed=7) if model.__class__ is Net else mine(rows(seed=7))
        with torch.inference_mode():
            one = model.eval()(batch).clone()
        with torch.no_grad():
            other = model.train()(batch)
        torch.testing.assert_close(one, other)

    trains(between=look)
    plain, own, wrapped, theirs = pair()
    one, other = plain(rows()).square().mean(), wrapped(mine(rows())).square().mean()
    look(plain, 0), look(wrapped, 0)
    one.backward(), other.backward()
    own.step(), theirs.step()
    equal_weights(plain, wrapped)


@case
def functional_calls():
    """`torch.func.functional_call(model, parameters, batch)`, also after the first call"""
    plain, _, wrapped, _ = pair()
    wrapped(mine(rows()))
    others = {name: torch.full(p.shape, 0.1) for name, p in plain.named_parameters()}
    found = torch.func.functional_call(wrapped, others, (mine(rows()),))
    torch.testing.assert_close(found, mine(torch.func.functional_call(plain, others, (rows(),))))
    backward(plain, wrapped)
    for name, each in wrapped.named_parameters(from_global=False):
        torch.testing.assert_close(each.grad, plain.get_parameter(name).grad)


@case
def other_default_dtypes_and_anomaly_mode():
    """`torch.set_default_dtype(torch.float64)` in the middle; anomaly mode"""

    plain, own, wrapped, theirs = pair()
    batches = [rows(seed=step) for step in range(3)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0) for _ in range(2)]
    try:
        for batch in batches:
            own.zero_grad(), theirs.zero_grad()
            scalers[0].scale(plain(batch).square().mean()).backward()
            scalers[1].scale(wrapped(mine(batch)).square().mean()).backward()
            for scaler, optimizer in zip(scalers, (own, theirs), strict=True):
                scaler.step(optimizer)
                scaler.update()
            torch.set_default_dtype(torch.float64)
        equal_weights(plain, wrapped)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.autograd.set_detect_anomaly(True):
        trains()


@case
def two_models_of_a_gan():
    """a GAN: two wrapped models, one of which feeds the other"""
    torch.manual_seed(0)
    plain = [Net(), Net()]
    models = copy.deepcopy(plain)
    own = [torch.optim.SGD(each.parameters(), lr=0.1) for each in plain]
    theirs = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
    config = Config(partition_num=min(SIZE, 2), calibrate=False)
    made = RaNNCModule(models[0], theirs[0], config, outside_loss="sum")
    judge = RaNNCModule(models[1], theirs[1], config)
    _gan(plain, own, made, judge, theirs)


def _gan(plain, own, made, judge, theirs, other_rows=False, beside=0.0):
    """``other_rows``: ranks have other numbers of them. ``beside``: the factor of another term of
    the maker's loss, a mean over rows, as of pix2pix."""

    def uneven(batch):
        ends = [*[0, *range(2, len(batch) - 2, 5)][:SIZE], len(batch)]
        return batch[ends[RANK] : ends[RANK + 1]]

    cut_one = uneven if other_rows else mine
    for step in range(3):
        noise, real = rows(seed=step), rows(seed=9)
        for maker, critic, optimizers, cut in (
            (plain[0], plain[1], own, lambda x: x), (made, judge, theirs, cut_one),
        ):  # fmt: skip
            critic.zero_grad()
            fake = maker(cut(noise))
            (critic(cut(real)).square().mean() - critic(fake.detach()).square().mean()).backward()
            optimizers[1].step()
            maker.zero_grad()
            pairs = torch.cat([fake, cut(real)])  # as a conditional one sees them
            loss = critic(pairs).square().mean()
            (loss + beside * (fake - cut(real)).abs().mean()).backward()
            optimizers[0].step()
        equal_weights(plain[0], made), equal_weights(plain[1], judge)


@case
def a_gan_as_it_stands_elsewhere():
    """a GAN with `outside_loss="mean"` for both models, also with an L1 loss as in pix2pix"""
    for other_rows, beside in ((False, 0.0), (False, 0.5), (True, 0.5)):
        torch.manual_seed(0)
        plain = [Net(), Net()]
        models = copy.deepcopy(plain)
        own = [torch.optim.SGD(each.parameters(), lr=0.1) for each in plain]
        theirs = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
        config = Config(partition_num=min(SIZE, 2), calibrate=False)
        wrapped = [
            RaNNCModule(model, optimizer, config)
            for model, optimizer in zip(models, theirs, strict=True)
        ]
        _gan(plain, own, *wrapped, theirs, other_rows, beside)


@case
def initialisations_by_apply():
    """`model.apply(initialise)` after wrapping (equal), after the first call (error)"""

    def initialise(module):
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.05)
            nn.init.zeros_(module.bias)

    def normal(module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.bias)

    _, _, wrapped, _ = trains(wrapping=lambda model: model.apply(initialise))
    with contextlib.nullcontext() if SIZE == 1 else elsewhere():
        wrapped.apply(normal)


@case
def averages_by_name():
    """an EMA with `register()`, `update()`, `apply_shadow()`, `restore()`, by names"""

    class Average:
        def __init__(self, model):
            self.model, self.kept = model, {}
            self.shadow = {n: p.data.clone() for n, p in model.named_parameters()}

        def update(self):
            for name, p in self.model.named_parameters():
                self.shadow[name] = (1.0 - 0.9) * p.data + 0.9 * self.shadow[name]

        def apply(self):
            for name, p in self.model.named_parameters():
                self.kept[name] = p.data
                p.data = self.shadow[name]

        def restore(self):
            for name, p in self.model.named_parameters():
                p.data = self.kept[name]

    plain, own, wrapped, theirs = trains()
    averages = Average(plain), Average(wrapped)
    for step in range(3):
        own.zero_grad(), theirs.zero_grad()
        backward(plain, wrapped, step)
        own.step(), theirs.step()
        for each in averages:
            each.update()
    for each in averages:
        each.apply()
    equal_weights(plain, wrapped)
    with torch.no_grad():
        torch.testing.assert_close(wrapped(mine(rows())), mine(plain(rows())))
    for each in averages:
        each.restore()
    equal_weights(plain, wrapped)


@case
def schedulers_and_averaged_rates():
    """`swa_utils.SWALR`, `OneCycleLR`, `ReduceLROnPlateau` by the loss of all ranks"""
    from torch.optim import lr_scheduler

    plain, own, wrapped, theirs = pair()
    made = [
        (lr_scheduler.OneCycleLR(o, 0.2, total_steps=9), swa_utils.SWALR(o, 0.05),
         lr_scheduler.ReduceLROnPlateau(o, patience=0))
        for o in (own, theirs)
    ]  # fmt: skip
    for step in range(6):
        own.zero_grad(), theirs.zero_grad()
        backward(plain, wrapped, step)
        own.step(), theirs.step()
        for one_cycle, averaged, plateau in made:
            one_cycle.step() if step < 3 else averaged.step()
            plateau.step(float(step))
        equal_weights(plain, wrapped)


@case
def second_derivatives_are_an_error():
    """a gradient penalty: `torch.autograd.grad(..., create_graph=True)`"""
    _, _, wrapped, _ = pair()
    batch = mine(rows()).requires_grad_()
    loss = wrapped(batch).square().mean()
    with raises("create_graph=True"):
        torch.autograd.grad(loss, batch, create_graph=True)


@case
def hooks_for_all_modules():
    """`register_module_forward_hook`, `register_module_full_backward_hook`: for all modules"""
    from torch.nn.modules import module

    for add in (
        module.register_module_forward_hook,
        module.register_module_forward_pre_hook,
        module.register_module_full_backward_hook,
    ):
        _, _, wrapped, _ = pair()
        handle = add(lambda *_: None)
        try:
            with raises("hook for all modules"):
                wrapped(mine(rows()))
        finally:
            handle.remove()
        wrapped(mine(rows()))


@case
def tensors_that_forward_leaves_in_attributes():
    """`loss + model.aux`, `sum(model.losses)`: tensors that forward() leaves in attributes"""

    class Leaving(Net):
        def __init__(self):
            super().__init__()
            self.aux, self.losses = 0.0, []

        def forward(self, x):
            y = super().forward(x)
            self.aux = y.abs().mean()
            self.losses.append(y.square().mean())
            return y

    torch.manual_seed(0)
    model = Leaving()
    wrapped = RaNNCModule(model, config=Config(partition_num=min(SIZE, 2), calibrate=False))
    for step in range(2):
        model.losses = []
        loss = wrapped(mine(rows(seed=step))).square().mean()
        with raises("'aux' of the model is a tensor that forward() leaves in an attribute"):
            loss = loss + model.aux
        with raises("'losses' of the model is a tensor that forward() leaves in an attribute"):
            loss = loss + sum(model.losses)
        loss.backward()


LEFT = []


@case
def tensors_that_forward_leaves_around_the_model():
    """`LOSSES.append(aux)`, `global HIDDEN`: tensors that forward() leaves in globals"""

    class Leaving(Net):
        def forward(self, x):
            y = super().forward(x)
            LEFT.append(y.abs().mean())
            return y

    torch.manual_seed(0)
    config = Config(partition_num=min(SIZE, 2), calibrate=False)
    wrapped = RaNNCModule(Leaving(), config=config)
    for step in range(2):
        LEFT.clear()
        loss = wrapped(mine(rows(seed=step))).square().mean()
        with raises("LEFT' is outside of the model, and a tensor that forward() leaves there"):
            loss = loss + sum(LEFT)
        loss.backward()


@case
def what_state_dict_gives_written_to():
    """`for a, b in zip(ema.state_dict().values(), model.state_dict().values()): a.copy_(...)`"""
    plain, _, wrapped, _ = pair()
    average = copy.deepcopy(wrapped)
    backward(plain, wrapped)
    wrong = "of what state_dict() has returned was written to"
    for use in (average.state_dict, lambda: average(mine(rows()))):
        mean = average.state_dict(rank0_only=False)
        for one, other in zip(
            mean.values(), wrapped.state_dict(rank0_only=False).values(), strict=True
        ):
            one.copy_(0.9 * one + 0.1 * other)
        with raises(wrong):
            use()
    soup, own = wrapped.state_dict(rank0_only=False), plain.state_dict()
    for name in soup:
        soup[name] /= 2
        own[name] /= 2
    wrapped.load_state_dict(soup)
    equal_weights(plain, wrapped)
    torch.testing.assert_close(wrapped(mine(rows())), mine(plain(rows())))


def replicas():
    """As pair(), with the whole model on each rank."""
    plain, own, wrapped, theirs = pair()
    config = Config(partition_num=1, replica_nums=[SIZE], calibrate=False)
    return plain, own, RaNNCModule(wrapped.module, theirs, config), theirs


@case
def rates_that_follow_the_loss_of_one_rank():
    """`ReduceLROnPlateau(optimizer).step(loss)` with another loss on each rank"""
    for made in (pair, replicas):
        plain, _, wrapped, theirs = made()
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, patience=0)
        backward(plain, wrapped)
        theirs.step()
        plateau.step(1.0), plateau.step(1.0 + (RANK == SIZE - 1))
        plateau.step(0.5 if RANK < SIZE - 1 else 2.0)
        if SIZE == 1:
            continue
        backward(plain, wrapped)
        theirs.step()
        with raises("the ranks have stepped the optimizer with different settings:"):
            wrapped(mine(rows()))


@case
def calls_past_the_wrapper():
    """`model.module(batch).backward()`, `model.encode(batch)`, `F.linear(y, model.last.weight)`"""
    for use in (
        lambda model, batch: model.module(batch),
        lambda model, batch: torch.tanh(model.first(batch)),
        lambda model, batch: model(batch) @ model.last.weight,
    ):
        plain, _, wrapped, theirs = replicas()
        backward(plain, wrapped)
        theirs.step(), theirs.zero_grad()
        wrapped(mine(rows())).square().mean().backward()  # all is well after the first step
        theirs.step(), theirs.zero_grad()
        use(wrapped, mine(rows())).square().mean().backward()
        theirs.step(), theirs.zero_grad()
        wrapped.eval()
        wrapped(mine(rows()))  # three steps: not looked at
        with contextlib.nullcontext() if SIZE == 1 else raises("is not the same on ranks 0 and 1"):
            wrapped.state_dict()
        wrapped(mine(rows())).square().mean().backward()
        theirs.step()
        with contextlib.nullcontext() if SIZE == 1 else raises("is not the same on ranks 0 and 1"):
            wrapped(mine(rows()))


@case
def noise_of_each_rank():
    """`p.grad.add_(torch.randn(...))`, `p.add_(noise)` with other numbers on each replica"""
    for change in (
        lambda p: p.grad.add_(torch.randn(p.shape)),
        lambda p: p.data.add_(1e-3 * torch.randn(p.shape)),
    ):
        plain, _, wrapped, theirs = replicas()
        backward(plain, wrapped)
        torch.manual_seed(RANK)
        for p in wrapped.parameters():
            change(p)
        theirs.step()
        with contextlib.nullcontext() if SIZE == 1 else raises("is not the same on ranks 0 and 1"):
            wrapped(mine(rows()))


@case
def buffers_written_by_each_rank():
    """`model.center.lerp_(features.mean(0), 0.1)`: a buffer written with the rows of each rank"""

    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.register_buffer("center", torch.zeros(6))

        def forward(self, x):
            return self.layer(x) - self.center

    torch.manual_seed(0)
    model = Centred()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    config = Config(partition_num=1, replica_nums=[SIZE], calibrate=False)
    wrapped = RaNNCModule(model, optimizer, config)
    features = wrapped(mine(torch.randn(4 * SIZE, 6)))
    features.square().mean().backward()
    wrapped.center.lerp_(features.detach().mean(0), 0.1)
    optimizer.step()
    used = "buffer 'center' is not the same on ranks 0 and 1"
    with contextlib.nullcontext() if SIZE == 1 else raises(used):
        wrapped(mine(torch.randn(4 * SIZE, 6)))


@case
def transforms_of_functions():
    """`torch.func.grad`, `vmap`, `jvp`, forward-mode autograd"""
    from torch.autograd import forward_ad

    _, _, wrapped, _ = pair()
    batch = mine(rows())
    wrapped(batch)

    def tangents():
        with forward_ad.dual_level():
            wrapped(forward_ad.make_dual(batch, torch.ones_like(batch)))

    for use in (
        lambda: torch.func.grad(lambda x: wrapped(x).sum())(batch),
        lambda: torch.vmap(wrapped)(batch.unsqueeze(1)),
        lambda: torch.func.jvp(wrapped, (batch,), (torch.ones_like(batch),)),
        tangents,
    ):
        with raises("a RaNNCModule is called inside"):
            use()


@case
def one_optimizer_over_two_models():
    """one optimizer over two wrapped models, given to neither"""
    torch.manual_seed(0)
    plain = [Net(), Net()]
    config = Config(partition_num=min(SIZE, 2), calibrate=False)
    models = [RaNNCModule(each, config=config) for each in copy.deepcopy(plain)]
    own, theirs = (
        torch.optim.AdamW([p for each in both for p in each.parameters()], lr=0.05)
        for both in (plain, models)
    )
    for step in range(3):
        own.zero_grad(), theirs.zero_grad()
        for one, other in zip(plain, models, strict=True):
            backward(one, other, step)
        own.step(), theirs.step()
        for one, other in zip(plain, models, strict=True):
            equal_weights(one, other)


@case
def the_whole_state_of_one_optimizer_over_two_models_is_an_error():
    """its `state_dict()` and `load_state_dict()`"""
    torch.manual_seed(0)
    config = Config(partition_num=min(SIZE, 2), calibrate=False)
    models = [RaNNCModule(Net(), config=config) for _ in range(2)]
    optimizer = torch.optim.AdamW([p for each in models for p in each.parameters()], lr=0.05)
    for each in models:
        each(mine(rows())).square().mean().backward()
    optimizer.step()
    whole = raises("AdamW steps the parameters of 2 wrapped models")
    with whole if SIZE > 1 else contextlib.nullcontext():
        optimizer.state_dict()
    part = optimizer.state_dict(from_global=False)
    optimizer.load_state_dict(part, from_global=False)


@case
def hooks_of_the_wrapper_and_of_the_optimizer():
    """`model.register_forward_hook`, `optimizer.register_step_pre_hook`: of the wrapper itself"""
    for trained in (False, True):
        plain, own, wrapped, theirs = trains() if trained else pair()
        seen = []
        wrapped.register_forward_hook(lambda *given, seen=seen: seen.append(given[-1].shape))
        for model, optimizer in ((plain, own), (wrapped, theirs)):
            model.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
            optimizer.register_step_pre_hook(
                lambda *_, model=model: clip_grad_norm_(model.parameters(), 0.01) and None
            )
            optimizer.register_step_post_hook(
                lambda optimizer, *_: [
                    p.data.mul_(0.9) for p in optimizer.param_groups[0]["params"]
                ]
            )
        for step in range(2):
            own.zero_grad(), theirs.zero_grad()
            backward(plain, wrapped, step)
            own.step(), theirs.step()
            equal_weights(plain, wrapped)
        assert seen == [mine(rows()).shape] * 2


class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, task):
        return getattr(self, task)(torch.tanh(self.body(x)))


@case
def heads_in_alternation():
    """`model(batch, task="a")`, then `task="b"`, by AdamW; `zero_grad(set_to_none=False)`"""
    for set_to_none in (True, False):
        torch.manual_seed(0)
        plain = Tasks()
        model = copy.deepcopy(plain)
        own, theirs = (
            torch.optim.AdamW(each.parameters(), lr=0.05, weight_decay=0.3)
            for each in (plain, model)
        )
        wrapped = RaNNCModule(model, theirs, Config(partition_num=min(SIZE, 2), calibrate=False))
        for step, tasks in enumerate((["one"], ["other"], ["one"], ["one", "other"])):
            own.zero_grad(set_to_none), theirs.zero_grad(set_to_none)
            for task in tasks:
                plain(rows(seed=step), task=task).square().mean().backward()
                wrapped(mine(rows(seed=step)), task=task).square().mean().backward()
            own.step(), theirs.step()
            equal_weights(plain, wrapped)


@case
def optimizers_made_anew_and_states_reset():
    """another optimizer after some epochs; `optimizer.state = defaultdict(dict)`"""
    plain, own, wrapped, theirs = trains(kind=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))

    def go_on():
        for step in range(2):
            own.zero_grad(), theirs.zero_grad()
            backward(plain, wrapped, step)
            own.step(), theirs.step()
            equal_weights(plain, wrapped)

    for optimizer in (own, theirs):
        optimizer.state = collections.defaultdict(dict)
    go_on()
    own, theirs = (torch.optim.Adam(each.parameters(), lr=0.01) for each in (plain, wrapped))
    go_on()


class SignMomentum(torch.optim.Optimizer):
    """As one writes one's own."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"], state["step"] = torch.zeros_like(p), 0
                state["step"] += 1
                state["mean"].mul_(0.9).add_(p.grad)
                p.add_(state["mean"].sign(), alpha=-group["lr"] / state["step"])


@case
def an_optimizer_of_ones_own():
    """a class of one's own with `state["mean"] = torch.zeros_like(p)`, of each element alone"""
    trains(kind=SignMomentum)


@case
def noise_with_one_seed():
    """`p.grad.add_(torch.randn_like(p.grad))` after `torch.manual_seed(step)` on all ranks"""

    def add(model, step):
        torch.manual_seed(step)
        for p in model.parameters():
            p.grad.add_(torch.randn_like(p.grad), alpha=0.1)

    trains(between=add)


@case
def hooks_of_parameters():
    """`p.register_hook(lambda g: 2 * g)`, `p.register_post_accumulate_grad_hook(step)`"""

    def double(model):
        for p in model.parameters():
            p.register_hook(lambda gradient: 2 * gradient)

    plain, _, wrapped, _ = trains(wrapping=double)

    def step_at_once(p):
        with torch.no_grad():
            p.add_(p.grad, alpha=-0.1)
        p.grad = None

    for model in (plain, wrapped):
        double(model)
        for p in model.parameters():
            handle = p.register_post_accumulate_grad_hook(step_at_once)
    for step in range(2):
        backward(plain, wrapped, step)
        equal_weights(plain, wrapped)
    handle.remove()


@case
def losses_with_factors_and_hooks_of_outputs():
    """`loss.backward(gradient=...)`, `torch.autograd.backward([a, b])`, `output.retain_grad()`"""
    plain, own, wrapped, theirs = pair()
    for model, batch in ((plain, rows()), (wrapped, mine(rows()))):
        model(batch).square().mean().backward(gradient=torch.tensor(2.0))
        output = model(batch)
        output.retain_grad()
        output.register_hook(lambda gradient: 3 * gradient)
        torch.autograd.backward([output.square().mean(), model(batch).abs().mean()])
        assert output.grad is not None
    own.step(), theirs.step()
    equal_weights(plain, wrapped)


@case
def profiled():
    """`with torch.profiler.profile():` around steps"""
    _, _, wrapped, theirs = trains(steps=1)
    with torch.profiler.profile() as profile:
        theirs.zero_grad()
        wrapped(mine(rows())).square().mean().backward()
    used = {each.key for each in profile.key_averages()}
    here = any("weight" in name for name, _ in wrapped.named_parameters(from_global=False))
    assert "aten::addmm" in used or not here


class Normalised(Net):
    def __init__(self):
        super().__init__()
        parametrizations.weight_norm(self.second)
        self.more = parametrizations.spectral_norm(nn.Linear(6, 6))
        self.turn = parametrizations.orthogonal(nn.Linear(6, 6))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return super().forward(self.norm(self.turn(self.more(x))))


@case
def normalised_weights_and_frozen_statistics():
    """`weight_norm`, `spectral_norm`, `orthogonal` (equal); `swa_utils.update_bn` (error)"""
    torch.manual_seed(0)
    plain = Normalised()
    model = copy.deepcopy(plain)
    own, theirs = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, model))
    config = Config(partition_num=min(SIZE, 2), calibrate=False, sync_batch_norm=True)
    wrapped = RaNNCModule(model, theirs, config)
    for step in range(4):
        if step == 2:
            for each in (plain, wrapped):
                each.norm.eval()
        own.zero_grad(), theirs.zero_grad()
        backward(plain, wrapped, step)
        own.step(), theirs.step()
        equal_weights(plain, wrapped)
    wrapped.norm.train()
    with raises("as torch.optim.swa_utils.update_bn() sets it"):
        swa_utils.update_bn([mine(rows())], wrapped)


@case
def averages_by_lists():
    """`torch._foreach_lerp_(ema, parameters, 0.1)`; `swa_utils.get_ema_multi_avg_fn`"""
    plain, own, wrapped, theirs = pair()
    averages = [copy.deepcopy(each) for each in (plain, wrapped)]
    made = [
        swa_utils.AveragedModel(each, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
        for each in (plain, wrapped)
    ]
    averages[1](mine(rows()))
    for step in range(3):
        own.zero_grad(), theirs.zero_grad()
        backward(plain, wrapped, step)
        own.step(), theirs.step()
        for model, average, other in zip((plain, wrapped), averages, made, strict=True):
            other.update_parameters(model)
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.1)
    equal_weights(*averages)
    equal_weights(made[0].module, made[1].module)


class Activated(Net):
    def __init__(self):
        super().__init__()
        self.act, self.mask = torch.tanh, torch.ones(6)
        self.args, self.scales = types.SimpleNamespace(scale=1.0), {"a": 1.0}

    def forward(self, x):
        return self.act(super().forward(x)) * self.mask * self.args.scale * self.scales["a"]


@case
def functions_tensors_and_settings_changed():
    """`model.act = torch.relu`, `model.mask = mask`, `model.args.scale = 0.5` after a call"""
    torch.manual_seed(0)
    plain = Activated()
    model = copy.deepcopy(plain)
    own, theirs = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, model))
    wrapped = RaNNCModule(model, theirs, Config(partition_num=min(SIZE, 2), calibrate=False))
    for step, change in enumerate((
        lambda model: None,
        lambda model: setattr(model, "act", torch.relu),
        lambda model: setattr(model, "mask", torch.full((6,), 0.5)),
        lambda model: setattr(model.args, "scale", 0.5),
        lambda model: model.scales.update(a=3.0),
    )):  # fmt: skip
        change(plain), change(wrapped)
        own.zero_grad(), theirs.zero_grad()
        backward(plain, wrapped, step)
        own.step(), theirs.step()
        equal_weights(plain, wrapped)


class Phase(enum.Enum):
    WARM_UP, MAIN = 1, 2


class Configured(Net):
    def __init__(self):
        super().__init__()
        self.rate, self.phase, self.table = np.float32(1), Phase.WARM_UP, np.ones(2)

    def forward(self, x):
        factor = float(self.rate) * float(self.table[0]) * (2 if self.phase is Phase.MAIN else 1)
        return super().forward(x) * factor * getattr(self, "gamma", 1.0)


def twins(kind, **settings):
    """As pair(), of another model, which is always cut."""
    torch.manual_seed(0)
    plain = kind()
    model = copy.deepcopy(plain)
    own, theirs = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, model))
    config = Config(partition_num=min(SIZE, 2), calibrate=False, **settings)
    return plain, own, RaNNCModule(model, theirs, config), theirs


def step_alike(plain, own, wrapped, theirs, seed, *given):
    """One step of both, with ``given`` beside the rows; weights are equal afterwards."""
    own.zero_grad(), theirs.zero_grad()
    plain(rows(seed=seed), *given).square().mean().backward()
    wrapped(mine(rows(seed=seed)), *given).square().mean().backward()
    own.step(), theirs.step()
    equal_weights(plain, wrapped)


@case
def numbers_of_numpy_enumerators_and_new_attributes():
    """`model.rate = np.float32(2)`, `model.phase = Phase.MAIN`, `model.gamma = 3.0`, new to it"""
    both = twins(Configured)
    plain, _, wrapped, _ = both
    for step, change in enumerate((
        lambda model: None,
        lambda model: setattr(model, "rate", np.float32(2)),
        lambda model: setattr(model, "phase", Phase.MAIN),
        lambda model: setattr(model, "table", np.full(2, 0.5)),
        lambda model: setattr(model, "gamma", 3.0),
        lambda model: delattr(model, "gamma"),
    )):  # fmt: skip
        change(plain), change(wrapped)
        step_alike(*both, step)


class Told(Net):
    """Computes with settings among its arguments."""

    def forward(self, x, args, table, tags, state):
        factor = args.alpha * float(table[0]) * state.rate
        return super().forward(x) * (2 * factor if "twice" in tags else factor)


class State:
    def __init__(self):
        self.rate = 1.0


@case
def settings_among_the_arguments():
    """`model(x, args)`, then `args.alpha = 0.5`; so with arrays of numpy, sets and other objects"""
    both = twins(Told)
    args, table, tags, state = argparse.Namespace(alpha=1.0), np.ones(3), set(), State()
    for step, change in enumerate((
        lambda: None,
        lambda: setattr(args, "alpha", 0.5),
        lambda: table.fill(2),
        lambda: tags.add("twice"),
        lambda: setattr(state, "rate", 3.0),
    )):  # fmt: skip
        change()
        step_alike(*both, step, args, table, tags, state)


class Asking(Net):
    def forward(self, x):
        scores = super().forward(x)
        return scores if torch.is_grad_enabled() else scores.softmax(-1)


@case
def a_model_that_asks_for_the_grad_mode():
    """`if torch.is_grad_enabled():` in forward(), as for probabilities in evaluation"""
    for front_end in ("torchscript", "export"):
        both = twins(Asking, frontend=front_end)
        for step in range(2):
            step_alike(*both, step)
            with torch.no_grad():
                torch.testing.assert_close(both[2](mine(rows())), both[0](mine(rows())))


class Dropping(Net):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training) * self.scale


@case
def initialised_through_the_wrapper_and_states_with_hooks():
    """`model.apply(init)`, `model.register_state_dict_post_hook(...)`, `model.training = False`"""
    both = twins(Dropping)
    plain, _, wrapped, _ = both

    def init(module):
        if isinstance(module, Dropping):
            nn.init.constant_(module.scale, 3.0)

    for model in (plain, wrapped):
        model.apply(init)
        model.training = False
    for step in range(2):
        step_alike(*both, step)
    wrapped.register_state_dict_post_hook(
        lambda module, state, prefix, _: state.update({f"{prefix}kind": type(module).__name__})
    )
    assert wrapped.state_dict(rank0_only=False)["kind"] == "Dropping"


@case
def layers_added_later():
    """`model.layers.append(nn.Linear(...))` after the first call"""
    _, _, wrapped, _ = trains(steps=1)
    wrapped.module.more = nn.Linear(6, 6)
    with raises("'more' of the model was added after the first call"):
        wrapped(mine(rows()))


@case
def what_forward_keeps_of_its_first_call():
    """`if self.mean is None: self.mean = x.mean(0)`: what forward() keeps of its first call"""

    class Centred(Net):
        mean = None

        def forward(self, x):
            if self.mean is None:
                self.mean = x.mean(0).detach()
            return super().forward(x - self.mean)

    config = Config(partition_num=min(SIZE, 2), calibrate=False)
    with raises("would compute something else: 'mean'"):
        RaNNCModule(Centred(), config=config)(mine(rows()))


if __name__ == "__main__":
    main(CASES)
