"""What scripts of RaNNC 0.7 do, on several ranks, against one process with the whole batch.

Run by mpirun; prints one line of JSON for each case: its name and, on each rank, what went wrong.
"""

import contextlib
import copy
import json
import sys
import tempfile
import traceback
from pathlib import Path

import torch
from torch import nn

import pyrannc
from pyrannc import Config, RaNNCError, RaNNCModule, launch
from pyrannc.comm_utils import bcast_obj
from pyrannc.trial import verify

RANK, SIZE = pyrannc.get_rank(), pyrannc.get_world_size()
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Net(nn.Module):
    """Two stages' worth of layers, dropout, and a loss inside where labels are given."""

    def __init__(self, drop=0.0):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.drop, self.last = nn.Dropout(drop), nn.Linear(6, 3)

    def forward(self, x, labels=None, scale=None):
        hidden = self.drop(torch.tanh(self.second(torch.tanh(self.first(x)))))
        logits = self.last(hidden if scale is None else hidden * scale)
        if labels is None:
            return logits
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


def rows(count, seed=0, width=6):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def mine(batch):
    return batch.chunk(SIZE)[RANK]


def pair(drop=0.0, optimizer=torch.optim.SGD, config=None, **arguments):
    """The plain model, and a wrapped one of the same weights, with an optimizer each."""
    torch.manual_seed(0)
    plain = Net(drop)
    model = copy.deepcopy(plain)
    optimizers = [optimizer(each.parameters(), lr=0.1) for each in (plain, model)]
    settings = {"partition_num": 2, "calibrate": False, "self_check": False} | (config or {})
    wrapped = RaNNCModule(model, optimizers[1], Config(**settings), **arguments)
    return plain, optimizers[0], wrapped, optimizers[1]


def equal_weights(plain, wrapped):
    state = wrapped.state_dict(rank0_only=False)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name], value)


def equal_gradients(plain, wrapped):
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(wrapped.get_param_grad(name), parameter.grad)


@contextlib.contextmanager
def raises(match, kind=RaNNCError):
    try:
        yield
    except kind as error:
        assert match in str(error), f"{match!r} is not in: {error}"
        assert "\n" not in str(error), f"more than one line: {error}"
    else:
        raise AssertionError(f"no error; expected {match!r}")


def shared_folder():
    """That of rank 0, on all ranks."""
    return Path(bcast_obj(tempfile.mkdtemp()))


@case
def functions_of_the_ranks():
    pyrannc.barrier()
    pyrannc.recreate_all_communicators()
    assert bcast_obj({"rank": RANK, "set": {1, 2}}, 1) == {"rank": 1, "set": {1, 2}}
    buffer = torch.zeros(SIZE, 2, 3, dtype=torch.bfloat16)
    pyrannc.all_gather(torch.full((2, 3), RANK, dtype=torch.bfloat16), buffer)
    assert buffer.tolist() == [[[rank] * 3] * 2 for rank in range(SIZE)]
    with raises("all_gather: rank 0 gives 6 entries of torch.float32"):
        pyrannc.all_gather(torch.zeros(2, 3), torch.zeros(4))
    with raises(f"there is no rank {SIZE}"):
        bcast_obj(None, SIZE)


@case
def single_parameters_and_the_norm():
    plain, own, wrapped, theirs = pair()
    torch.testing.assert_close(wrapped.get_param("first.weight"), plain.first.weight.detach())
    plain(rows(4 * SIZE)).square().mean().backward()
    wrapped(mine(rows(4 * SIZE))).square().mean().backward()
    equal_gradients(plain, wrapped)
    norm = torch.nn.utils.get_total_norm([each.grad for each in plain.parameters()])
    for found in (wrapped.calc_grad_norm(), wrapped._calc_grad_norm()):
        torch.testing.assert_close(found, norm.item(), check_dtype=False)
    own.step(), theirs.step()
    for name, parameter in plain.named_parameters():
        found = wrapped.get_param(name, amp_master_param=True)
        torch.testing.assert_close(found, parameter.detach())
        assert found.device.type == "cpu"
    assert wrapped.sync_param(id(wrapped.model.last.bias)).shape == (3,)
    assert wrapped.sync_param_grad(id(wrapped.model.last.bias)).shape == (3,)
    assert wrapped.use_amp_master_params() is False
    theirs.zero_grad()
    assert wrapped.get_param_grad("last.bias") is None
    with raises("no parameter 'last.bais'; did you mean 'last.bias'"):
        wrapped.get_param("last.bais")


@case
def parameters_and_buffers_from_global():
    plain, _, wrapped, _ = pair()
    wrapped(mine(rows(4 * SIZE)))
    whole = [name for name, _ in plain.named_parameters()]
    assert [name for name, _ in wrapped.named_parameters()] == whole
    assert len(list(wrapped.parameters(from_global=True))) == len(whole)
    own = [name for name, _ in wrapped.named_parameters(from_global=False)]
    assert len(own) < len(whole) and set(own) < set(whole)
    assert list(wrapped.buffers(from_global=False)) == list(wrapped.named_buffers()) == []


@case
def a_plan_ends_and_another_one_goes_on():
    plain, own, wrapped, theirs = pair(optimizer=torch.optim.Adam)
    for round_ in range(2):
        for seed in range(2):
            own.zero_grad(), theirs.zero_grad()
            plain(rows(4 * SIZE, seed)).square().mean().backward()
            wrapped(mine(rows(4 * SIZE, seed))).square().mean().backward()
            own.step(), theirs.step()
        equal_weights(plain, wrapped)
        if round_ == 0:
            wrapped.undeploy()
            wrapped.undeploy()
            assert all(each.grad is None for each in wrapped.parameters())
            for one, other in zip(plain.parameters(), wrapped.parameters(), strict=True):
                torch.testing.assert_close(one, other)
            order = theirs.param_groups[0]["params"]
            assert all(one is other for one, other in zip(order, wrapped.parameters(), strict=True))
            assert len(theirs.state) == len(order)
    wrapped.undeploy()
    loaded = {name: value + 1 for name, value in plain.state_dict().items()}
    wrapped.load_state_dict(loaded)
    torch.testing.assert_close(wrapped.state_dict(), loaded)


@case
def clear_ends_the_plans_of_all_models():
    _, _, one, _ = pair()
    _, _, other, _ = pair()
    one(mine(rows(4 * SIZE))), other(mine(rows(4 * SIZE)))
    pyrannc.clear()
    for each in (one, other):
        with raises("cannot be called after pyrannc.clear()"):
            each(mine(rows(4 * SIZE)))
    plain, own, wrapped, theirs = pair()
    plain(rows(4 * SIZE)).square().mean().backward()
    wrapped(mine(rows(4 * SIZE))).square().mean().backward()
    own.step(), theirs.step()
    equal_weights(plain, wrapped)


def check_rank_0s_rows(others, **config):
    """``others(x)``: what the other ranks pass where rank 0 passes ``x``."""
    plain, own, wrapped, theirs = pair(gather_inputs=False, config=config)
    for step in range(3):
        own.zero_grad(), theirs.zero_grad()
        x, labels = rows(5 + step, step).requires_grad_(), rows(5 + step, step + 9, 3)
        expected = (plain(x) - labels).square().mean()
        expected.backward()
        gradient, x.grad = x.grad, None
        given = x if RANK == 0 else others(x)
        output = wrapped(given)
        loss = (output - labels).square().mean()
        torch.testing.assert_close(loss, expected)
        loss.backward()
        equal_gradients(plain, wrapped)
        if RANK == 0:
            torch.testing.assert_close(x.grad, gradient)
        own.step(), theirs.step()
    with torch.no_grad():
        x = rows(7, 20)
        torch.testing.assert_close(wrapped(x if RANK == 0 else others(x)), plain(x))
    wrapped.eval()
    x = rows(4, 21)
    torch.testing.assert_close(wrapped(x if RANK == 0 else others(x)), plain(x))
    equal_weights(plain, wrapped)


@case
def rank_0s_rows_with_the_loss_outside():
    check_rank_0s_rows(lambda x: torch.full_like(x, 7.0))


@case
def rank_0s_rows_whatever_the_others_pass():
    check_rank_0s_rows(lambda x: None, pipeline_num=2)


@case
def rank_0s_rows_with_replicas():
    check_rank_0s_rows(lambda x: x[:1], partition_num=1, replica_nums=(SIZE,))


@case
def rank_0s_rows_with_the_loss_inside():
    plain, own, wrapped, theirs = pair(gather_inputs=False)
    for step in range(2):
        own.zero_grad(), theirs.zero_grad()
        x, labels, scale = rows(5, step), rows(5, 9, 3), torch.tensor([2.0] * 6) + step
        expected = plain(x, labels, scale=scale)["loss"]
        expected.backward()
        off = 0 if RANK == 0 else 1
        loss = wrapped(x + off, labels + off, scale=scale + off)["loss"]
        torch.testing.assert_close(loss, expected)
        loss.backward()
        equal_gradients(plain, wrapped)
        own.step(), theirs.step()
    wrapped.eval()
    found = wrapped(x, labels, scale=scale)
    torch.testing.assert_close(found["logits"], plain(x, labels, scale=scale)["logits"])


@case
def rank_0s_errors_are_those_of_all_ranks():
    _, _, wrapped, _ = pair(gather_inputs=False)
    try:
        wrapped(3)
    except RaNNCError as error:
        assert "no tensor argument" in str(error)
    else:
        raise AssertionError("no error")


def accumulate(plain, wrapped, before_forward, labelled):
    """Recipe 2: three micro-steps, of which the last one sums, and clipping."""
    for step in range(3):
        last = step == 2
        x, labels = rows(4 * SIZE, step), rows(4 * SIZE, step + 9, 3)
        args = (x, labels) if labelled else (x,)
        expected = plain(*args)["loss"] if labelled else plain(x).square().mean()
        (expected / 3).backward()
        if before_forward:
            pyrannc.delay_grad_allreduce(not last)
        found = wrapped(*map(mine, args))
        loss = found["loss"] if labelled else found.square().mean()
        if not before_forward:
            pyrannc.delay_grad_allreduce(not last)
        (loss / 3).backward()
    pyrannc.delay_grad_allreduce(False)
    equal_gradients(plain, wrapped)
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
    wrapped.clip_grad_norm(0.01)


@case
def recipe_2_accumulation_by_the_global_flag():
    for before_forward in (True, False):
        for labelled in (True, False):
            plain, own, wrapped, theirs = pair(config={"partition_num": 0})
            for _ in range(2):
                accumulate(plain, wrapped, before_forward, labelled)
                own.step(), theirs.step()
                own.zero_grad(), theirs.zero_grad()
            equal_weights(plain, wrapped)


@case
def recipe_2_accumulation_by_allreduce_grads():
    plain, own, wrapped, theirs = pair(config={"partition_num": 1, "replica_nums": (SIZE,)})
    pyrannc.delay_grad_allreduce(True)
    for step in range(2):
        plain(rows(4 * SIZE, step)).square().mean().backward()
        wrapped(mine(rows(4 * SIZE, step))).square().mean().backward()
    wrapped.allreduce_grads()
    pyrannc.delay_grad_allreduce(False)
    equal_gradients(plain, wrapped)
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
    wrapped.clip_grad_norm(0.01)
    own.step(), theirs.step()
    equal_weights(plain, wrapped)


@case
def recipe_3_mixed_precision_without_apex():
    plain, own, wrapped, theirs = pair(
        enable_apex_amp=True, allreduce_amp_master_params=True, config={"self_check": False}
    )
    for model, optimizer, part in ((plain, own, lambda x: x), (wrapped, theirs, mine)):
        scaler = pyrannc.GradScaler("cpu", init_scale=64.0)
        for step in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(part(rows(4 * SIZE, step)), part(rows(4 * SIZE, 9, 3)))["loss"]
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    state = wrapped.state_dict(rank0_only=False, amp_master_params=False)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=0.02, atol=0.02)
    with raises("torch.autocast and pyrannc.GradScaler"):
        pyrannc.amp.named_master_params(wrapped, theirs)


@case
def recipe_4_saving_and_loading():
    """All ranks ask for the states, rank 0 writes them; they load after the first backward."""
    plain, plain_steps, wrapped, steps = pair(optimizer=torch.optim.Adam)
    folder = shared_folder()

    def train(model, optimizer, batch):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    train(plain, plain_steps, rows(6))
    train(wrapped, steps, mine(rows(6)))
    state = wrapped.state_dict(), steps.state_dict(from_global=True)
    if RANK == 0:
        torch.save(state, folder / "state.pt")
    pyrannc.barrier()
    weights, state = torch.load(folder / "state.pt")
    _, _, resumed, resumed_steps = pair(optimizer=torch.optim.Adam)
    resumed.load_state_dict(weights)
    resumed(mine(rows(6))).square().mean().backward()
    resumed_steps.load_state_dict(state, from_global=True)
    train(plain, plain_steps, rows(6, seed=1))
    train(resumed, resumed_steps, mine(rows(6, seed=1)))
    equal_weights(plain, resumed)


@case
def recipe_5_parameters_are_not_synchronised():
    pyrannc.sync_params_on_init(False)
    try:
        _, _, wrapped, _ = pair()
        with torch.no_grad():
            wrapped.model.last.bias.fill_(RANK)
        wrapped(mine(rows(4 * SIZE)))
        owner = wrapped.plan.stages[1].ranks[0]  # which one depends on measured times
        assert wrapped.get_param("last.bias").tolist() == [owner] * 3
    finally:
        pyrannc.sync_params_on_init(True)
    _, _, wrapped, _ = pair()
    with torch.no_grad():
        wrapped.model.last.bias.fill_(RANK)
    wrapped(mine(rows(4 * SIZE)))
    assert wrapped.get_param("last.bias").tolist() == [0] * 3


@case
def recipe_6_a_plan_is_reused():
    path = shared_folder() / "plan.bin"
    _, _, first, _ = pair(config={"partition_num": 2, "replica_num": 1})
    first(mine(rows(4 * SIZE)))
    first.save_deployment(path)
    pyrannc.barrier()
    _, _, second, _ = pair(config={"partition_num": 0}, load_deployment=path)
    second(mine(rows(4 * SIZE)))
    assert [s.nodes for s in second.plan.stages] == [s.nodes for s in first.plan.stages]
    pyrannc.show_deployment(path, 4 * SIZE)


@case
def recipe_8_models_that_no_host_can_hold():
    with pyrannc.DistributeModelParams():
        model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = RaNNCModule(model, optimizer, Config(partition_num=2, calibrate=False))
    batch = rows(8)
    loss = wrapped(mine(batch)).square().mean()
    plain = Net()
    plain.load_state_dict(wrapped.state_dict(rank0_only=False))
    assert plain.first.weight.abs().max() > 0
    loss.backward()
    plain(batch).square().mean().backward()
    equal_gradients(plain, wrapped)
    optimizer.step()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    equal_weights(plain, wrapped)


@case
def recipe_7_evaluation_without_dropout():
    plain, _, wrapped, _ = pair(drop=0.5)
    wrapped.enable_dropout(False)  # a warning
    x = rows(4 * SIZE)
    wrapped(mine(x)).square().mean().backward()
    wrapped.enable_dropout(False)
    with torch.no_grad():
        torch.testing.assert_close(wrapped(mine(x)), mine(plain.eval()(x)))
    assert wrapped.training
    wrapped(mine(x)).square().mean().backward()
    wrapped.enable_dropout(True)
    with torch.no_grad():
        assert (wrapped(mine(x)) - mine(plain(x))).abs().max() > 1e-3


@case
def ranks_that_switch_dropout_differently_get_an_error():
    _, _, wrapped, _ = pair(drop=0.5)
    wrapped(mine(rows(4 * SIZE)))
    wrapped.enable_dropout(RANK != 0)
    try:
        wrapped(mine(rows(4 * SIZE)))
    except RaNNCError as error:
        assert "after enable_dropout(False)" in str(error)
    else:
        raise AssertionError("no error")


@case
def a_graph_is_kept():
    for labelled in (True, False):
        plain, _, wrapped, _ = pair()
        x, labels = rows(4 * SIZE), rows(4 * SIZE, 9, 3)
        pyrannc.keep_graph(True)
        try:
            if labelled:
                loss, expected = wrapped(mine(x), mine(labels))["loss"], plain(x, labels)["loss"]
            else:
                loss, expected = wrapped(mine(x)).mean(), plain(x).mean()
            loss.backward(), loss.backward()
        finally:
            pyrannc.keep_graph(False)
        (2 * expected).backward()
        equal_gradients(plain, wrapped)


def gpt_like(**config):
    """A model whose plan may have several stages, replicas and micro-batches."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(6)])
    return RaNNCModule(model, None, Config(calibrate=False, self_check=False, **config))


@case
def plans_that_settings_allow():
    for config in ({}, {"partition_num": 2}):
        wrapped = gpt_like(limit_dev_num_pot=True, **config)
        wrapped(mine(rows(8 * SIZE)))
        counts = [len(stage.ranks) for stage in wrapped.plan.stages]
        assert all(count in (1, 2, 4) for count in counts), counts
    wrapped = gpt_like(dp_search_all=False)
    wrapped(mine(rows(8 * SIZE)))
    assert len(wrapped.plan.stages) == 1
    wrapped = gpt_like(min_pipeline_bs=4 * SIZE, partition_num=2)
    wrapped(mine(rows(8 * SIZE)))
    widest = max(len(stage.ranks) for stage in wrapped.plan.stages)
    assert 8 * SIZE // wrapped.plan.micro_batches // widest >= 4 * SIZE
    with raises("no plan fits with min_pipeline_bs = 1000"):
        gpt_like(min_pipeline_bs=1000)(mine(rows(8 * SIZE)))


@case
def plans_are_verified():
    settings = {"verify_partitioning": True, "verify_recomp": True, "recompute": "always"}
    for labelled in (True, False):
        _, _, wrapped, _ = pair(drop=0.5, config=settings | {"pipeline_num": 2})
        args = (rows(4 * SIZE), rows(4 * SIZE, 9, 3))[: 1 + labelled]
        wrapped(*map(mine, args))
        assert wrapped.is_checkpointing_enabled()
    genuine = verify._gradients

    def wrong(call, held, *others):
        found = genuine(call, held, *others)
        if "second.weight" in found:
            found["second.weight"][0, 0] += 1
        return found

    verify._gradients = wrong
    try:
        _, _, wrapped, _ = pair(config=settings)
        with raises("verify_partitioning: the plan does not compute"):
            wrapped(mine(rows(4 * SIZE)))
    finally:
        verify._gradients = genuine


@case
def values_and_times_are_logged():
    _, _, wrapped, _ = pair(config={"display_comm_value": True, "profiling": True})
    wrapped(mine(rows(4 * SIZE))).mean().backward()
    wrapped.undeploy()


@case
def a_dry_run_plans_for_other_ranks_and_ends():
    path = shared_folder() / "plan.json"
    wrapped = gpt_like(partitioning_dry_run_np=2 * SIZE, save_deployment=True, deployment_file=path)
    try:
        wrapped(mine(rows(4 * SIZE)))
    except SystemExit as end:
        assert not end.code
    else:
        raise AssertionError("it goes on")
    plan = json.loads(path.read_text())
    assert {rank for stage in plan["stages"] for rank in stage["ranks"]} <= set(range(2 * SIZE))
    assert plan["notes"]["world"] == 2 * SIZE


def main():
    world = launch.world()
    for name, run in CASES.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        torch.manual_seed(1)
        fault = ""
        try:
            run()
        except (Exception, SystemExit):
            fault = traceback.format_exc()
        sys.stdout.write(json.dumps({"case": name, "fault": fault}) + "\n")  # in one piece
        # A rank that has failed alone has left the others in the middle of something.
        if len({item == b"" for item in world.all_gather(fault.encode())}) > 1:
            world.abort(f"{name}: {fault}")


if __name__ == "__main__":
    main()
