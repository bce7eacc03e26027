"""Habits of PyTorch users around the plain loop, on several ranks: works, or is told why not.

Run by mpirun; prints one line of JSON for each case: its name and, on each rank, what went wrong.
"""

import contextlib
import copy
import io
import json
import os
import pickle
import sys
import tempfile
import traceback

import torch
from torch import nn

# Imported before pyrannc, as scripts do.
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

import pyrannc
from pyrannc import Config, RaNNCError, RaNNCModule, launch

RANK, SIZE = pyrannc.get_rank(), pyrannc.get_world_size()
CASES = {}


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
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def raises(match, kind=RaNNCError):
    try:
        yield
    except kind as error:
        assert match in str(error), f"{match!r} is not in: {error}"
    else:
        raise AssertionError(f"no error; expected {match!r}")


@case
def clip_grad_norm_is_that_of_the_whole_model():
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
    plain, own, wrapped, theirs = pair()
    backward(plain, wrapped)
    expected = clip_grad_norm_(own.param_groups[0]["params"], 0.1)
    torch.testing.assert_close(clip_grad_norm_(theirs.param_groups[0]["params"], 0.1), expected)


@case
def norm_and_clipping_in_two_steps():
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
    _, _, wrapped, _ = pair()
    wrapped(mine(rows()))
    for parameter in wrapped.parameters():
        if all(parameter is not each for each in wrapped.parameters(from_global=False)):
            for use in (
                lambda p: p + 1,
                lambda p: torch.zeros(6, 6).add_(p),
                lambda p: p.detach(),
                lambda p: p.data,
                lambda p: p.norm(),
                lambda p: copy.deepcopy(p),
                lambda p: p.mul_(2),
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


@case
def a_plain_attribute_set_later_counts():
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
def steps_on_some_ranks_only_are_an_error():
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
    plain, _, wrapped, _ = pair()
    own, theirs = (torch.optim.AdamW(each.parameters(), lr=0.1) for each in (plain, wrapped.model))
    wrapped = RaNNCModule(wrapped.model, theirs, wrapped.config)
    for seed in range(2):
        own.zero_grad(), theirs.zero_grad()
        backward(plain, wrapped, seed)
        own.step(), theirs.step()
        equal_weights(plain, wrapped)
    theirs.load_state_dict(copy.deepcopy(theirs.state_dict()))  # its own
    first = launch.world().broadcast(pickle.dumps(theirs.state_dict()), 0)
    if RANK == SIZE - 1 and SIZE > 1:
        with raises("of another rank or plan"):
            theirs.load_state_dict(pickle.loads(first))
    theirs.load_state_dict(copy.deepcopy(own.state_dict()))  # one process's
    own.zero_grad(), theirs.zero_grad()
    backward(plain, wrapped, 3)
    own.step(), theirs.step()
    equal_weights(plain, wrapped)


@case
def the_same_rows_on_all_ranks_are_a_warning():
    _, _, wrapped, _ = pair()
    wrapped(rows()).sum().backward()  # read by the test


@case
def other_wrappers_are_refused():
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


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        try:
            CASES[name]()
            fault = ""
        except Exception:
            fault = traceback.format_exc()
        print(json.dumps({"case": name, "rank": RANK, "fault": fault}) + "\n", end="", flush=True)
        pyrannc.barrier()
