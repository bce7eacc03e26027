"""One rank of the trials of other plans: what training is after one, against one process.

Started by tests/dist/trial/test_try_plans.py on two ranks; each rank prints one line of JSON for
each case. Runs are real, but what they are said to have taken is given, so that every case ends
where it is meant to.
"""

import copy
import json
import sys
import traceback

import torch
from torch import nn
from torch.nn import functional

import pyrannc
from pyrannc import launch
from pyrannc.planning import candidates
from pyrannc.state.released import is_released
from pyrannc.trial import measured_runs

# Plan, schedule, the planner's number, ms of each number, which are run in this order, and the one
# that has to be taken. Each rank has 8 rows; shares of a single one are not tried.
PLANS = {
    "2": {"partition_num": 1, "replica_nums": [2]},
    "1+1": {"partition_num": 2, "replica_nums": [1, 1]},
    "2x(1+1)": {"partition_num": 4, "replica_nums": [1, 1, 1, 1]},
}
CASES = {
    "replicas, fewer": ("2", "1f1b", 8, {8: 9, 4: 8, 2: 7, 1: 8}, 2),
    "replicas, gpipe": ("2", "gpipe", 4, {4: 9, 2: 8, 1: 7}, 1),
    "replicas, none": ("2", "1f1b", 4, {4: 9, 2: 10}, 4),
    "pipeline, fewer": ("1+1", "1f1b", 4, {4: 9, 2: 8, 1: 9}, 2),
    "pipeline, more": ("1+1", "1f1b", 2, {2: 9, 1: 10, 4: 8, 8: 7}, 8),
    "pipeline, gpipe": ("1+1", "gpipe", 4, {4: 9, 2: 9, 8: 8}, 8),
    # Whole rounds of two groups: 1 cannot be.
    "interleaved, fewer": ("2x(1+1)", "interleaved", 8, {8: 9, 4: 8, 2: 7}, 2),
    "interleaved, more": ("2x(1+1)", "interleaved", 2, {2: 9, 4: 8, 8: 9}, 4),
}
# Nothing is forced: whether each plan is faster or slower than those before it.
SHAPES = {"every arrangement is faster": -1, "every arrangement is slower": 1}
ROWS = 8
STEPS = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, labels):
        self.seen += 1
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return functional.cross_entropy(x, labels)


def batch(step, rows):
    generator = torch.Generator().manual_seed(step)
    total = ROWS * launch.get_world_size()
    x = torch.randn(total, 6, generator=generator, dtype=torch.float64)
    return x[rows], torch.randint(6, (total,), generator=generator)[rows]


def train(model, optimizer, rows):
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(*batch(step, rows))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def differences(case, comm):
    """What is not as it has to be on this rank."""
    plan, schedule, planned, ms, taken = CASES[case]
    tried = []
    plan_of_search, measure = candidates.Planner.plan, measured_runs.measure

    def begin_with(planner):
        return planner.with_micro_batches(plan_of_search(planner), planned)

    def faked(executor, tensors, differentiable, program, *rest):
        tried.append(program.micro_batches)
        found = measure(executor, tensors, differentiable, program, *rest)
        found.shortest_ns = ms[program.micro_batches] * 1e6
        return found

    torch.manual_seed(0)
    twin = Net().double()
    wrapped = copy.deepcopy(twin)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    config = pyrannc.Config(**PLANS[plan], schedule=schedule, comm_timeout_s=20)
    model = pyrannc.RaNNCModule(wrapped, optimizer, config)
    mine = slice(comm.rank * ROWS, (comm.rank + 1) * ROWS)
    candidates.Planner.plan, measured_runs.measure = begin_with, faked
    try:
        losses = train(model, optimizer, mine)
    finally:
        candidates.Planner.plan, measured_runs.measure = plan_of_search, measure

    if tried != list(ms):
        yield f"tried {tried}"
    plans = {item.decode() for item in comm.all_gather(model.plan.to_json().encode())}
    if len(plans) > 1:
        yield f"plans differ: {plans}"
    if model.plan.micro_batches != taken:
        yield f"takes {model.plan.micro_batches}"
    notes = json.loads(model.plan.notes)
    if [each["micro_batches"] for each in notes["tried_micro_batches"]] != tried:
        yield f"notes: {notes['tried_micro_batches']}"
    if model.plan.stages[0].predicted.rows != -(-2 * ROWS // taken // (2 if plan == "2" else 1)):
        yield f"predicts {model.plan.stages[0].predicted.rows} rows"

    yield from differences_of_training(model, losses, twin)


def differences_of_training(model, losses, twin):
    whole = torch.optim.AdamW(twin.parameters(), lr=0.01)
    expected = train(twin, whole, slice(None))
    if not torch.allclose(torch.tensor(losses), torch.tensor(expected), rtol=1e-12):
        yield f"losses {losses}, one process {expected}"
    state = model.state_dict(rank0_only=False)
    for name, value in twin.state_dict().items():
        if not torch.allclose(state[name], value, rtol=1e-10, atol=1e-12):
            yield f"{name} differs"


def arrangement_of(plan):
    return [len(stage.ranks) for stage in plan.stages], plan.schedule


def differences_with_shapes(case, comm):
    """The same where plans of other arrangements are tried."""
    tried = []  # programs, in their order
    measure, reach = measured_runs.measure, candidates.SLOWER_BY

    def faked(executor, tensors, differentiable, program, *rest):
        found = measure(executor, tensors, differentiable, program, *rest)
        text = program.to_json()
        if text not in tried:
            tried.append(text)
        found.shortest_ns = (100 + 10 * SHAPES[case] * tried.index(text)) * 1e6
        return found

    torch.manual_seed(0)
    twin = Net().double()
    wrapped = copy.deepcopy(twin)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    model = pyrannc.RaNNCModule(
        wrapped, optimizer, pyrannc.Config(pipeline_num=4, comm_timeout_s=20)
    )
    mine = slice(comm.rank * ROWS, (comm.rank + 1) * ROWS)
    measured_runs.measure, candidates.SLOWER_BY = faked, 1e9  # whatever operators say
    try:
        losses = train(model, optimizer, mine)
    finally:
        measured_runs.measure, candidates.SLOWER_BY = measure, reach

    notes = json.loads(model.plan.notes)
    runs = [(run["replicas"], run["schedule"]) for run in notes["tried_shapes"]]
    if not 2 <= len(runs) == len(tried):
        yield f"tried {runs}, ran {len(tried)} plans"
    if arrangement_of(model.plan) != runs[-1 if SHAPES[case] < 0 else 0]:
        yield f"takes {arrangement_of(model.plan)}, tried {runs}"
    others = [(other["kind"], other["why"]) for other in notes["alternatives"]]
    if (others[0][0] == "the times of operators") != (SHAPES[case] < 0):
        yield f"alternatives {others}"
    if SHAPES[case] < 0 and not others[0][1].endswith("but ran longer"):
        yield f"alternatives {others}"
    plans = {item.decode() for item in comm.all_gather(model.plan.to_json().encode())}
    if len(plans) > 1:
        yield f"plans differ: {plans}"
    # What the taken plan gives to this rank, and nothing of those that were tried.
    held = {id(parameter) for parameter in model.parameters() if not is_released(parameter)}
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    here = [stage for stage in model.plan.stages if comm.rank in stage.ranks]
    layers = {name.rsplit(".", 1)[0] for stage in here for name in stage.nodes if "layers" in name}
    if held != stepped or len(held) != 2 * len(layers):
        yield f"holds {len(held)}, steps {len(stepped)} parameters of {sorted(layers)}"
    yield from differences_of_training(model, losses, twin)


def error_of_rank_0(comm):
    """Its text, on this rank: nobody waits for a rank that cannot go on."""
    with_micro_batches = candidates.Planner.with_micro_batches

    def fails(*arguments):
        if comm.rank == 0:
            raise pyrannc.PlanError("no other number")
        return with_micro_batches(*arguments)

    candidates.Planner.with_micro_batches = fails
    try:
        config = pyrannc.Config(**PLANS["1+1"], comm_timeout_s=20)
        model = pyrannc.RaNNCModule(Net().double(), config=config)
        model(*batch(0, slice(0, ROWS)))
    except pyrannc.PlanError as error:
        return str(error)
    finally:
        candidates.Planner.with_micro_batches = with_micro_batches
    return "no error"


def main():
    comm = launch.world()
    for case in [*CASES, *SHAPES]:
        try:
            found = list((differences if case in CASES else differences_with_shapes)(case, comm))
        except Exception:
            # The other rank may wait for this one: the job ends.
            sys.stderr.write(f"{case}\n{traceback.format_exc()}")
            raise
        sys.stdout.write(json.dumps({"case": case, "found": found}) + "\n")
        sys.stdout.flush()
    sys.stdout.write(json.dumps({"case": "error", "found": [error_of_rank_0(comm)]}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
