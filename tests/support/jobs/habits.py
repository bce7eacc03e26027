"""Habits of PyTorch users around the plain loop, on several ranks: works, or is told why not.

Run by mpirun; each rank reports for each case what went wrong, and the errors that were expected.
"""

import contextlib
import copy
import io
import os
import pickle
import sys
import tempfile
import traceback

import reports
import torch
from torch import nn

# Imported before pyrannc, as scripts do.
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm, prune

import pyrannc
from pyrannc import Config, RaNNCError, RaNNCModule, launch
from pyrannc.running import call_kinds

RANK, SIZE = pyrannc.get_rank(), pyrannc.get_world_size()
CASES = {}
ERRORS = []  # the first lines of those that the case at work has expected


def case(function):
    CASES[function.__name__] = function
    return function


class Net(nn.Module):
    """Two layers, tied to a third, and a dropout whose probability is an attribute."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.beta = 0.5

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))) * self.beta)


def rows(count=4, seed=0):
    return torch.randn(count * SIZE, 6, generator=torch.Generator().manual_seed(seed))


def mine(batch):
    return batch.chunk(SIZE)[RANK]


def pair(**settings):
    """The plain model, and a wrapped one of the same weights, with an optimizer each."""
    torch.manual_seed(0)
    plain = Net()
    model = copy.deepcopy(plain)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, model)]
    config = Config(partition_num=min(SIZE, 2), calibrate=False, **settings)
    return plain, optimizers[0], RaNNCModule(model, optimizers[1], config), optimizers[1]


def backward(plain, wrapped, seed=0):
    plain(rows(seed=seed)).square().mean().backward()
    wrapped(mine(rows(seed=seed))).square().mean().backward()


def equal_weights(plain, wrapped):
    state = wrapped.state_dict(rank0_only=False)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name], value)


def shared_path(path):
    """That of rank 0, on all ranks."""
    return launch.world().broadcast(path.encode(), 0).decode() + ".group"


@contextlib.contextmanager
def process_group(path):
    """torch.distributed's, of the same ranks."""
    torch.distributed.init_process_group("gloo", f"file://{path}", rank=RANK, world_size=SIZE)
    try:
        yield
    finally:
        pyrannc.barrier()  # a rank that is late finds the connections of the others closed
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def raises(match, kind=RaNNCError):
    try:
        yield
    except kind as error:
        if isinstance(error, RaNNCError):
            ERRORS.append(str(error).splitlines()[0])
        assert match in str(error), f"{match!r} is not in: {error}"
    else:
        raise AssertionError(f"no error; expected {match!r}")


@case
def clip_grad_norm_is_that_of_the_whole_model():
    """`clip_grad_norm_(model.parameters(), x, norm_type)`, imported before pyrannc"""
    for kind in (2.0, 1.0, float("inf"), 0.5):
        plain, own, wrapped, theirs = pair()
        backward(plain, wrapped)
        expected = clip_grad_norm_(plain.parameters(), 0.1, kind)
        found = clip_grad_norm_(wrapped.parameters(), 0.1, kind)
        torch.testing.assert_close(found, expected)
        own.step(), theirs.step()
        equal_weights(plain, wrapped)


@case
def clip_grad_norm_of_some_parameters():
    """`clip_grad_norm_(model.head.parameters(), x)`: a norm of some parameters"""
    plain, own, wrapped, theirs = pair()
    backward(plain, wrapped)
    for name in ("second", "last"):
        expected = clip_grad_norm_(getattr(plain, name).parameters(), 0.01)
        torch.testing.assert_close(
            clip_grad_norm_(getattr(wrapped, name).parameters(), 0.01), expected
        )
    own.step(), theirs.step()
    equal_weights(plain, wrapped)


@case
def clip_grad_norm_of_the_optimizers_groups():
    """`clip_grad_norm_(optimizer.param_groups[0]["params"], x)`"""
    plain, own, wrapped, theirs = pair()
    backward(plain, wrapped)
    expected = clip_grad_norm_(own.param_groups[0]["params"], 0.1)
    torch.testing.assert_close(clip_grad_norm_(theirs.param_groups[0]["params"], 0.1), expected)


@case
def norm_and_clipping_in_two_steps():
    """`get_total_norm(...)`, then `clip_grads_with_norm_(...)`"""
    plain, own, wrapped, theirs = pair()
    backward(plain, wrapped)
    norms = []
    for model in (plain, wrapped):
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        norms.append(get_total_norm(gradients))
        clip_grads_with_norm_(model.parameters(), 0.1, norms[-1])
    torch.testing.assert_close(norms[1], norms[0])
    own.step(), theirs.step()
    equal_weights(plain, wrapped)


@case
def parameters_keep_length_order_and_what_can_be_read():
    """`len(list(model.parameters()))`, shapes, dtypes, `next(model.parameters()).device`, counts"""
    plain, _, wrapped, _ = pair()
    backward(plain, wrapped)
    expected, found = list(plain.named_parameters()), list(wrapped.named_parameters())
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (_, one), (_, other) in zip(expected, found, strict=True):
        for what in ("shape", "dtype", "device", "requires_grad", "is_leaf", "ndim", "is_meta"):
            assert getattr(one, what) == getattr(other, what), what
        assert one.numel() == other.numel() and one.size(0) == other.size(0)
    own = list(wrapped.parameters(from_global=False))
    assert SIZE == 1 or len(own) < len(found), len(own)  # none on a rank without a stage


@case
def released_parameters_raise_on_use():
    """what another rank holds: `shadow.add_(p)`, `p.norm()`, `copy.deepcopy(p)`"""
    _, _, wrapped, _ = pair()
    wrapped(mine(rows()))
    for parameter in wrapped.parameters():
        if all(parameter is not each for each in wrapped.parameters(from_global=False)):
            for use in (
                lambda p: p.numpy(),
                lambda p: torch.zeros(6, 6).add_(p),
                lambda p: p.detach().tolist(),
                lambda p: p.data.norm(),
                lambda p: copy.deepcopy(p),
                lambda p: copy.deepcopy(p.detach()),
                lambda p: p.copy_(torch.ones(6)),
                lambda p: p @ p,
            ):
                with raises("that this rank has released"):
                    use(parameter)
    with raises("state_dict() of the RaNNCModule"):
        for module in wrapped.model.children():
            module.state_dict()
        raise (
            RaNNCError("state_dict() of the RaNNCModule: nothing was released here")
            if (SIZE == 1)
            else AssertionError
        )
    if SIZE > 1:
        # As after trainer.train(): the script has no RaNNCModule of its own to call.
        with raises("call the RaNNCModule instead, on all ranks (trainer.model_wrapped of"):
            wrapped.module(mine(rows()))


def ema(shadow, parameter):
    """Averages by hand, as libraries write them."""
    yield lambda: shadow.mul_(0.9).add_(parameter, alpha=0.1)
    yield lambda: shadow.lerp_(parameter, 0.2)
    yield lambda: shadow.data.copy_(0.9 * shadow.data + (1 - 0.9) * parameter.data)
    yield lambda: shadow.sub_((1 - 0.9) * (shadow - parameter.detach().to(shadow.device)))
    yield lambda: shadow.copy_(shadow * torch.tensor(0.9) + parameter.float() / torch.tensor(10.0))
    yield lambda: setattr(shadow, "data", torch.lerp(shadow, parameter, torch.tensor(0.3)))


@case
def averages_of_a_copy_are_right_and_saved_whole():
    """averages by hand, `zip(ema.parameters(), model.parameters())`, of a copy wrapped, too"""
    plain, own, wrapped, theirs = pair()
    pairs = [(plain, copy.deepcopy(plain)), (wrapped, copy.deepcopy(wrapped))]
    optimizers = own, theirs
    for seed in range(6):
        own.zero_grad(), theirs.zero_grad()
        backward(plain, wrapped, seed)
        with torch.no_grad():
            for optimizer, (model, shadow) in zip(optimizers, pairs, strict=True):
                optimizer.step()
                for averaged, each in zip(shadow.parameters(), model.parameters(), strict=True):
                    list(ema(averaged, each))[seed]()
                parameters = list(shadow.parameters()), list(model.parameters())
                torch._foreach_lerp_(*parameters, 0.1)
                torch._foreach_mul_(parameters[0], 0.9)
                torch._foreach_add_(*parameters, alpha=0.1)
    (_, expected), (_, shadow) = pairs
    equal_weights(expected, shadow)
    expected.eval(), shadow.eval()
    with torch.no_grad():
        torch.testing.assert_close(shadow(mine(rows())), mine(expected(rows())))
    names = {name for name, _ in shadow.named_parameters(from_global=False)}
    assert names == {name for name, _ in wrapped.named_parameters(from_global=False)}


@case
def averaged_models_of_torch_are_right_and_saved_whole():
    """`torch.optim.swa_utils.AveragedModel(model)`"""
    from torch.optim import swa_utils

    for settings in (
        {},
        {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.8), "use_buffers": True},
        {"avg_fn": swa_utils.get_ema_avg_fn(0.8)},
    ):
        plain, own, wrapped, theirs = pair()
        both = [swa_utils.AveragedModel(each, **settings) for each in (plain, wrapped)]
        for seed in range(4):
            own.zero_grad(), theirs.zero_grad()
            backward(plain, wrapped, seed)
            own.step(), theirs.step()
            both[0].update_parameters(plain), both[1].update_parameters(wrapped)
        equal_weights(both[0].module, both[1].module)
        expected, state = both[0].state_dict(), both[1].state_dict()
        if RANK == 0:
            assert list(state) == list(expected) and state["n_averaged"] == 4
            for name, value in expected.items():
                torch.testing.assert_close(state[name], value)
        torch.testing.assert_close(both[1](mine(rows())), mine(both[0](rows())))
        # A dict that is still there has n_averaged itself, which is no copy.
        both[1].update_parameters(wrapped)
        both[1](mine(rows()))


@case
def a_shadow_with_values_beside_a_released_parameter_is_an_error():
    """averages by hand of a copy that was made before wrapping"""
    plain, _, wrapped, _ = pair()
    wrapped(mine(rows()))
    held = {id(each) for each in wrapped.parameters(from_global=False)}
    for (name, own), each in zip(plain.named_parameters(), wrapped.parameters(), strict=True):
        for use in (
            ()
            if id(each) in held
            else (
                lambda s, p: s.detach().lerp_(p, 0.1),
                lambda s, p: s.detach().mul_(0.9).add_(p.detach(), alpha=0.1),
                lambda s, p: torch._foreach_lerp_([s.detach()], [p], 0.1),
                lambda s, p: p.detach().copy_(s),
            )
        ):
            with raises(f"'{name}'"):
                use(own, each)
            with raises("with values, torch.float32"):
                use(own, each)


@case
def a_plain_attribute_set_later_counts():
    """`model.beta = 0.3`, `dropout.p = 0.2` after the first call"""
    plain, own, wrapped, theirs = pair()
    for beta, target in ((0.5, None), (0.25, "model"), (2.0, "wrapper"), (0.5, "model")):
        if target:
            plain.beta = beta
            (wrapped if target == "wrapper" else wrapped.model).beta = beta
        own.zero_grad(), theirs.zero_grad()
        backward(plain, wrapped)
        own.step(), theirs.step()
        equal_weights(plain, wrapped)
    assert wrapped.model.beta == 0.5


@case
def the_first_forward_is_in_a_closure():
    """`optimizer.step(closure)`, with the first forward pass in the closure"""
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        plain, _, wrapped, _ = pair()
        own, theirs = (kind(each.parameters(), lr=0.1) for each in (plain, wrapped.module))
        wrapped = RaNNCModule(wrapped.module, theirs, wrapped.config)

        def closure(optimizer, model, batch):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        for seed in range(3):
            whole = rows(seed=seed)
            own.step(lambda: closure(own, plain, whole))  # noqa: B023
            assert theirs.step(lambda: closure(theirs, wrapped, mine(whole))).dim() == 0  # noqa: B023
            equal_weights(plain, wrapped)


@case
def several_optimizers_step_their_parts():
    """`RaNNCModule(model, [optimizer_a, optimizer_b])`"""
    plain, _, wrapped, _ = pair()
    pairs = []
    for model in (plain, wrapped.module):
        second = [p for name, p in model.named_parameters() if name == "second.weight"]
        others = [p for name, p in model.named_parameters() if name != "second.weight"]
        pairs.append(
            [torch.optim.AdamW(second, lr=0.1), torch.optim.SGD(others, lr=0.1, momentum=0.9)]
        )
    own, theirs = pairs
    wrapped = RaNNCModule(wrapped.module, theirs, wrapped.config)
    for seed in range(3):
        plain.zero_grad(), wrapped.zero_grad()
        backward(plain, wrapped, seed)
        for each in (*own, *theirs):
            each.step()
        equal_weights(plain, wrapped)
    held = sum(len(each.param_groups[0]["params"]) for each in theirs)
    assert held == len(list(wrapped.parameters(from_global=False)))


class Text(nn.Module):
    """One layer of attention with a mask of four dimensions, and a loss that leaves out labels."""

    def __init__(self):
        super().__init__()
        self.embed, self.query, self.head = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 9)

    def forward(self, ids, batch=None, labels=None):
        hidden = self.embed(ids)
        scores = self.query(hidden) @ hidden.mT + batch["mask"].squeeze(1)
        logits = self.head(torch.softmax(scores, -1) @ hidden) * batch["weights"].unsqueeze(-1)
        if labels is None:
            return logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


PAD = {"ids": 8, "batch['mask']": -1e4, "batch.weights": 0.0, "labels": -100}


def text_of(rank, seed, length=None):
    """A batch of a rank's own length, if none is given."""
    made = torch.Generator().manual_seed(100 * seed + rank)
    length = length or (5, 3, 7, 4)[(rank + seed) % 4]
    ids = torch.randint(0, 8, (2, length), generator=made)
    batch = {
        "mask": torch.randn(2, 1, length, length, generator=made),
        "weights": torch.rand(2, length, generator=made),
    }
    return ids, batch, torch.randint(0, 9, (2, length), generator=made)


def one_batch_of(texts, side):
    """Those of all ranks, padded by hand."""
    longest = max(ids.shape[1] for ids, _, _ in texts)

    def padded(tensor, value):
        more = longest - tensor.shape[-1]
        width = [more, 0] if side == "left" else [0, more]
        return nn.functional.pad(tensor, width * (tensor.dim() // 2), value=value)

    ids = torch.cat([padded(ids, 8) for ids, _, _ in texts])
    mask = torch.cat([padded(batch["mask"], -1e4) for _, batch, _ in texts])
    weights = torch.cat([padded(batch["weights"], 0.0) for _, batch, _ in texts])
    labels = torch.cat([padded(labels, -100) for _, _, labels in texts])
    return ids, {"mask": mask, "weights": weights}, labels


@case
def ranks_of_different_lengths_are_padded_to_the_longest():
    """`RaNNCModule(..., pad={"ids": 0})`: ranks with different lengths in one step"""
    for side, stages in (("right", min(SIZE, 2)), ("left", 1)):
        torch.manual_seed(0)
        plain = Text()
        model = copy.deepcopy(plain)
        own, theirs = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, model))
        config = Config(partition_num=stages, calibrate=False)
        wrapped = RaNNCModule(model, theirs, config, pad=PAD, pad_side=side)
        for seed in (0, 1, 2, 1):
            whole = one_batch_of([text_of(rank, seed) for rank in range(SIZE)], side)
            ids, batch, labels = text_of(RANK, seed)
            own.zero_grad(), theirs.zero_grad()
            expected, found = plain(*whole), wrapped(ids, batch, labels=labels)
            torch.testing.assert_close(found, expected)
            expected.backward(), found.backward()
            for name, parameter in wrapped.named_parameters(from_global=False):
                torch.testing.assert_close(parameter.grad, plain.get_parameter(name).grad)
            own.step(), theirs.step()
            equal_weights(plain, wrapped)
        wrapped.eval()
        with torch.no_grad():  # the labels, which pad names, may be missing later
            found = wrapped(ids, batch)
            torch.testing.assert_close(found, plain(*whole[:2])[2 * RANK : 2 * RANK + 2])


@case
def ranks_forget_the_same_lengths():
    """many different lengths, one after the other, with `pad`"""
    # The length before padding must not count as used: ranks would keep others, and one of them
    # would capture what the other one runs.
    config = Config(partition_num=1, calibrate=False, comm_timeout_s=20.0)
    wrapped = RaNNCModule(Text(), None, config, pad=PAD)
    most, call_kinds.MOST_KINDS = call_kinds.MOST_KINDS, 2
    try:
        for lengths in ((3, 3), (4, 4), (3, 5), (4, 4), (3, 3)):
            ids, batch, labels = text_of(RANK, 0, lengths[RANK % 2])
            wrapped(ids, batch, labels).backward()
    finally:
        call_kinds.MOST_KINDS = most


@case
def lengths_that_differ_without_pad_are_an_error_that_names_it():
    """ranks with different lengths in one step, without `pad`"""
    torch.manual_seed(0)
    config = Config(partition_num=1, calibrate=False)
    ids, batch, labels = text_of(RANK, 0)
    alike = text_of(RANK, 0, length=3)
    for pad in (None, {key: value for key, value in PAD.items() if key != "labels"}):
        wrapped = RaNNCModule(Text(), None, config, pad=pad)
        for first in (alike, (ids, batch, labels)):
            if SIZE == 1 or first is alike:
                wrapped(*first).backward()
                continue
            with raises("RaNNCModule(..., pad={"):
                wrapped(*first)
        if SIZE > 1:
            with raises("RaNNCModule(..., pad={"):
                RaNNCModule(Text(), None, config, pad=pad)(ids, batch, labels)


@case
def a_pad_that_does_not_fit_is_an_error():
    """`pad` for an argument that is not there"""
    config = Config(partition_num=1, calibrate=False)
    for key, more in (("idz", "did you mean 'ids'"), ("batch['masc']", "'batch['mask']'")):
        wrapped = RaNNCModule(Text(), None, config, pad=PAD | {key: 0})
        with raises(f"pad names {key!r}, which is no tensor argument", pyrannc.ConfigError):
            wrapped(*text_of(RANK, 0))
        with raises(more.split("'")[1], pyrannc.ConfigError):
            wrapped(*text_of(RANK, 0))
    with raises("pad_side is 'both'", pyrannc.ConfigError):
        RaNNCModule(Text(), None, config, pad=PAD, pad_side="both")
    with raises("pad['ids'] is None; it must be a number", pyrannc.ConfigError):
        RaNNCModule(Text(), None, config, pad={"ids": None})
    if SIZE > 1:
        wrapped = RaNNCModule(Text(), None, config, pad=PAD)
        wrapped(*text_of(RANK, 0)).backward()
        with raises("the ranks do not do the same"):  # beside what is padded
            wrapped.train(RANK == 0)(*text_of(RANK, 0))
        wrapped = RaNNCModule(Text(), None, config, pad={"ids": RANK})
        with raises("the ranks pad differently", pyrannc.ConfigError):
            wrapped(*text_of(RANK, 0))
        wrapped = RaNNCModule(Text(), None, config, pad=PAD if RANK else None)
        with raises("the ranks pad differently", pyrannc.ConfigError):
            wrapped(*text_of(RANK, 0))


@case
def steps_on_some_ranks_only_are_an_error():
    """`optimizer.step()` on some of the ranks only"""
    _, _, wrapped, optimizer = pair()
    wrapped(mine(rows())).square().mean().backward()
    if RANK == 0 or SIZE == 1:
        optimizer.step()
    if SIZE == 1:
        return
    with raises("not stepped the optimizer equally often"):
        wrapped(mine(rows()))


@case
def torchs_own_grad_scaler_skips_on_all_ranks():
    """`torch.amp.GradScaler`, an overflow on one rank"""
    plain, own, wrapped, theirs = pair()
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**4) for _ in range(2)]
    for step in range(3):
        own.zero_grad(), theirs.zero_grad()
        losses = (
            plain(rows(seed=step)).square().mean(),
            wrapped(mine(rows(seed=step))).square().mean(),
        )
        for scaler, loss in zip(scalers, losses, strict=True):
            scaler.scale(loss).backward()
        if step == 1:  # on the rank that holds it
            plain.second.bias.grad[0] = torch.inf
            for name, each in wrapped.named_parameters(from_global=False):
                if name == "second.bias":
                    each.grad[0] = torch.inf
        for scaler, optimizer in zip(scalers, (own, theirs), strict=True):
            scaler.step(optimizer)
            scaler.update()
    assert scalers[0].get_scale() == scalers[1].get_scale() == 2.0**3
    equal_weights(plain, wrapped)


@case
def an_optimizer_state_of_another_rank_is_refused_and_a_whole_one_is_cut():
    """`optimizer.load_state_dict(state)`: of one process (equal); of another rank"""
    plain, _, wrapped, _ = pair()
    own, theirs = (torch.optim.AdamW(each.parameters(), lr=0.1) for each in (plain, wrapped.model))
    wrapped = RaNNCModule(wrapped.model, theirs, wrapped.config)
    for seed in range(2):
        own.zero_grad(), theirs.zero_grad()
        backward(plain, wrapped, seed)
        own.step(), theirs.step()
        equal_weights(plain, wrapped)
    theirs.load_state_dict(copy.deepcopy(theirs.state_dict()))  # its own
    first = launch.world().broadcast(pickle.dumps(theirs.state_dict(from_global=False)), 0)
    if RANK == SIZE - 1 and SIZE > 1:
        with raises("of another rank or plan"):
            theirs.load_state_dict(pickle.loads(first))
    theirs.load_state_dict(copy.deepcopy(own.state_dict()))  # one process's
    own.zero_grad(), theirs.zero_grad()
    backward(plain, wrapped, 3)
    own.step(), theirs.step()
    equal_weights(plain, wrapped)


class ClippedAdam(torch.optim.Adam):
    """As LAMB does it: with a norm over all parameters, within its step."""

    def step(self, closure=None):
        held = [each for group in self.param_groups for each in group["params"]]
        norm = torch.stack([each.grad.norm() for each in held if each.grad is not None]).norm()
        for each in held:
            if each.grad is not None:
                each.grad.div_(norm)
        return super().step(closure)


@case
def an_optimizer_with_a_norm_over_all_parameters_is_refused_by_name():
    _, _, wrapped, _ = pair()
    model = wrapped.model
    with raises("ClippedAdam computes something of all parameters together"):
        RaNNCModule(model, ClippedAdam(model.parameters()))
    wrapped = RaNNCModule(model, config=wrapped.config)
    late = ClippedAdam(wrapped.parameters())
    wrapped(mine(rows())).square().mean().backward()
    with raises("ClippedAdam computes something of all parameters together"):
        late.step()


@case
def the_state_of_an_optimizer_made_after_wrapping_is_counted():
    for kind, copies in ((torch.optim.AdamW, 2), (torch.optim.SGD, 0)):
        plain, _, wrapped, _ = pair()
        wrapped = RaNNCModule(wrapped.model, config=wrapped.config)
        own, theirs = kind(plain.parameters(), lr=0.1), kind(wrapped.parameters(), lr=0.1)
        for seed in range(2):
            own.zero_grad(), theirs.zero_grad()
            backward(plain, wrapped, seed)
            own.step(), theirs.step()
        equal_weights(plain, wrapped)
        mine_bytes = sum(each.nbytes for each in wrapped.parameters(from_global=False))
        counted = [
            stage.predicted.optimizer_bytes for stage in wrapped.plan.stages if RANK in stage.ranks
        ]
        assert counted == [2 * mine_bytes] * len(counted), counted
        held = sum(
            each.nbytes
            for state in theirs.state.values()
            for each in state.values()
            if each.dim()  # no count of steps
        )
        assert held == copies * mine_bytes, held


@case
def an_optimizer_made_after_wrapping_with_more_state_than_counted_is_a_warning():
    torch.manual_seed(0)
    wrapped = RaNNCModule(nn.Linear(600, 600), config=Config(calibrate=False, replica_nums=[SIZE]))
    late = torch.optim.Adam(wrapped.parameters(), amsgrad=True)
    wrapped(torch.full((2, 600), float(RANK))).sum().backward()
    late.step()  # what it says is read by the test


class Times(nn.Module):
    def forward(self, x, times):
        return x * times


class WithHooks(nn.Module):
    """With hooks of all kinds. Given a target it returns its loss, and trains under 1F1B."""

    def __init__(self, seen):
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
        self.second = nn.Linear(6, 6)
        prune.l1_unstructured(self.second, "weight", 0.3)
        self.relu, self.times, self.loss = nn.ReLU(inplace=True), Times(), nn.MSELoss()

        def look(module, arguments, output):
            module.calls = getattr(module, "calls", 0) + 1  # on the module: no new kind of call
            seen.append((arguments[0].detach().clone(), output.detach().clone()))

        def look_before(module, arguments, options):
            seen.append((arguments[0].detach().clone(), options["times"]))

        self.first.register_forward_hook(look)
        self.relu.register_forward_pre_hook(lambda _, inputs: seen.append((inputs[0].clone(),)))
        self.relu.register_forward_hook(lambda _, arguments, output: seen.append((output.clone(),)))
        self.second.register_forward_hook(lambda module, arguments, output: output * 2)
        self.times.register_forward_pre_hook(look_before, with_kwargs=True)
        self.loss.register_forward_hook(lambda _, arguments, loss: seen.append((loss.detach(),)))

    def forward(self, x, target=None):
        for _ in range(2):  # the hooks of what is called twice are called twice
            x = self.relu(self.first(x))
        x = self.times(self.second(x), times=3)
        return x if target is None else self.loss(x, target)


@case
def hooks_that_look_at_a_module_are_called_once_for_each_call_with_the_own_rows():
    for has_loss in (False, True):
        seen, mine_seen = [], []
        torch.manual_seed(0)
        plain = WithHooks(seen)
        torch.manual_seed(0)
        model = WithHooks(mine_seen)
        wrapped = RaNNCModule(model, config=Config(partition_num=min(SIZE, 2), calibrate=False))
        for step in range(3):
            del seen[:], mine_seen[:]
            call = [rows(seed=step), rows(seed=9)][: 1 + has_loss]
            ours = wrapped(*map(mine, call))
            theirs = plain(*call)
            if not has_loss:
                ours, theirs = ours.square().mean(), theirs.square().mean()
            ours.backward(), theirs.backward()
            assert len(seen) == len(mine_seen) == 7 + has_loss, (len(seen), len(mine_seen))
            for expected, found in zip(seen, mine_seen, strict=True):
                for one, other in zip(expected, found, strict=True):
                    assert not torch.is_tensor(other) or type(other) is torch.Tensor
                    if not torch.is_tensor(one) or one.dim():
                        one = mine(one) if torch.is_tensor(one) else one
                    elif step == 0:  # a loss in the first call is that of the own rows
                        continue
                    torch.testing.assert_close(other, one)
        assert model.first.calls == plain.first.calls == 6
        for name, each in wrapped.named_parameters(from_global=False):
            torch.testing.assert_close(each.grad, plain.get_parameter(name).grad)
        first = len(wrapped.rannc.plan.stages)
        assert first == min(SIZE, 2)


class Branches(nn.Module):
    """With modules that return several tensors, take what needs no gradient, have no rows, or whose
    output counts for nothing."""

    def __init__(self):
        super().__init__()
        self.net, self.two, self.place, self.unused = Net(), Two(), nn.Embedding(6, 6), Net()
        self.loss = nn.MSELoss()

    def forward(self, x, target=None):
        self.unused(x)
        x = self.net(x)
        one, other = self.two(x, x * 0.5, 3)
        y = self.net.second(one) * other + self.place(torch.arange(6)).mean(0)
        return y if target is None else self.loss(y, target)


class Two(nn.Module):
    def forward(self, x, y, times):
        return torch.tanh(x * y), (x + y) * times


def looked_at(model, seen):
    """Full-backward hooks of all modules but ``unused``, and one that is called for nothing."""

    def look(what):
        return lambda module, *gradients: seen.append(
            (what, names[module], [[g if g is None else g.clone() for g in each]
                                   for each in gradients])
        )  # fmt: skip

    names = {module: name for name, module in model.named_modules()}
    for module in names:
        if module is model or isinstance(module, nn.Embedding | nn.MSELoss):
            continue  # no rows, or one number
        module.register_full_backward_hook(look("full"))
        if not isinstance(module, nn.Linear):
            module.register_full_backward_pre_hook(look("pre"))


def flat(lists):
    return [each for part in lists for each in part]


@case
def backward_hooks_that_look_are_called_once_for_each_call_with_the_own_rows():
    """`register_full_backward_hook`, `register_full_backward_pre_hook` of modules that only look"""
    for has_loss, has_hooks in ((False, True), (True, True), (True, RANK == 0)):
        seen, mine_seen = [], []
        torch.manual_seed(0)
        plain = Branches()
        model = copy.deepcopy(plain)
        looked_at(plain, seen)
        if has_hooks:
            looked_at(model, mine_seen)
        wrapped = RaNNCModule(model, config=Config(partition_num=min(SIZE, 2), calibrate=False))
        for step in range(3):
            del seen[:], mine_seen[:]
            call = [rows(seed=step), rows(seed=9)][: 1 + has_loss]
            ours, theirs = wrapped(*map(mine, call)), plain(*call)
            if not has_loss:
                ours, theirs = ours.square().mean(), theirs.square().mean()
            if step == 1:
                ours, theirs = ours * 0.5, theirs * 0.5
            assert not mine_seen
            ours.backward(), theirs.backward()
            for name, each in wrapped.named_parameters(from_global=False):
                torch.testing.assert_close(each.grad, plain.get_parameter(name).grad)
            if not has_hooks:
                assert not mine_seen
                continue
            order = [(what, name) for what, name, _ in seen]
            assert order == [(what, name) for what, name, _ in mine_seen], (order, mine_seen)
            assert ("pre", "unused") not in order and ("full", "net.second") in order
            for (*_, expected), (what, name, found) in zip(seen, mine_seen, strict=True):
                for one, other in zip(flat(expected), flat(found), strict=True):
                    if one is not None and one.dim() and len(one) == len(rows()):
                        one = mine(one)
                    torch.testing.assert_close(
                        other,
                        one,
                        msg=lambda text: f"{what} {name}: {text}",  # noqa: B023
                    )
        assert len(wrapped.rannc.plan.stages) == min(SIZE, 2)


@case
def backward_hooks_come_with_retain_graph_and_not_under_no_grad():
    """the same with `backward(retain_graph=True)`, `torch.no_grad()`, and a hook removed"""
    plain, _, wrapped, _ = pair()
    seen, expected = [], []
    kept = [
        model.second.register_full_backward_hook(lambda _, x, y, to=to: to.append(y[0]))
        for model, to in ((plain, expected), (wrapped.module, seen))
    ]
    with torch.no_grad():
        plain(rows()), wrapped(mine(rows()))
    one, other = plain(rows()).square().mean(), wrapped(mine(rows())).square().mean()
    for times in (True, False):
        one.backward(retain_graph=times), other.backward(retain_graph=times)
    assert len(seen) == len(expected) == 2
    for theirs, ours in zip(expected, seen, strict=True):
        torch.testing.assert_close(ours, mine(theirs))
    for handle in kept:
        handle.remove()
    backward(plain, wrapped)
    assert len(seen) == 2
    for name, each in wrapped.named_parameters(from_global=False):
        torch.testing.assert_close(each.grad, plain.get_parameter(name).grad)


@case
def a_backward_hook_that_returns_something_is_an_error():
    """a backward hook of a module that returns something, or changes it in place"""
    for add, hook in (
        ("register_full_backward_hook", lambda _, gradients, __: (gradients[0] * 2,)),
        ("register_full_backward_pre_hook", lambda _, gradients: (gradients[0] * 2,)),
        (
            "register_full_backward_hook",
            lambda _, gradients, __: gradients[0].mul_(2).tolist() and None,
        ),
    ):
        _, _, wrapped, _ = pair()
        getattr(wrapped.module.second, add)(hook)
        loss = wrapped(mine(rows())).square().mean()
        with raises("a backward hook of 'second' returned or changed a gradient"):
            loss.backward()


@case
def a_backward_hook_that_cannot_be_called_is_an_error_on_every_rank():
    """`register_backward_hook`; a full one of a module whose rows lie in no dimension alone"""
    _, _, wrapped, _ = pair()
    if RANK == SIZE - 1:
        wrapped.module.second.register_backward_hook(lambda *_: None)
    with raises(f"'second' has a backward hook on rank {SIZE - 1} that is none for its full"):
        wrapped(mine(rows()))
    model = nn.Sequential(nn.Linear(6, 6), nn.Flatten(0), nn.Unflatten(0, (-1, 6)))
    wrapped = RaNNCModule(model, config=wrapped.config)
    model[2].register_full_backward_hook(lambda *_: None)
    with raises("'2' has a full backward hook, but in its input0, of shape [*], no dimension"):
        wrapped(mine(rows()))
    for name, shape in (("loss", "which is one number"), ("place", "of shape [6, 6]")):
        model = Branches()
        wrapped = RaNNCModule(model, config=wrapped.config)
        getattr(model, name).register_full_backward_hook(lambda *_: None)
        with raises(f"'{name}' has a full backward hook, but in its output0, {shape}"):
            wrapped(mine(rows()), mine(rows()))
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 6))
    wrapped = RaNNCModule(model, config=wrapped.config)
    model[1].register_full_backward_hook(lambda *_: None)
    with raises("'1' has a full backward hook and changes its argument in place"):
        wrapped(mine(rows()))


@case
def a_hook_added_after_the_first_call_is_an_error_and_one_removed_is_gone():
    _, _, wrapped, _ = pair()
    called = []
    handle = wrapped.module.second.register_forward_hook(lambda *_: called.append(1))
    wrapped(mine(rows())), wrapped(mine(rows()))
    assert len(called) == 2, called
    handle.remove()
    wrapped(mine(rows()))
    assert len(called) == 2, called
    for add in (
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
    ):
        handle = getattr(wrapped.module.last, add)(lambda *_: None)
        with raises("a hook of 'last' was added after the first call"):
            wrapped(mine(rows()))
        handle.remove()


@case
def a_hook_that_is_registered_again_is_called():
    """hooks that the same code registers anew, as `gradient_checkpointing_enable()` does; others"""

    def register(called):
        return wrapped.module.second.register_forward_hook(lambda *_: called.append(1))

    _, _, wrapped, _ = pair()
    called, others = [], []
    handle = register(called)
    wrapped(mine(rows())), handle.remove()
    for number in (2, 4):
        register(called)  # the second time beside the first
        wrapped(mine(rows()))
        assert len(called) == number, called
    register(others)
    with raises("a hook of 'second' was added after the first call"):
        wrapped(mine(rows()))


@case
def a_hook_on_one_rank_is_called_there():
    plain, _, wrapped, _ = pair()
    seen = []
    if RANK == 0:
        wrapped.module.second.register_forward_hook(lambda _, inputs, y: seen.append(y))
    backward(plain, wrapped)
    backward(plain, wrapped, 1)
    assert len(seen) == 2 * (RANK == 0)
    if RANK == 0:
        expected = plain.second(torch.tanh(plain.first(mine(rows(seed=1)))))
        torch.testing.assert_close(seen[1], expected.detach())


class Collecting(Net):
    """Its forward takes what a hook has put aside, as transformers' models do."""

    def __init__(self):
        super().__init__()
        self.aside = []
        self.second.register_forward_hook(lambda _, inputs, y: self.aside.append(y))

    def forward(self, x):
        self.aside.clear()
        return super().forward(x) + self.aside[0]


@case
def a_hook_that_hands_something_to_forward_is_part_of_the_model():
    torch.manual_seed(0)
    plain = Collecting()
    torch.manual_seed(0)
    wrapped = RaNNCModule(Collecting(), config=Config(replica_nums=[SIZE], calibrate=False))
    for seed in range(2):
        torch.testing.assert_close(wrapped(mine(rows(seed=seed))), mine(plain(rows(seed=seed))))


@case
def a_hook_that_begins_to_compute_is_an_error():
    _, _, wrapped, _ = pair()
    answers = iter([None, None, 0])
    wrapped.module.second.register_forward_hook(lambda *_: next(answers))
    wrapped(mine(rows())), wrapped(mine(rows()))
    with raises("a hook of 'second' returned or changed a value"):
        wrapped(mine(rows()))


@case
def a_forced_plan_that_makes_no_sense_is_a_warning():
    model = nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)))
    wrapped = RaNNCModule(model, config=Config(partition_num=min(SIZE, 2), calibrate=False))
    wrapped(mine(rows())).sum().backward()  # what it says is read by the test


@case
def the_same_rows_on_all_ranks_are_a_warning():
    """the same rows on all ranks, without a `DistributedSampler` (one warning)"""
    _, _, wrapped, _ = pair()
    wrapped(rows()).sum().backward()  # read by the test


@case
def a_distributed_sampler_knows_the_ranks_after_wrapping():
    """`DistributedSampler(dataset)` after wrapping, without `init_process_group`"""
    from torch.utils.data import DistributedSampler

    assert not torch.distributed.is_initialized()
    pair()
    assert list(DistributedSampler(range(2 * SIZE), shuffle=False)) == [RANK, RANK + SIZE]
    assert list(DistributedSampler(range(6), 3, 1, shuffle=False)) == [1, 4]
    with tempfile.NamedTemporaryFile() as file, process_group(shared_path(file.name)):
        assert list(DistributedSampler(range(2 * SIZE), shuffle=False)) == [RANK, RANK + SIZE]


@case
def other_wrappers_are_refused():
    """`DistributedDataParallel`, FSDP, `fully_shard`, `DataParallel` around or inside"""
    from torch.distributed import fsdp

    with tempfile.NamedTemporaryFile() as file, process_group(shared_path(file.name)):
        _, _, wrapped, _ = pair()
        with raises("DistributedDataParallel around a RaNNCModule"):
            nn.parallel.DistributedDataParallel(wrapped, find_unused_parameters=True)
        with raises("FullyShardedDataParallel around a RaNNCModule"):
            fsdp.FullyShardedDataParallel(wrapped, device_id=torch.device("cpu"))(mine(rows()))
        _, _, wrapped, _ = pair()
        with raises("around a RaNNCModule"):
            fsdp.fully_shard(wrapped)
        with raises("is wrapped in DistributedDataParallel"):
            RaNNCModule(nn.Sequential(nn.parallel.DistributedDataParallel(nn.Linear(2, 2))))
    with raises("is wrapped in DataParallel"):
        RaNNCModule(nn.Sequential(nn.DataParallel(nn.Linear(2, 2))))


@case
def summon_gives_the_whole_and_takes_it_back():
    """`with model.summon():` reads whole parameters"""
    _, _, wrapped, optimizer = pair()
    wrapped(mine(rows())).square().mean().backward()
    before = wrapped.state_dict(rank0_only=False)
    own = [name for name, _ in wrapped.named_parameters(from_global=False)]
    gradients = [each.grad for each in wrapped.parameters(from_global=False)]
    for rank0_only in (False, True):
        with wrapped.summon(rank0_only=rank0_only), torch.no_grad():
            now = [name for name, _ in wrapped.named_parameters(from_global=False)]
            if rank0_only and RANK > 0:
                assert now == own
            else:
                for name, value in wrapped.model.state_dict().items():
                    torch.testing.assert_close(value, before[name], rtol=0, atol=0)
                    assert not isinstance(value, nn.Parameter) and value.device.type == "cpu"
                assert wrapped.model.last.weight is wrapped.model.first.weight  # tied
                wrapped.model(rows())  # by itself
                for each in wrapped.model.parameters():
                    each.zero_()
            wrapped.state_dict()
        assert [name for name, _ in wrapped.named_parameters(from_global=False)] == own
    for name, value in wrapped.state_dict(rank0_only=False).items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    for each, gradient in zip(wrapped.parameters(from_global=False), gradients, strict=True):
        assert each.grad is gradient
    optimizer.step()
    wrapped(mine(rows())).square().mean().backward()


@case
def summon_writes_back_what_rank_0_has():
    """`with model.summon(writeback=True):` changes them"""
    for rank0_only in (False, True):
        plain, own, wrapped, theirs = pair()
        backward(plain, wrapped)
        with wrapped.summon(writeback=True, rank0_only=rank0_only), torch.no_grad():
            for each in [] if rank0_only and RANK > 0 else wrapped.model.parameters():
                each.mul_(2.0 if RANK == 0 else 3.0)
        with torch.no_grad():
            for each in plain.parameters():
                each.mul_(2.0)
        equal_weights(plain, wrapped)
        own.step(), theirs.step()
        equal_weights(plain, wrapped)


@case
def summon_where_it_cannot_be():
    """`summon()` on some ranks only, inside a forward pass, or around one"""
    _, _, wrapped, optimizer = pair()
    wrapped(mine(rows())).square().mean().backward()
    with wrapped.summon(rank0_only=True):
        with raises("a forward pass inside summon()"):
            wrapped(mine(rows()))
        with raises("load_state_dict() inside summon()"):
            wrapped.load_state_dict({})
        with raises("optimizer.step() inside summon()"):
            optimizer.step()
        with wrapped.summon(rank0_only=True):
            pass
        with raises("inside summon(rank0_only=True)"), wrapped.summon():
            pass
        with raises("inside summon(rank0_only=True)"), wrapped.summon(True, True):
            pass
    if SIZE > 1:
        with raises("the ranks do not do the same"), wrapped.summon(rank0_only=RANK == 0):
            pass
        with raises("the ranks do not do the same"):
            if RANK == 0:
                wrapped.summon().__enter__()
            else:
                wrapped(mine(rows()))

    class Summoning(Net):
        def forward(self, x):
            with holder[0].summon():
                return super().forward(x)

    holder = [None]
    holder[0] = RaNNCModule(Summoning(), config=wrapped.config)
    with raises("summon() inside a forward pass"):
        holder[0](mine(rows()))


@case
def torch_save_of_the_bare_model_is_an_error():
    """`torch.save(bare_model.state_dict(), ...)`"""
    _, _, wrapped, _ = pair()
    wrapped(mine(rows()))
    if SIZE == 1:
        return
    with raises("use state_dict() of the RaNNCModule"):
        torch.save(wrapped.model.state_dict(), io.BytesIO())
    with raises("that this rank has released"):
        torch.save(list(wrapped.model.parameters()), io.BytesIO())
    wrapped.zero_grad()


class Writer(Net):
    """Writes itself as Hugging Face's models do."""

    def save_pretrained(self, folder, state_dict=None):
        with open(f"{folder}/rank{RANK}", "xb") as file:
            torch.save(self.state_dict() if state_dict is None else state_dict, file)
        return "written"


@case
def save_pretrained_runs_on_rank_0_alone():
    """`model.save_pretrained(folder)`, on all ranks; twice into one folder"""
    torch.manual_seed(0)
    plain = Writer()
    wrapped = RaNNCModule(copy.deepcopy(plain), config=pair()[2].config)
    wrapped(mine(rows()))
    with tempfile.TemporaryDirectory() as own:
        folder = launch.world().broadcast(own.encode(), 0).decode()
        assert wrapped.save_pretrained(folder) == ("written" if RANK == 0 else None)
        assert os.listdir(folder) == ["rank0"]
        found = torch.load(f"{folder}/rank0")
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=0)
        with raises("File exists", (FileExistsError, RaNNCError)):
            wrapped.save_pretrained(folder)
        assert SIZE == 1 or len(list(wrapped.parameters(from_global=False))) < 5
        launch.barrier()


def main(cases):
    for name in sys.argv[1:] or cases:
        fault, what = "", cases[name].__doc__ or name.replace("_", " ")
        ERRORS.clear()
        try:
            cases[name]()
        except Exception:
            fault = traceback.format_exc()
        errors = list(dict.fromkeys(ERRORS))[:2]
        report = {"case": name, "what": what, "fault": fault, "errors": errors}
        reports.add(RANK, report)
        pyrannc.barrier()


if __name__ == "__main__":
    main(CASES)
