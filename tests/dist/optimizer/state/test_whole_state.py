"""What optimizers of wrapped models save and load on several ranks, with torch's means."""

import pytest

SETUP = """
import copy, json, os, tempfile, pyrannc, torch
from torch import nn

rank = pyrannc.get_rank()

def build():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    groups = [
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
    ]
    return model, torch.optim.AdamW(groups, lr=0.05)

def wrap(model, optimizer):
    return pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(
        partition_num=2, replica_nums=[1, 1], pipeline_num=2, calibrate=False, self_check=False
    ))

def train(model, optimizer, steps, rows):
    for step in range(steps):
        torch.manual_seed(50 + step)
        x = torch.randn(8, 4)[rows]
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

mine = slice(4 * rank, 4 * rank + 4)
plain, own = build()
train(plain, own, 2, slice(0, 8))
inner, optimizer = build()
model = wrap(inner, optimizer)
train(model, optimizer, 2, mine)

def shared(value):  # rank 0's, on every rank
    world = pyrannc.launch.world()
    folder = world.broadcast(tempfile.mkdtemp().encode() if rank == 0 else b"", 0).decode()
    if rank == 0:
        torch.save(value, f"{folder}/state.pt")
    world.barrier()
    return f"{folder}/state.pt"

def equal_state(found, expected):
    assert found["state"].keys() == expected["state"].keys()
    for key, entry in expected["state"].items():
        assert found["state"][key].keys() == entry.keys()
        for what, value in entry.items():
            torch.testing.assert_close(found["state"][key][what], value, rtol=1e-4, atol=1e-7)

def equal(found, expected):
    equal_state(found, expected)
    assert [g["params"] for g in found["param_groups"]] == [
        g["params"] for g in expected["param_groups"]
    ]
    assert [g["weight_decay"] for g in found["param_groups"]] == [0.0, 0.1]
"""


@pytest.mark.ranks(
    """
    whole = optimizer.state_dict()
    everywhere = optimizer.state_dict(rank0_only=False)
    if rank == 0:
        equal(whole, own.state_dict())
    else:
        assert not whole["state"]
    equal(everywhere, own.state_dict())

    # As it is, and as torch.save and torch.load give it on every rank.
    path = shared(whole)
    train(model, optimizer, 1, mine)
    optimizer.load_state_dict(whole)
    equal(optimizer.state_dict(rank0_only=False), everywhere)
    train(model, optimizer, 1, mine)
    optimizer.load_state_dict(torch.load(path))
    equal(optimizer.state_dict(rank0_only=False), everywhere)

    # One process's goes into it, and its into one process's.
    fresh = build()[1]
    fresh.load_state_dict(everywhere)
    equal(fresh.state_dict(), own.state_dict())
    optimizer.load_state_dict(own.state_dict() if rank == 0 else {})
    equal(optimizer.state_dict(rank0_only=False), own.state_dict())
    try:
        optimizer.load_state_dict({} if rank == 0 else whole)
        raise AssertionError("rank 0 has none")
    except pyrannc.RaNNCError as error:
        assert "rank 0 has no state" in str(error), error
    groups = torch.optim.AdamW(build()[0].parameters()).state_dict()
    try:
        optimizer.load_state_dict(groups)
        raise AssertionError("other groups")
    except pyrannc.RaNNCError as error:
        assert "parameter groups of [6]" in str(error), error

    # One that was made after wrapping.
    late = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train(model, late, 1, mine)
    state = late.state_dict(rank0_only=False)
    assert sorted(state["state"]) == list(range(6)), state
    late.load_state_dict(late.state_dict())

    # And one that has not stepped yet: torch's own wants a state on every rank.
    later = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    assert later.state_dict(rank0_only=False)["state"] == {}
    later = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    later.load_state_dict(state if rank == 0 else {})
    equal_state(later.state_dict(rank0_only=False), state)
    assert len(later.state) < 6, "of other ranks' parameters, too"
    print("all right", flush=True)
    """,
    before=SETUP,
)
def test_the_state_is_whole_on_rank_0_in_the_original_order_and_loads_so(done):
    assert done.stdout.count("all right") == 2, done.stderr


@pytest.mark.ranks(
    """
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict,
        set_state_dict,
    )
    pyrannc.init()
    assert dist.get_world_size() == 2 and dist.get_rank() == rank
    folder = os.path.dirname(shared({}))
    weights, state = get_state_dict(model, optimizer)
    assert 0 < len(weights) < 6  # this rank's part, without a copy
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/dcp")

    # Into another job's model, after its first call; and into one that is not wrapped.
    inner_2, optimizer_2 = build()
    other = wrap(inner_2, optimizer_2)
    train(other, optimizer_2, 1, mine)
    for loaded, steps in ((other, optimizer_2), build()):
        weights, state = get_state_dict(loaded, steps)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/dcp")
        set_state_dict(loaded, steps, model_state_dict=weights, optim_state_dict=state)
        found = loaded.state_dict(rank0_only=False) if loaded is other else loaded.state_dict()
        for name, value in model.state_dict(rank0_only=False).items():
            torch.testing.assert_close(found[name], value)
        found = steps.state_dict(rank0_only=False) if loaded is other else steps.state_dict()
        equal(found, own.state_dict())

    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_model_state_dict(model, options=full)
    assert len(whole) == (6 if rank == 0 else 0)
    named = get_optimizer_state_dict(model, optimizer, options=full)
    if rank == 0:
        assert list(named["state"]["0.bias"]) == ["step", "exp_avg", "exp_avg_sq"]
        assert named["param_groups"][0]["params"] == ["0.bias", "2.bias", "4.bias"], named
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    weights, state = get_state_dict(model, optimizer, options=flat)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/flat")
    train(model, optimizer, 1, mine)
    weights, state = get_state_dict(model, optimizer, options=flat)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/flat")
    set_state_dict(
        model, optimizer, model_state_dict=weights, optim_state_dict=state, options=flat
    )
    equal(optimizer.state_dict(rank0_only=False), own.state_dict())

    # torch reads the weights of ours.
    pyrannc.save(f"{folder}/ours", model, optimizer)
    read, _ = build()
    content = {name: torch.zeros_like(value) for name, value in read.state_dict().items()}
    reader = dcp.HuggingFaceStorageReader(f"{folder}/ours")
    dcp.load(content, storage_reader=reader)
    for name, value in model.state_dict(rank0_only=False).items():
        assert torch.equal(content[name], value), name
    print("all right", flush=True)
    """,
    before=SETUP,
)
def test_torchs_distributed_checkpoint_saves_and_loads(done):
    assert done.stdout.count("all right") == 2, done.stderr


@pytest.mark.ranks(
    """
    # Symptom: state_dict() and checkpoints lacked the parameters of groups that had been added
    # after wrapping, and refused a state that had them; after undeploy() their states were those
    # of one rank. Cause: the names of all parameters were noted once, by RaNNCModule().
    for when in ("before the first call", "after it"):
        (plain, alone), (inner, steps) = build(), build()
        for each in (alone, steps):
            each.param_groups[:] = each.param_groups[1:]  # without the biases
        ours = wrap(inner, steps)

        def add():
            for each, model_of in ((alone, plain), (steps, inner)):
                each.add_param_group({"params": [model_of[0].bias, model_of[4].bias], "lr": 0.02})

        if when == "before the first call":
            add()
        train(plain, alone, 2, slice(0, 8))
        train(ours, steps, 2, mine)
        if when == "after it":
            add()
            train(plain, alone, 1, slice(0, 8))
            train(ours, steps, 1, mine)
        want = alone.state_dict()
        found = steps.state_dict(rank0_only=False)
        equal_state(found, want)
        assert [g["params"] for g in found["param_groups"]] == [[0, 1, 2], [3, 4]]
        assert [g["lr"] for g in found["param_groups"]] == [0.05, 0.02]
        steps.load_state_dict(copy.deepcopy(want) if rank == 0 else {})
        held = {id(each) for each in ours.parameters(from_global=False)}
        assert {id(each) for each in steps.state} <= held, "states of other ranks' parameters"
        equal_state(steps.state_dict(rank0_only=False), want)
        train(plain, alone, 1, slice(0, 8))
        train(ours, steps, 1, mine)
        want = copy.deepcopy(alone.state_dict())
        folder = os.path.dirname(shared({}))
        pyrannc.save(f"{folder}/later", ours, steps)
        train(ours, steps, 1, mine)
        pyrannc.load(f"{folder}/later", ours, steps)
        equal_state(steps.state_dict(rank0_only=False), want)
        ours.undeploy()
        equal_state(steps.state_dict(), want)
        assert len(steps.state) == 5, len(steps.state)
        train(plain, alone, 2, slice(0, 8))
        train(ours, steps, 2, mine)  # a plan is made anew
        for name, value in ours.state_dict(rank0_only=False).items():
            torch.testing.assert_close(value, plain.state_dict()[name])
    print("all right", flush=True)
    """,
    before=SETUP,
)
def test_groups_that_are_added_later_are_in_the_state_and_in_checkpoints(done):
    assert done.stdout.count("all right") == 2, done.stderr


@pytest.mark.ranks(
    """
    # As in torch's tutorial of named parameters. What was loaded was cut by its numbers before the
    # hook gave it those of this optimizer: each parameter had another one's state.
    def by_names(optimizer, state):
        adapted = copy.deepcopy(optimizer.state_dict())
        now, (given,) = adapted["param_groups"][0], state["param_groups"]
        now |= {key: each for key, each in given.items() if not key.startswith("param")}
        for number, name in zip(now["params"], now["param_names"], strict=True):
            theirs = given["params"][given["param_names"].index("old." + name)]
            adapted["state"][number] = copy.deepcopy(state["state"][theirs])
        return adapted

    def named(model, prefix="", lr=0.05):
        pairs = [(prefix + name, parameter) for name, parameter in model.named_parameters()]
        return torch.optim.AdamW(pairs[::-1] if prefix else pairs, lr=lr)

    older, _ = build()
    old = named(older, "old.", 0.02)
    train(older, old, 2, slice(0, 8))
    for when in ("before", "after"):
        plain, _ = build()
        own = named(plain)
        own.register_load_state_dict_pre_hook(by_names)
        inner, _ = build()
        optimizer = named(inner)
        if when == "before":
            optimizer.register_load_state_dict_pre_hook(by_names)
        model = wrap(inner, optimizer)
        train(model, optimizer, 1, mine)
        if when == "after":
            optimizer.register_load_state_dict_pre_hook(by_names)
        model.load_state_dict(older.state_dict())
        plain.load_state_dict(older.state_dict())
        for each in (own, optimizer):
            each.load_state_dict(copy.deepcopy(old.state_dict()))
        equal_state(optimizer.state_dict(rank0_only=False), own.state_dict())
        train(plain, own, 2, slice(0, 8))
        train(model, optimizer, 2, mine)
        equal_state(optimizer.state_dict(rank0_only=False), own.state_dict())
    """,
    before=SETUP,
)
def test_hooks_of_the_user_see_the_whole_state_that_is_loaded_and_number_it_otherwise(done):
    pass


@pytest.mark.ranks(
    """
    # A parameter of no model, in a group that was added later, was left out of its optimizer
    # without a word; now it is stepped, and only a whole state is an error.
    inner, steps = build()
    beside = nn.Parameter(torch.ones(3))
    ours = wrap(inner, steps)
    steps.add_param_group({"params": [beside], "lr": 0.5, "weight_decay": 0.0})
    for step in range(2):
        steps.zero_grad()
        (ours(torch.ones(4, 4)).square().mean() + beside.sum()).backward()
        steps.step()
    torch.testing.assert_close(beside.detach(), torch.zeros(3))
    assert "rannc_parameters" in steps.state_dict(from_global=False)
    try:
        steps.state_dict()
        raise AssertionError("no error")
    except pyrannc.RaNNCError as error:
        assert "group 2 of AdamW holds a parameter that the model does not have" in str(error)
    print("all right", flush=True)
    """,
    before=SETUP,
)
def test_a_parameter_of_no_model_stays_in_a_group_that_was_added_later(done):
    assert done.stdout.count("all right") == 2, done.stderr


@pytest.mark.ranks(
    """
    # Symptom: after undeploy(), or wrapping anew, an optimizer that had been made after the first
    # call had the states of this rank's part alone. Only those that were given had been moved.
    (plain, _), (inner, _) = build(), build()
    ours = wrap(inner, None)
    train(ours, torch.optim.SGD(ours.parameters(), lr=0.0), 1, mine)
    alone, late = (torch.optim.Adam(each.parameters(), lr=0.05) for each in (plain, ours))
    train(plain, alone, 2, slice(0, 8))
    train(ours, late, 2, mine)
    ours.undeploy()
    equal_state(late.state_dict(), alone.state_dict())
    ours = wrap(inner, None)
    train(plain, alone, 2, slice(0, 8))
    train(ours, late, 2, mine)
    again = wrap(inner, None)  # which ends the plan of the wrapper before
    equal_state(late.state_dict(), alone.state_dict())
    train(plain, alone, 1, slice(0, 8))
    train(again, late, 1, mine)
    equal_state(late.state_dict(rank0_only=False), alone.state_dict())
    print("all right", flush=True)
    """,
    before=SETUP,
)
def test_an_optimizer_made_after_the_first_call_keeps_its_whole_state_when_a_plan_ends(done):
    assert done.stdout.count("all right") == 2, done.stderr


@pytest.mark.ranks(
    """
    # Symptom: wrapped twice, an optimizer refused the states of one process. Each wrapping had left
    # a hook, of which the first knew the parameters as parts of the first plan.
    (plain, alone), (inner, steps) = build(), build()
    train(plain, alone, 2, slice(0, 8))
    train(wrap(inner, steps), steps, 1, mine)
    ours = wrap(inner, steps)
    train(ours, steps, 1, mine)
    steps.load_state_dict(copy.deepcopy(alone.state_dict()))
    equal(steps.state_dict(rank0_only=False), alone.state_dict())

    # Symptom: ranks other than 0 went on without a state.
    state = steps.state_dict()
    ours.undeploy()
    try:
        steps.load_state_dict(state)
        assert rank == 0, "no error"
    except pyrannc.RaNNCError as error:
        assert rank > 0 and "gave this to a rank other than 0" in str(error), error
        assert len(steps.state) == 6, "it has changed"
    equal(steps.state_dict(), alone.state_dict())

    # Symptom: KeyError of torch in state_dict(), after a loop had asked for each parameter.
    train(plain, alone, 1, slice(0, 8))
    train(ours, steps, 1, mine)
    known = sum("exp_avg" in steps.state[each] for each in ours.parameters())
    assert 0 < known < 6, known
    for state in (steps.state_dict(rank0_only=False), alone.state_dict()):
        assert sorted(state["state"]) == list(range(6))
    assert sorted(steps.state_dict(from_global=False)["state"]) == list(range(known))
    print("all right", flush=True)
    """,
    before=SETUP,
)
def test_wrapped_anew_undeployed_and_asked_for_each_parameter(done):
    assert done.stdout.count("all right") == 2, done.stderr


@pytest.mark.ranks(
    """
    # Symptom: half of the state, without a word.
    both = [wrap(build()[0], None) for _ in range(2)]
    steps = torch.optim.AdamW([p for each in both for p in each.parameters()], lr=0.05)
    for step in range(2):
        steps.zero_grad()
        (both[0](torch.ones(4, 4)) + both[1](torch.ones(4, 4))).square().mean().backward()
        steps.step()
    for way in ("state_dict", "load_state_dict"):
        try:
            getattr(steps, way)(*([{}] if way == "load_state_dict" else []))
            raise AssertionError("no error")
        except pyrannc.RaNNCError as error:
            text = str(error)
        assert text.startswith(f"optimizer.{way}(): AdamW steps the parameters of 2 wrapped"), text
    part = steps.state_dict(from_global=False)
    assert 0 < len(part["state"]) < 12
    steps.load_state_dict(part, from_global=False)
    print("all right", flush=True)
    """,
    before=SETUP,
)
def test_the_whole_state_of_an_optimizer_over_two_models_is_an_error(done):
    assert done.stdout.count("all right") == 2, done.stderr


@pytest.mark.ranks(
    """
    # Symptom: what MADGRAD keeps under "k" was not in state_dict(), and stopped save() and load.
    from counting_steps import CountingSteps

    (plain, _), (inner, _) = build(), build()
    alone, steps = (CountingSteps(each.parameters()) for each in (plain, inner))
    ours = wrap(inner, steps)
    train(plain, alone, 2, slice(0, 8))
    train(ours, steps, 2, mine)
    state = steps.state_dict(rank0_only=False)
    assert list(state["state"]) == list(alone.state_dict()["state"]), list(state["state"])
    assert state["state"]["k"] == 2
    folder = os.path.dirname(shared({}))
    pyrannc.save(f"{folder}/counted", ours, steps)
    kept = copy.deepcopy((plain.state_dict(), alone.state_dict(), ours.state_dict()))
    for way in ("load", "rank 0's", "every rank's", "one process's"):
        train(ours, steps, 1, mine)
        plain.load_state_dict(kept[0]), alone.load_state_dict(copy.deepcopy(kept[1]))
        if way == "load":
            pyrannc.load(f"{folder}/counted", ours, steps)
        else:
            ours.load_state_dict(kept[2])
            given = copy.deepcopy(kept[1] if way == "one process's" else state)
            steps.load_state_dict({} if way == "rank 0's" and rank else given)
        assert steps.state["k"] == 2, way
        train(plain, alone, 2, slice(0, 8))
        train(ours, steps, 2, mine)
        for name, value in ours.state_dict(rank0_only=False).items():
            torch.testing.assert_close(value, plain.state_dict()[name])
    fresh_inner, _ = build()
    fresh = CountingSteps(fresh_inner.parameters())
    loaded = wrap(fresh_inner, fresh)
    pyrannc.load(f"{folder}/counted", loaded, fresh)  # before the first call
    train(loaded, fresh, 2, mine)
    for name, value in loaded.state_dict(rank0_only=False).items():
        torch.testing.assert_close(value, plain.state_dict()[name])
    loaded.undeploy()
    assert fresh.state["k"] == 4

    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    pyrannc.init()
    try:
        get_optimizer_state_dict(ours, steps)
        raise AssertionError("no error")
    except pyrannc.RaNNCError as error:
        assert "CountingSteps keeps 'k', which is of no parameter" in str(error), error
    print("all right", flush=True)
    """,
    before=SETUP,
)
def test_what_an_optimizer_keeps_of_no_parameter_is_saved_and_loaded(done):
    assert done.stdout.count("all right") == 2, done.stderr


@pytest.mark.ranks(
    """
    # The state of rank 0 was saved for all, and each rank's part loaded it for its own parameters.
    class ByPlace(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.05})

        @torch.no_grad()
        def step(self, closure=None):
            for number, group in enumerate(self.param_groups):
                for place, p in enumerate(group["params"]):
                    if p.grad is not None:
                        mean = self.state[f"{number}.{place}"].setdefault("m", torch.zeros_like(p))
                        p.sub_(mean.mul_(0.9).add_(p.grad), alpha=group["lr"])

    folder = os.path.dirname(shared(None))
    (plain, _), (inner, _) = build(), build()
    alone, steps = ByPlace(plain.parameters()), ByPlace(inner.parameters())
    ours = wrap(inner, steps)
    train(plain, alone, 2, slice(0, 8))
    train(ours, steps, 2, mine)
    for name, value in ours.state_dict(rank0_only=False).items():
        torch.testing.assert_close(value, plain.state_dict()[name])
    for save in (steps.state_dict, lambda: pyrannc.save(f"{folder}/by_place", ours, steps)):
        try:
            save()
            raise AssertionError("no error")
        except pyrannc.RaNNCError as error:
            assert "ByPlace keeps '0.0' in its state, which is of no parameter" in str(error), error
            assert "not the same on ranks 0 and 1" in str(error), error
    """,
    before=SETUP,
)
def test_state_that_is_kept_by_the_place_of_a_parameter_is_an_error_when_it_is_saved(done):
    pass


@pytest.mark.ranks(
    """
    # It was refused where train() was called after the model had been wrapped: a step on copies,
    # which shows that it treats each parameter by itself, raises before that.
    from schedule_free import ScheduleFree

    (plain, _), (inner, _) = build(), build()
    alone, steps = ScheduleFree(plain.parameters()), ScheduleFree(inner.parameters())
    ours = wrap(inner, steps)
    for step in range(3):
        for each, optimizer, rows in ((plain, alone, slice(0, 8)), (ours, steps, mine)):
            optimizer.train()
            each.train()
            train(each, optimizer, 1, rows)
            optimizer.eval()
            each.eval()
        x = torch.linspace(-1, 1, 16).view(4, 4)
        torch.testing.assert_close(ours(x), plain(x))
    torch.testing.assert_close(
        steps.state_dict(rank0_only=False)["state"], alone.state_dict()["state"]
    )
    """,
    before=SETUP,
)
def test_an_optimizer_with_modes_trains_evaluates_and_is_saved_as_in_one_process(done):
    pass


@pytest.mark.ranks(
    """
    gone = optimizer.param_groups.pop()
    for parameter in gone["params"]:
        optimizer.state.pop(parameter, None)
    train(model, optimizer, 1, mine)
    folder = os.path.dirname(shared(None))
    saves = (optimizer.state_dict, lambda: pyrannc.save(f"{folder}/run", model, optimizer))
    for save in saves:
        try:
            save()
            raise AssertionError("no error")
        except pyrannc.RaNNCError as error:  # was a ValueError of zip()
            assert "AdamW has 1 parameter groups, and had 2 when the model" in str(error), error
    """,
    before=SETUP,
)
def test_a_group_that_was_removed_is_an_error_when_the_state_is_asked_for(done):
    pass


@pytest.mark.ranks(
    """
    # Symptom: saved without the state of the inner one; and on a rank without parameters of both,
    # the inner one's steps were not counted. Since then the whole state is an error.
    from lookahead import Lookahead

    (plain, _), (inner, _) = build(), build()
    alone, steps = (
        Lookahead(torch.optim.Adam(each[4].parameters(), lr=0.05)) for each in (plain, inner)
    )
    ours = wrap(inner, steps)
    train(plain, alone, 5, slice(0, 8))
    train(ours, steps, 5, mine)
    for name, value in ours.state_dict(rank0_only=False).items():
        torch.testing.assert_close(value, plain.state_dict()[name])
    for what, ask in (
        ("optimizer.state_dict()", steps.state_dict),
        ("optimizer.load_state_dict()", lambda: steps.load_state_dict({})),
        ("pyrannc.save()", lambda: pyrannc.save(os.path.dirname(shared({})), ours, steps)),
    ):
        try:
            ask()
            raise AssertionError(f"no error: {what}")
        except pyrannc.RaNNCError as error:
            assert str(error).startswith(f"{what}: Lookahead is around Adam"), error
    part = steps.state_dict(from_global=False)
    assert len(part["state"]) == len(part["param_groups"][0]["params"]) == 2 * (rank == 1)
    steps.load_state_dict(part, from_global=False)
    ours.undeploy()
    equal_state(steps.state_dict(), alone.state_dict())
    train(plain, alone, 5, slice(0, 8))
    train(ours, steps, 5, mine)
    for name, value in ours.state_dict(rank0_only=False).items():
        torch.testing.assert_close(value, plain.state_dict()[name])
    print("all right", flush=True)
    """,
    before=SETUP,
)
def test_an_optimizer_around_another_one_trains_and_its_whole_state_is_an_error(done):
    assert done.stdout.count("all right") == 2, done.stderr


@pytest.mark.ranks(
    """
    # Symptom: nothing was loaded into an optimizer that had not stepped; frozen parameters were in
    # the state all the same.
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict,
    )
    pyrannc.init()
    folder = os.path.dirname(shared({}))
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/dcp")
    for called in ("without gradients", "with a backward"):
        inner_2, optimizer_2 = build()
        other = wrap(inner_2, optimizer_2)
        if called == "with a backward":
            other(torch.ones(4, 4)).mean().backward()
        else:
            with torch.no_grad():
                other(torch.ones(4, 4))
        before = other.state_dict(rank0_only=False)
        weights, state = get_state_dict(other, optimizer_2)
        assert not optimizer_2.state, "asking has changed it"
        for name, value in other.state_dict(rank0_only=False).items():
            assert torch.equal(value, before[name])
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/dcp")
        set_state_dict(other, optimizer_2, model_state_dict=weights, optim_state_dict=state)
        equal(optimizer_2.state_dict(rank0_only=False), own.state_dict())
    without = wrap(*build())
    with torch.no_grad():
        without(torch.ones(4, 4))
    plain_sgd = torch.optim.SGD(without.parameters(), lr=0.1)
    assert get_state_dict(without, plain_sgd)[1]["state"] == {}

    for each in (*inner_2[0].parameters(), *inner_2[4].parameters()):
        each.requires_grad_(False)
    for whole in (False, True):
        options = StateDictOptions(ignore_frozen_params=True, full_state_dict=whole)
        found = get_model_state_dict(other, options=options)
        assert len(found) == 2 or not whole, list(found)
        assert found.keys() <= {"2.weight", "2.bias"}, list(found)
    print("all right", flush=True)
    """,
    before=SETUP,
)
def test_distributed_checkpoint_loads_before_the_first_step_and_leaves_frozen_ones_out(done):
    assert done.stdout.count("all right") == 2, done.stderr
