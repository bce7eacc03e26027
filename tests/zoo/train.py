"""One rank that trains architectures of the zoo, wrapped, beside one process with the whole batch.

Started on several ranks by :func:`zoo.trained`; rank 0 prints one line of JSON for each case.

    train.py PLAN/ARCHITECTURE ...        PLAN: free, or four (stages); or audited by the
                                          front end torchscript, or export

``four/gpt2+other`` gives the one process other rows, to show that it is compared with.
"""

import json
import statistics
import sys
import time
import traceback
import warnings

import torch
from architectures import LOSS_OUTSIDE, call_of, kind_of, loss_of, model_of
from torch import nn

import pyrannc
from pyrannc import RaNNCError, launch

STEPS, ROWS, MICRO_BATCHES = 3, 8, 2
#: Calls of which the second and the fourth are audited.
AUDITED_CALLS = 4
# Of the loss, of each weight over its largest entry, and of each weight's change over the largest
# change in the model.
LOSS, WEIGHT, CHANGE = 1e-5, 1e-4, 1e-3


def normalises(model):
    """Whether there is a batch normalisation, whose numbers are those of a micro-batch."""
    return any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in model.modules())


def config_of(plan, ranks, model):
    # As one process does.
    forced = {"sync_batch_norm": normalises(model), "max_pipeline": MICRO_BATCHES}
    if plan == "four":
        forced = {"partition_num": 4, "replica_nums": [1] * 4, "pipeline_num": MICRO_BATCHES}
        if ranks < 4:  # two stages on each
            forced["schedule"] = "interleaved"
    return pyrannc.Config(
        **forced,
        calibrate=False,  # trial runs of plans decide nothing that is tested here
        comm_timeout_s=60,
    )


def rows_of(call, first, last):
    return {key: value[first:last] for key, value in call.items()}


def step(kind, model, optimizer, calls):
    """The loss of one step over parts of equal size, each of which counts alike."""
    total = 0.0
    for call in calls:
        loss = loss_of(kind, model(**call))
        (loss / len(calls)).backward()
        total += loss.item() / len(calls)
    optimizer.step()
    optimizer.zero_grad()
    return total


def micro_batches(call, ranks):
    """The k-th part of the rows of every rank, in the order of ranks, for each k."""
    every = torch.arange(ROWS).reshape(ranks, MICRO_BATCHES, -1).unbind(1)
    return [{key: value[rows.flatten()] for key, value in call.items()} for rows in every]


def train(plan, name, comm, place="cpu"):
    """``(verdict, reason, stages)`` of one case, on a device."""
    name, _, other = name.partition("+")
    kind = kind_of(name)
    plain, twin = (model_of(kind, name).to(place) for _ in range(2))
    dtype = torch.float32
    if normalises(plain):  # over a handful of numbers, which blows up what float32 rounds off
        dtype = torch.float64
        plain, twin = plain.to(dtype), twin.to(dtype)
    before = on_host(twin.state_dict())
    optimizer, twins = (
        torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9) for each in (plain, twin)
    )
    model = pyrannc.RaNNCModule(plain, optimizer, config_of(plan, comm.size, plain))
    share = ROWS // comm.size
    wrong = []
    for number in range(STEPS):
        call = {
            key: value.to(place, dtype) if value.is_floating_point() else value.to(place)
            for key, value in call_of(kind, twin, ROWS, seed=number).items()
        }
        own = rows_of(call, comm.rank * share, (comm.rank + 1) * share)
        try:
            found = step(kind, model, optimizer, [own])
        except RaNNCError as error:
            if number == 0:  # before anything was trained
                return "refused", str(error), 0
            raise
        if kind in LOSS_OUTSIDE:  # where each rank knows that of its own rows
            found = statistics.fmean(map(float, comm.all_gather(repr(found).encode())))
        apart = plan == "four" and normalises(twin)
        if other:
            call = call_of(kind, twin, ROWS, seed=STEPS + number)
        parts = micro_batches(call, comm.size) if apart else [call]
        expected = step(kind, twin, twins, parts)
        if not abs(found - expected) <= LOSS * abs(expected):
            wrong.append(f"loss {found} of step {number}, one process {expected}")
    state = model.state_dict()
    if comm.rank == 0:
        wrong += differing(on_host(state), on_host(twin.state_dict()), before)
    stages = len(model.plan.stages)
    return ("differs", "; ".join(wrong[:3]), stages) if wrong else ("equal", "", stages)


def audited(front_end, name, comm):
    """Nothing changes between the calls, so that each error of an audit is a false alarm: the
    names of this process's sets, and with them their order, are not those of another's."""
    kind = kind_of(name)
    model = model_of(kind, name)
    share = ROWS // comm.size
    call = rows_of(call_of(kind, model, ROWS), comm.rank * share, (comm.rank + 1) * share)
    forced = {"sync_batch_norm": normalises(model), "max_pipeline": MICRO_BATCHES}
    settings = pyrannc.Config(
        **forced, frontend=front_end, audit="auto", self_check=False, calibrate=False,
        comm_timeout_s=600,
    )  # fmt: skip
    model = pyrannc.RaNNCModule(model, config=settings)
    for number in range(AUDITED_CALLS):
        try:
            loss_of(kind, model(**call)).backward()
        except RaNNCError as error:
            return "differs" if number else "refused", str(error), 0
    count = model.metrics()["audits"]
    if count < 2:
        return "differs", f"{count} audits in {AUDITED_CALLS} calls", 0
    return "equal", "", len(model.plan.stages)


def on_host(state):
    return {key: value.detach().cpu().clone() for key, value in state.items()}


def differing(found, expected, before):
    changes = {
        key: (expected[key] - before[key]).abs().max().item()
        for key in expected
        if expected[key].is_floating_point() and expected[key].numel()
    }
    largest = max(changes.values())
    for key in changes:
        error = (found[key] - expected[key]).abs().max().item()
        scale = expected[key].abs().max().item()
        if not error <= min(WEIGHT * scale, CHANGE * largest) and error > 1e-9:
            yield f"'{key}' by {error:.2g} of {scale:.2g}, after a change of {changes[key]:.2g}"
    if found.keys() != expected.keys():
        yield f"the state lacks or has too many: {sorted(found.keys() ^ expected.keys())}"


def main(cases):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    comm = launch.world()
    for case in cases:
        begin = time.monotonic()
        if comm.rank == 0:
            print(json.dumps({"begins": case}), flush=True)
        plan, name = case.split("/")
        try:
            run = audited if plan in ("torchscript", "export") else train
            verdict, reason, stages = run(plan, name, comm)
        except BaseException as error:
            # The others may wait for this rank in the middle of a step: the job ends here.
            where = traceback.format_exc()[-3000:]
            line = {"case": case, "verdict": "failed", "reason": f"{type(error).__name__}: {error}"}
            print(json.dumps(line | {"rank": comm.rank, "where": where}), flush=True)
            raise
        everyone = [
            json.loads(each) for each in comm.all_gather(json.dumps([verdict, reason]).encode())
        ]
        worst = next((each for each in everyone if each[0] != "equal"), everyone[0])
        if comm.rank == 0:
            line = {"case": case, "verdict": worst[0], "reason": worst[1], "stages": stages}
            line["seconds"] = round(time.monotonic() - begin, 1)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
