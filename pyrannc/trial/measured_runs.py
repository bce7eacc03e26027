"""Runs a plan a few times before the first step, to know what its actions really take."""

import collections
import dataclasses
import json
import resource
import statistics
import time

import torch

from pyrannc.planning.step_prediction import COMPUTING
from pyrannc.state import named_tensors

#: After a run that takes longer there is no other.
#: tuned by: no measurement is known.
#: without it: the first step of a slow model waits for three runs.
SLOW_S = 2.0


@dataclasses.dataclass(frozen=True)
class Patience:
    """How often a plan runs. Quick ones run more often, because a short run is more easily
    disturbed: up to ``most`` times while all together take less than ``enough_s``. The first run
    may take twice as long as a step, as memory comes from the system, so it is the only one only if
    it takes longer than ``first_s``."""

    least: int
    most: int
    enough_s: float
    first_s: float = SLOW_S

    def expected_s(self, run_s) -> float:
        """What all runs take, if one takes ``run_s``."""
        return max(self.least * run_s, min(self.most * run_s, self.enough_s))


#: Runs of the planner's plan, and of one that is compared with it.
#: tuned by: `benchmarks/predicted_and_measured.py`; the numbers were not varied one by one.
#: without it: the time of a short run is that of whatever disturbed it; with more, the first step
#: waits longer.
OF_FIRST_PLAN = Patience(least=3, most=15, enough_s=1.5, first_s=20.0)
OF_ANOTHER_PLAN = Patience(least=2, most=7, enough_s=1.0)

#: Two runs of a plan that holds more than those before it both wait for pages of memory, which its
#: later steps will not: in a run that is longer than this, where that share is known to a percent,
#: it does not count. Shorter ones come often enough.
#: tuned by: no measurement is known.
#: without it: where pages are slow, a third of the second run, a plan with more memory never wins.
LONG_S = 0.5

#: A receive that is off the processor for longer has waited for its message.
#: tuned by: no measurement is known.
#: without it: the time that a message waits for its receiver counts as its time on the way.
WAITED_NS = 20_000
# Flight time of a message: the link says it.
UNKNOWN = -1

# Actions that all ranks of a set take part in: nobody goes on before the last has come.
COLLECTIVES = ("sync_buffers", "reduce_outputs", "reduce_gradients")


def measure(
    executor,
    tensors,
    differentiable,
    program,
    local_rows,
    world,
    trial=None,
    patience=OF_FIRST_PLAN,
    written=(),
) -> dict:
    """What every action of the executor's training Program takes, the same answer on all ranks.

    Collective. Runs forward and backward and throws the gradients away; buffers, parameters that
    the model writes and random numbers are afterwards as before. The first run warms up and does
    not count.

    Args:
        executor: ``_C.runtime.Executor``.
        tensors: Its inputs, parameters and buffers.
        differentiable: Which of its outputs have a gradient.
        program: ``_C.plan.Program`` that it runs on ``local_rows``.
        local_rows: Of all ranks.
        world: The communicator of the job.
        trial: ``optimizer_trial.StepBesideRuns``, which ends each run; or None.
        patience: How often it runs.
        written: Parameters that its forward writes.

    Returns:
        ``measured`` and ``around_ns`` of ``_C.predict.StepCosts``; ``optimizer_ns`` and
        ``optimizer_factor`` of each rank, the trial's time and how much longer the real step takes;
        ``compute_ns`` of each rank: of its computing actions, by the clock, as in shares.spent(),
        without what new memory takes;
        ``run_ns``: the time of a run, from the first rank's begin to the last one's end, without
        what new memory takes; ``shortest_ns``, the same of the shortest, the first one included;
        and ``all_ns``, the time that all of them took.
    """
    *_, buffers = tensors
    kept = [(tensor, tensor.detach().clone()) for tensor in (*buffers, *written)]
    random = torch.get_rng_state()
    runs, seconds, settled = [], [], []
    try:
        while len(runs) < patience.least or (
            len(runs) < patience.most and sum(seconds) < patience.enough_s
        ):
            mine = _run(executor, tensors, differentiable, local_rows, world, trial)
            mine["host"] = world.host
            runs.append([json.loads(item) for item in world.all_gather(json.dumps(mine).encode())])
            seconds.append(max(rank["seconds"] for rank in runs[-1]))
            if seconds[-1] <= LONG_S:  # it is not known well
                for rank in runs[-1]:
                    rank["paging"] = 0.0
            settled.append(seconds[-1] - max(rank["paging"] for rank in runs[-1]))
            if seconds[-1] > (SLOW_S if len(runs) > 1 else patience.first_s):
                break
    finally:
        torch.set_rng_state(random)
        with torch.no_grad():
            for tensor, before in kept:
                named_tensors.write(tensor, before)
    summary = summarize(json.loads(program.to_json()), runs[1:] or runs)
    return {
        **summary,
        "run_ns": statistics.median(settled[1:] or settled) * 1e9,
        "shortest_ns": min(settled) * 1e9,
        "all_ns": sum(seconds) * 1e9,
    }


def _run(executor, tensors, differentiable, local_rows, world, trial):
    """One run on this rank; of each action [index, time that passed, of this thread, end]."""
    before = resource.getrusage(resource.RUSAGE_THREAD)
    begin = time.perf_counter()
    world.all_gather(b"\0" * 32)  # as ranks agree on every call
    computed = executor.times.compute_ns
    begin_cpu = time.thread_time_ns()
    call = executor.forward(*tensors, local_rows, True)
    gradients = [
        torch.ones_like(output) if wanted and output is not None else None
        for output, wanted in zip(call.outputs, differentiable, strict=True)
    ]
    gradients = call.backward(gradients)
    cpu = time.thread_time_ns() - begin_cpu
    optimizer_ns = trial.step(gradients) if trial is not None else 0
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_THREAD)
    paged = after.ru_minflt > before.ru_minflt
    actions, inside = {}, 0
    for span in executor.timeline:
        inside += span.cpu_ns
        if span.action >= 0:
            actions[span.action] = [span.end_ns - span.begin_ns, span.cpu_ns, span.end_ns]
    return {
        "seconds": seconds,
        "paging": after.ru_stime - before.ru_stime if paged else 0.0,
        "around": max(cpu - inside, 0),
        "compute": executor.times.compute_ns - computed,
        "optimizer": optimizer_ns,
        "factor": trial.factor if trial is not None else 0.0,
        "actions": [[index, *spent] for index, spent in actions.items()],
        "one_thread": torch.get_num_threads() == 1,
    }


def summarize(program, runs) -> dict:
    """The arguments of ``_C.predict.StepCosts`` from ``runs[run][rank]``.

    Where one thread computes, its own time counts: the time that passes depends on who else needs
    the core, and that is for the prediction to say. Later steps do not ask for new memory. Equal
    actions (those of one stage, with equal rows, on replicas of one host) count with their median.
    Of a message for which its receiver waited, the time on its way counts, too.
    """
    samples = collections.defaultdict(list)
    waits = collections.defaultdict(list)
    flights = collections.defaultdict(list)
    twins = _twins(program, [measured["host"] for measured in runs[0]])
    keys = [_keys(program, rank, twin) for rank, twin in enumerate(twins)]
    for run in runs:
        shortest = {}  # by meeting: the wait of the rank that came last
        for rank, measured in enumerate(run):
            settled = _settled_share(measured)
            for index, passed, cpu, _ in measured["actions"]:
                kind, *_ = program["actions"][rank][index]
                if kind in COMPUTING:
                    spent = settled * (cpu if measured["one_thread"] else passed)
                else:
                    spent = cpu
                samples[keys[rank][index]].append(spent)
                if kind in COLLECTIVES:
                    meeting = _meeting(program, rank, index)
                    shortest[meeting] = min(shortest.get(meeting, passed), passed - cpu)
        for meeting, wait in shortest.items():
            waits[meeting].append(wait)
        for key, flight in _flights(program, keys, run):
            flights[key].append(flight)
    return {
        "measured": [
            [
                (
                    statistics.median(samples.get(key, [0.0])),
                    _wait(program, rank, index, waits)
                    if key[1] != "send"
                    else float(statistics.median(flights.get(key, [UNKNOWN]))),
                )
                for index, key in enumerate(keys[rank])
            ]
            for rank in range(len(keys))
        ],
        **{
            name: [
                float(
                    statistics.median(
                        of(measured)
                        for run in runs
                        for measured, same in zip(run, twins, strict=True)
                        if same == twin
                    )
                )
                for twin in twins
            ]
            for name, of in (
                ("around_ns", lambda rank: rank["around"]),
                ("compute_ns", lambda rank: rank["compute"] * _settled_share(rank)),
                ("optimizer_ns", lambda rank: rank["optimizer"]),
                ("optimizer_factor", lambda rank: rank["factor"]),
            )
        },
    }


def _settled_share(measured):
    """Of a rank's computing: what remains without the time for new memory, nearly all of which
    forward and backward ask for."""
    return max(1 - 1e9 * measured["paging"] / (measured["compute"] or 1), 0)


def _flights(program, keys, run):
    """(key of the send, time until its message was there) of those that the receiver waited for
    when they left.

    Clocks of different hosts cannot be compared, and of a message that left before its receiver
    came nobody knows when it was there.
    """
    sent = {}
    for rank, measured in enumerate(run):
        for index, _, _, end in measured["actions"]:
            kind, *way = program["actions"][rank][index]
            # One to itself is there at once.
            if kind == "send" and not keys[rank][index][-1]:
                sent[tuple(way)] = (measured["host"], keys[rank][index], end)
    for rank, measured in enumerate(run):
        for index, passed, cpu, end in measured["actions"]:
            kind, *way = program["actions"][rank][index]
            if kind != "receive" or tuple(way) not in sent:
                continue
            host, key, departure = sent[tuple(way)]
            began_in_time = end - passed <= departure
            if host == measured["host"] and began_in_time and passed - cpu > WAITED_NS:
                yield key, max(end - cpu - departure, 0)


def _twins(program, hosts):
    """For each rank the first one of its host that runs the same stages, perhaps itself.

    Of a plan that takes seconds one run counts: were ranks compared by what each did in it, the one
    that was disturbed would be predicted to be late in every step.
    """
    first = {}
    stages = [
        tuple(stage for stage, ranks in enumerate(program["stage_ranks"]) if rank in ranks)
        for rank in range(len(hosts))
    ]
    return [
        first.setdefault(kind, rank) for rank, kind in enumerate(zip(hosts, stages, strict=True))
    ]


def _keys(program, rank, twin):
    """Which actions of a rank are expected to take equally long, those of its twin included."""
    keys, begun = [], set()
    for index, (kind, *rest) in enumerate(program["actions"][rank]):
        if kind in ("forward", "backward"):
            stage, micro_batch = rest
            replica = program["stage_ranks"][stage].index(rank)
            begin, end = program["shares"][stage][replica][micro_batch]
            # The first backward writes gradients, the others add to them.
            keys.append((twin, kind, stage, end - begin, (kind, stage) in begun))
            if end > begin:
                begun.add((kind, stage))
        elif kind in ("send", "receive"):
            transfer = program["transfers"][rest[0]]
            way = (transfer["value"], transfer["from_stage"], transfer["to_stage"], rest[1])
            keys.append((rank, kind, *way, transfer["from"] == transfer["to"]))
        else:
            keys.append((rank, kind, index))
    return keys


def _wait(program, rank, index, waits):
    if program["actions"][rank][index][0] not in COLLECTIVES:
        return 0.0
    return float(statistics.median(waits[_meeting(program, rank, index)]))


def _meeting(program, rank, index):
    """Of a collective: the same for all its ranks. The n-th of its kind and argument on each."""
    action = program["actions"][rank][index]
    return (*action, program["actions"][rank][: index + 1].count(action))
