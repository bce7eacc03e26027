"""One rank that trains with the optimizer's state shared out over replicas, and without, alike.

Started by tests/dist/shards on several ranks with a file of names of cases; rank 0 writes what was
wrong in each of them, as JSON, to a file beside it.
"""

import copy
import json
import sys
import tempfile
import traceback
from pathlib import Path

import torch
from torch import nn

import pyrannc
from pyrannc import comm_utils, launch
from pyrannc.capture.model import capture
from pyrannc.state import tensor_parts

sys.path.append(str(Path(__file__).parents[1]))
import borders

PLANS = {
    "1": [1],
    "2": [2],
    "1+1": [1, 1],
    "4": [4],
    "2+2": [2, 2],
    "1+3": [1, 3],
    "3+1": [3, 1],
    "1+2+1": [1, 2, 1],
    "2x(2+2)": [2, 2, 2, 2],
    "2x(1+1)": [1, 1, 1, 1],
}
ROWS, STEPS = 12, 4


class Tied(nn.Module):
    """An embedding that is larger than the rest, and used on two stages; it returns its loss."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(67, 12)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(6))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, 67, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, labels):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x).tanh()
        return nn.functional.cross_entropy(self.head(self.scale * self.norm(x)), labels)


class Images(nn.Module):
    """Its weights do not lie one number after the other."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 5, 3)
        self.head = nn.Linear(5, 7)
        self.to(memory_format=torch.channels_last)

    def forward(self, ids, labels):
        pixels = (
            torch.stack([ids, ids + 1, 2 * ids], 1)[:, :, None, None].to(self.head.weight.dtype)
            / 67
        )
        x = self.first(pixels.expand(-1, -1, 6, 6)).relu()
        return nn.functional.cross_entropy(self.head(self.second(x).mean((2, 3))), labels % 7)


def sgd(p, **more):
    return torch.optim.SGD(p, lr=0.1, **more)


class OwnMomentum(torch.optim.Optimizer):
    """One that somebody has written by hand."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                held = self.state[p]
                held.setdefault("count", torch.zeros(()))
                held["count"] += 1
                held["mean"] = 0.9 * held.get("mean", torch.zeros_like(p)) + p.grad
                p.data = p.data - group["lr"] * held["mean"]  # other memory than before
        return loss


optim = torch.optim
OPTIMIZERS = {
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "adamw_loop": lambda p: optim.AdamW(p, lr=0.01, foreach=False),
    "adamw_foreach": lambda p: optim.AdamW(p, lr=0.01, foreach=True),
    "adamw_fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "sgd": sgd,
    "momentum": lambda p: sgd(p, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
    "adadelta": optim.Adadelta,
    "adamax": lambda p: optim.Adamax(p, lr=0.01),
    "asgd": lambda p: optim.ASGD(p, lr=0.05, t0=1),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "radam": lambda p: optim.RAdam(p, lr=0.01),
    "rprop": optim.Rprop,
    "by_hand": OwnMomentum,
}


def groups(model):
    """Two of them, with other options."""
    few = [p for p in model.parameters() if p.dim() < 2]
    many = [p for p in model.parameters() if p.dim() >= 2]
    return [{"params": few}, {"params": many, "lr": 0.02}]


FOLDER = tempfile.TemporaryDirectory()


def write_plan(model, batch, plan, schedule="1f1b", recompute="never"):
    """A plan file whose stages all have weights, as the planner need not make them here."""
    ranks, first = [], 0
    for count in PLANS[plan]:
        first %= pyrannc.get_world_size()  # groups of an interleaved plan have several stages
        ranks.append([*range(first, first + count)])
        first += count
    path = Path(FOLDER.name) / "plan.json"
    number = 4 if "x" in plan else 2
    graph = capture(model, batch, {}, None).graph
    path.write_text(json.dumps(borders.plan(graph, ranks, number, schedule, recompute, 3)))
    return path


class Run:
    """A wrapped model and its optimizers."""

    def __init__(
        self, plan, zero, optimizer="adamw", kind=Tied, dtype=torch.float64, grouped=False, **more
    ):
        torch.manual_seed(7)
        inner = kind().to(dtype)
        make = OPTIMIZERS[optimizer]
        self.optimizer = make(groups(inner) if grouped else inner.parameters())
        self.inner = inner
        settings = {"calibrate": False, "self_check": False}
        masters = more.pop("master_weights", False)
        schedule = more.pop("schedule", "interleaved" if "x" in plan else "1f1b")
        path = write_plan(inner, self.batch(0), plan, schedule, more.pop("recompute", "never"))
        self.zero = zero
        self.model = pyrannc.RaNNCModule(
            inner,
            self.optimizer,
            pyrannc.Config(**settings, **more),
            load_deployment=path,
            master_weights=masters,
            **({"enable_zero": True} if zero == "enable_zero" else {"zero": zero}),
        )

    def batch(self, step, part=0):
        torch.manual_seed(100 * step + part)
        ids, labels = torch.randint(0, 60, (2, ROWS))
        rank, ranks = pyrannc.get_rank(), pyrannc.get_world_size()
        mine = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
        return ids[mine], labels[mine]

    def train(self, first=0, last=STEPS, scheduler=None):
        for step in range(first, last):
            self.optimizer.zero_grad()
            self.model(*self.batch(step)).backward()
            self.optimizer.step()
            if scheduler:
                scheduler.step()
        return self

    def held_bytes(self):
        return sum(
            value.nbytes
            for entry in self.optimizer.state.values()
            for value in entry.values()
            if torch.is_tensor(value) and value.dim()
        )


def alike(one, other, tolerance=1e-6):
    """Weights and states of both, of all ranks."""
    assert bool(one.zero) != bool(other.zero)
    found, wanted = (run.model.state_dict(rank0_only=False) for run in (one, other))
    for name, value in wanted.items():
        torch.testing.assert_close(
            found[name],
            value,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    found, wanted = (run.optimizer.state_dict(rank0_only=False) for run in (one, other))
    assert found["param_groups"] == wanted["param_groups"]
    assert found["state"].keys() == wanted["state"].keys()
    for number, entry in wanted["state"].items():
        assert found["state"][number].keys() == entry.keys()
        for key, value in entry.items():
            torch.testing.assert_close(
                found["state"][number][key],
                value,
                rtol=1e-5,
                atol=tolerance,
                msg=lambda text, at=(number, key): f"{at}: {text}",
            )
    # Between steps parameters and gradients are those of the model.
    for run in (one, other):
        for parameter in run.model.parameters(from_global=False):
            assert parameter.grad is None or parameter.grad.shape == parameter.shape


shared = True  # of the case that runs: what the first of two runs shares


def pair(plan, **more):
    return [Run(plan, zero, **more) for zero in (shared, False)]


def plain(plan, optimizer="adamw", kind="Tied", dtype="float64", **more):
    """Steps, and what each rank holds of the state."""
    kind = {"Tied": Tied, "Images": Images}[kind]
    dtype = getattr(torch, dtype)
    one, other = pair(plan, optimizer=optimizer, kind=kind, dtype=dtype, **more)
    one.train()
    other.train()
    alike(one, other)
    if plan in ("2", "4"):
        share = max(one.held_bytes(), 1) / max(other.held_bytes(), 1)
        assert not other.held_bytes() or abs(share * int(plan) - 1) < 0.05, share


def schedulers(plan):
    for make in (
        lambda o: optim.lr_scheduler.StepLR(o, 1, 0.5),
        lambda o: optim.lr_scheduler.OneCycleLR(o, 0.05, total_steps=9),
    ):
        one, other = pair(plan, grouped=True)
        for run in (one, other):
            run.train(scheduler=make(run.optimizer))
        alike(one, other)


def accumulation(plan):
    """With and without sums over the replicas in between."""
    for quiet in (False, True):
        one, other = pair(plan)
        for run in (one, other):
            for step in range(STEPS):
                run.optimizer.zero_grad()
                for part in range(3):
                    if quiet and part < 2:
                        with run.model.no_sync():
                            run.model(*run.batch(step, part)).backward()
                    else:
                        run.model(*run.batch(step, part)).backward()
                run.optimizer.step()
        alike(one, other)


def check_shards(run):
    """Gradients are sums where this rank steps, and zero beside it; or parts."""
    assert run.model.plan.shard_optimizer
    if run.zero == "parameters":
        mine = [stage for stage in run.model.plan.stages if pyrannc.get_rank() in stage.ranks]
        parts = [p for p in run.inner.parameters() if tensor_parts.is_part(p)]
        assert len(parts) == sum(len(stage.shared) for stage in mine)
        for part in parts:
            rows = -(-part.shape[0] // len(mine[0].ranks))
            assert tensor_parts.plain(part).shape[0] <= rows < part.shape[0]
            assert tensor_parts.plain(part.grad).shape == tensor_parts.plain(part).shape
        return
    outside = 0
    for parameter in run.model.parameters(from_global=False):
        piece = run.model._deployment.sharded_steps.shards.mine(parameter)
        if piece is not None and parameter.grad is not None:
            flat = parameter.grad.reshape(-1)
            assert not flat[: piece[0]].any() and not flat[piece[1] :].any()
            outside += flat.numel() - (piece[1] - piece[0])
    assert outside or not run.model._deployment.sharded_steps.shards.pieces


def automatic(plan):
    """The planner shares the state where memory asks for it, and not where it is slower."""
    from pyrannc import _C  # its plan says so

    inner = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    bytes_of_model = sum(p.nbytes for p in inner.parameters())
    shared = []
    for limit in (3.6, 40.0):
        torch.manual_seed(7)
        inner = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
        optimizer = optim.AdamW(inner.parameters())
        config = pyrannc.Config(
            partition_num=1, replica_nums=PLANS[plan], calibrate=False, self_check=False,
            mem_limit_gb=limit * bytes_of_model / 2**30, mem_margin=0.0,
        )  # fmt: skip
        model = pyrannc.RaNNCModule(inner, optimizer, config, zero="auto")
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 256)).square().mean().backward()
            optimizer.step()
        shared.append(model.plan.shard_optimizer)
        predicted = _C.plan.Plan.from_json(model.plan.to_json())
        assert predicted.shard_optimizer == shared[-1]
    assert shared[0], "two copies of the model and half of the state fit in 3.6 copies"


def clipping(plan):
    norms, gradients = [], []
    for run in pair(plan):
        norms.append([])
        for step in range(STEPS):
            run.optimizer.zero_grad()
            run.model(*run.batch(step)).backward()
            norms[-1].append(run.model.calc_grad_norm())
            gradients.append(run.model.get_param_grad("embed.weight"))
            if run.zero and step == 0:
                check_shards(run)
            found = nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
            norms[-1].append(found.item())
            norms[-1].append(run.model.clip_grad_norm(0.05))
            run.optimizer.step()
        if run.zero:
            one = run
    alike(one, run)
    torch.testing.assert_close(torch.tensor(norms[0]), torch.tensor(norms[1]))
    torch.testing.assert_close(gradients[:STEPS], gradients[STEPS:])


def scaler(plan):
    """A step is left out where a gradient is infinite."""
    scales = []
    for run in pair(plan):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
        scales.append([])
        for step in range(STEPS + 2):
            run.optimizer.zero_grad()
            loss = run.model(*run.batch(step))
            scaler.scale(loss).backward()
            if step == 2:
                for parameter in run.model.parameters(from_global=False):
                    if pyrannc.get_rank() == pyrannc.get_world_size() - 1:
                        tensor_parts.plain(parameter.grad).reshape(-1)[-1:].fill_(float("inf"))
            scaler.unscale_(run.optimizer)
            scaler.step(run.optimizer)
            scaler.update()
            scales[-1].append(scaler.get_scale())
        if run.zero:
            one = run
    alike(one, run)
    assert scales[0] == scales[1] == [16, 32, 16, 16, 32, 32], scales


def closures_and_hooks(plan):
    seen = []
    for run in pair(plan):
        shapes = []

        def look(optimizer, *_, shapes=shapes):
            shapes.append([[p.shape for p in g["params"]] for g in optimizer.param_groups])

        run.optimizer.register_step_pre_hook(look)
        run.optimizer.register_step_post_hook(look)
        for step in range(STEPS):

            def closure(run=run, step=step):
                run.optimizer.zero_grad()
                loss = run.model(*run.batch(step))
                loss.backward()
                return loss

            closure() if step % 2 else None
            run.optimizer.step(closure if step % 2 == 0 else None)
        run.optimizer.step(closure=closure)
        seen.append(shapes)
        if run.zero:
            one = run
    alike(one, run)
    assert seen[0] == seen[1]


def averages(plan):
    """Whoever reads parameters after a step has those of the step."""
    averages = []
    for run in pair(plan):
        held = {n: p.detach().clone() for n, p in run.model.named_parameters(from_global=False)}
        run.train(0, 1)
        held = {n: p.detach().clone() for n, p in run.model.named_parameters(from_global=False)}
        for step in range(1, STEPS):
            run.train(step, step + 1)
            for name, parameter in run.model.named_parameters(from_global=False):
                held[name].lerp_(parameter.detach(), 0.5)
        averages.append(held)
    for name, value in averages[1].items():
        torch.testing.assert_close(averages[0][name], value, rtol=1e-6, atol=1e-6)


def several_optimizers(plan):
    runs = []
    for zero in (True, False):
        torch.manual_seed(7)
        inner = Tied().double()
        few = [p for p in inner.parameters() if p.dim() < 2]
        many = [p for p in inner.parameters() if p.dim() >= 2]
        first, second = optim.AdamW(few, lr=0.01), sgd(many, momentum=0.9)
        run = Run.__new__(Run)
        run.zero, run.inner, run.optimizer = zero, inner, second
        run.model = pyrannc.RaNNCModule(
            inner, [first, second], pyrannc.Config(calibrate=False, self_check=False), zero=zero,
            load_deployment=write_plan(inner, run.batch(0), plan),
        )  # fmt: skip
        for step in range(STEPS):
            run.model.zero_grad()
            run.model(*run.batch(step)).backward()
            first.step()
            second.step()
        runs.append(run)
    alike(*runs)


def late(plan):
    """Optimizers that are made after wrapping, and groups that are added."""
    runs = []
    for run in pair(plan):
        run.train(0, 1)
        parameters = [*run.model.parameters()]
        run.optimizer = optim.Adam(parameters[:2], lr=0.01)
        run.optimizer.add_param_group({"params": parameters[2:], "lr": 0.02})
        run.train(1, STEPS)
        runs.append(run)
    alike(*runs)


def loaded(plan):
    """A state of one process, before the first call and after; and what one's own rank has."""
    torch.manual_seed(7)
    twin = Tied().double()
    optimizer = OPTIMIZERS["adamw"](twin.parameters())
    one_process = Run("1", False)
    for step in range(2):
        torch.manual_seed(100 * step)
        optimizer.zero_grad()
        twin(*torch.randint(0, 60, (2, ROWS))).backward()
        optimizer.step()
    state = optimizer.state_dict()
    del one_process
    for when in ("before", "after"):
        runs = pair(plan)
        for run in runs:
            if when == "after":
                run.train(0, 1)
            run.optimizer.load_state_dict(copy.deepcopy(state))  # torch keeps its tensors
            run.train(1, 2)
        alike(*runs)
        here = runs[0].optimizer.state_dict(from_global=False)
        runs[0].train(2, 3)
        runs[0].optimizer.load_state_dict(here)
        whole = runs[0].optimizer.state_dict()
        runs[1].train(2, 3)
        runs[1].optimizer.load_state_dict(whole)
        alike(*runs)


def planned_anew(plan):
    """Every rank has the whole state again, and goes on."""
    runs = pair(plan)
    for run in runs:
        run.train(0, 2)
        run.model.undeploy()
        run.train(2, STEPS)
    alike(*runs)


def evaluated_first(plan):
    """The first call does not train, and a later capture has other parameters."""
    runs = pair(plan)
    for run in runs:
        run.model.eval()
        with torch.no_grad():
            run.model(*run.batch(0))
        run.model.train()
        run.train()
        run.model.eval()
        run.model(*run.batch(0))
        run.model.train()
        run.train(STEPS, STEPS + 1)
    alike(*runs)


def failed_step(plan):
    """A step that raises leaves whole parameters."""
    runs = pair(plan)
    for run in runs:
        run.train(0, 1)
        run.optimizer.param_groups[0]["betas"] = None  # as no step can take
        run.optimizer.zero_grad()
        run.model(*run.batch(1)).backward()
        try:
            run.optimizer.step()
            raise AssertionError("a step without betas")
        except TypeError:
            pass
        run.optimizer.param_groups[0]["betas"] = (0.9, 0.999)
        run.train(1, STEPS)
    alike(*runs)


def distributed_checkpoint(plan):
    """torch's, written with shared states, read without, and the other way round."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    pyrannc.init()
    world = launch.world()
    for writes in (True, False):
        folder = tempfile.mkdtemp() if world.rank == 0 else ""
        folder = world.broadcast(folder.encode(), 0).decode()
        one = Run(plan, writes).train(0, 2)
        weights, state = get_state_dict(one.model, one.optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
        one.train(2, STEPS)
        other = Run(plan, not writes).train(4, 5)
        weights, state = get_state_dict(other.model, other.optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
        set_state_dict(
            other.model, other.optimizer, model_state_dict=weights, optim_state_dict=state
        )
        alike(one, other.train(2, STEPS))


def of_original(plan):
    """As scripts of RaNNC 0.7 save and resume."""
    one = Run(plan, "enable_zero")
    one.train(0, 2)
    weights, state = one.model.state_dict(), one.optimizer.state_dict(from_global=True)
    if pyrannc.get_rank() == 0:
        assert len(state["state"]) == len([*one.inner.parameters()])
    other = Run(plan, "enable_zero")
    other.model.load_state_dict(comm_utils.bcast_obj(weights, 0))
    other.model(*other.batch(9)).backward()  # makes the plan
    other.optimizer.load_state_dict(state, from_global=True)
    for run in (one, other):
        for step in range(2, STEPS):
            run.model.zero_grad()
            with run.model.no_sync():
                run.model(*run.batch(step)).backward()
            run.model.allreduce_grads_zero()
            run.optimizer.step()
    twin = Run(plan, False).train()
    alike(one, twin)
    alike(other, twin)


CASES = {
    each.__name__: each
    for each in (
        plain, schedulers, accumulation, clipping, scaler, closures_and_hooks, averages,
        several_optimizers, late, loaded, planned_anew, evaluated_first, failed_step,
        distributed_checkpoint, of_original, automatic,
    )
}  # fmt: skip


def run_case(name):
    """``plain/2+2/optimizer=sgd``: what is done, the plan, and more."""
    kind, plan, *more = name.split("/")
    global shared
    options = dict(each.split("=") for each in more)
    shared = options.pop("zero", True)
    CASES[kind](plan, **options)


def main(path):
    world, found = launch.world(), {}
    for name in json.loads(path.read_text()):
        try:
            run_case(name)
            fault = ""
        except Exception:
            fault = traceback.format_exc()
        faults = [item.decode() for item in world.all_gather(fault.encode())]
        found[name] = next((fault for fault in faults if fault), "")
        if pyrannc.get_rank() == 0:
            path.with_suffix(".found").write_text(json.dumps(found))
        if found[name] and any(not fault for fault in faults):
            break  # the others may wait for ranks that have gone on


if __name__ == "__main__":
    main(Path(sys.argv[1]))
