"""One rank of the equality suite: wrapped models under many plans against one process.

Started by test_equality.py on several ranks with the names of the cases; rank 0 prints one line of
JSON for each. Every rank computes the twin itself: one process on the concatenated batch, or, for
models with BatchNorm that is not synchronised, on the same micro-batches and shares. Where there is
dropout, it is that of ``deterministic_dropout``, and the twin, a plain model, is handed its masks.

With TEST_DEVICE=standin the wrapped model computes on a stand-in accelerator: every second case
begins with a model on the host, of which each rank moves its part. The twin is on the CPU.
"""

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import traceback
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import pyrannc
from pyrannc import _C, launch
from pyrannc.capture.model import capture
from pyrannc.planning import candidates, schedules

sys.path.append(str(Path(__file__).parents[1]))
import borders
import standin
from dropout_models import DROPOUTS
from keyed_masks import KeyedMasks
from loss_models import LANGUAGE_LOSSES, LOSSES
from models import FLOAT32_TRANSFORMERS, TRANSFORMERS, ZOO
from norm_models import NORMS

# Forced stages and replicas; "auto" leaves everything to the planner.
PLANS = {
    "auto": {},
    "1": {"partition_num": 1, "replica_nums": [1]},
    "2": {"partition_num": 1, "replica_nums": [2]},
    "1+1": {"partition_num": 2, "replica_nums": [1, 1]},
    "4": {"partition_num": 1, "replica_nums": [4]},
    "2+2": {"partition_num": 2, "replica_nums": [2, 2]},
    "1+3": {"partition_num": 2, "replica_nums": [1, 3]},
    "3+1": {"partition_num": 2, "replica_nums": [3, 1]},
    "2+1+1": {"partition_num": 3, "replica_nums": [2, 1, 1]},
    "1+1+1+1": {"partition_num": 4, "replica_nums": [1, 1, 1, 1]},
    # Two groups of ranks with two stages each: only the schedule interleaved runs them.
    "2x(2+2)": {"partition_num": 4, "replica_nums": [2, 2, 2, 2]},
    "2x(1+3)": {"partition_num": 4, "replica_nums": [1, 3, 1, 3]},
}
# Largest error of a tensor over the largest entry of its kind in the whole model, and over its own
# largest entry where that exceeds 1e-3 of the model's: where the true gradient is zero is noise.
MODEL_WIDE = {torch.float32: 1e-5, torch.float64: 1e-10}
PER_TENSOR = {torch.float32: 1e-4, torch.float64: 1e-9}
STEPS = 3
SEED = 2**33 + 5  # of random numbers
DEVICE = os.environ.get("TEST_DEVICE", "cpu")  # of the wrapped model
# These compute their loss in float32 whatever the model's dtype.
FLOAT32_LOSS = {"gpt2", "llama", "padded_gpt2", "dropout_gpt2"}


@dataclass(frozen=True)
class Case:
    """``bert/2+1+1/m4/b3/float64/adamw``: model, plan, micro-batches, local rows, dtype, optimizer.

    Then, where they are not "auto", recompute (never, always, mixed) and schedule, and "sync" for
    ``sync_batch_norm``. A plan like ``2+1+1~7`` is a file with stages at borders that are drawn
    with seed 7; without one, stages are where the planner wants them. Local rows like
    ``b3.1.4.2_0.2.5.2`` are those of each rank, step by step; then an eval step follows, too.
    """

    model: str
    plan: str
    micro_batches: int
    rows: str
    dtype: str
    optimizer: str
    recompute: str = "auto"
    schedule: str = "auto"
    norms: str = ""

    @classmethod
    def parse(cls, name: str) -> "Case":
        model, plan, micro_batches, rows, dtype, optimizer, *rest = name.split("/")
        return cls(model, plan, int(micro_batches[1:]), rows[1:], dtype, optimizer, *rest)

    @property
    def seed(self):
        """Of the borders; None where the planner decides."""
        return int(self.plan.split("~")[1]) if "~" in self.plan else None

    @property
    def is_uneven(self):
        return "." in self.rows

    def local_rows(self, step, world):
        """Rows of each rank; steps after the last one that is given are like it."""
        steps = self.rows.split("_")
        counts = [int(count) for count in steps[min(step, len(steps) - 1)].split(".")]
        return counts if self.is_uneven else counts * world

    @property
    def begins_on_host(self):
        """Whether the model is moved by us, where it computes on an accelerator."""
        return zlib.crc32(self.model.encode()) % 2 == 0

    @property
    def torch_dtype(self):
        return getattr(torch, self.dtype)

    @property
    def precision(self):
        """The dtype that limits the numbers."""
        return torch.float32 if self.model in FLOAT32_LOSS else self.torch_dtype

    def config(self):
        planned = (
            {}
            if self.seed is not None
            else {
                **PLANS[self.plan],
                "pipeline_num": self.micro_batches if self.plan != "auto" else 0,
                "recompute": "auto" if self.recompute == "mixed" else self.recompute,
            }
        )
        return pyrannc.Config(
            **planned,
            schedule=self.schedule,
            device=DEVICE if DEVICE != "cpu" and self.begins_on_host else "",
            sync_batch_norm=self.norms == "sync",
            deterministic_dropout=self.model in DROPOUTS,
            calibrate=self.plan == "auto",  # trial runs of forced plans decide nothing
            # Against hangs; a stand-in device takes long where all processors are busy.
            comm_timeout_s=60 if DEVICE == "cpu" else 300,
        )


@dataclass
class Comparison:
    """Collects the largest error of each kind (loss, gradients, ...) over the tensors of a rank."""

    dtype: torch.dtype
    pairs: dict = field(default_factory=dict)

    def add(self, kind, name, ours, twin):
        assert ours.shape == twin.shape, f"{kind} {name}: {ours.shape}, one process {twin.shape}"
        pair = ours.detach().to("cpu", copy=True), twin.detach().clone()  # as they are now
        self.pairs.setdefault(kind, []).append((name, *pair))

    def failures(self):
        for kind, pairs in self.pairs.items():
            model_scale = max(largest(twin) for _, _, twin in pairs)
            for name, ours, twin in pairs:
                equal = ours == twin  # infinite entries of masks have no difference
                error = largest(torch.where(equal, 0, ours - twin))
                own_scale = largest(twin)
                if not error <= MODEL_WIDE[self.dtype] * model_scale:  # also catches nan
                    yield f"{kind} '{name}': error {error:.3g}, largest entry {model_scale:.3g}"
                elif own_scale > 1e-3 * model_scale and error > PER_TENSOR[self.dtype] * own_scale:
                    yield f"{kind} '{name}': error {error:.3g}, own largest entry {own_scale:.3g}"


def largest(tensor):
    """The largest entry by size that is not infinite; nan when any is nan."""
    sizes = tensor.abs()[~tensor.isinf()]
    return sizes.max().item() if sizes.numel() else 0.0


class Deeper(nn.Module):
    """A small model behind two more layers, so that it can be cut into four stages."""

    def __init__(self, model):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.model = model

    def forward(self, x, *args, **kwargs):
        return self.model(self.stem(x), *args, **kwargs)


SMALL = {
    "in_place", "script_loop", "dict_output", "dataclass_output", "kwargs", "no_grad",
    "custom_function", "frozen", "stray_tensor", "buffers", "loss",
}  # fmt: skip


def entry_of(case):
    entries = {
        **ZOO,
        **TRANSFORMERS,
        **FLOAT32_TRANSFORMERS,
        **LOSSES,
        **LANGUAGE_LOSSES,
        **NORMS,
        **DROPOUTS,
    }
    entry = entries[case.model]
    if case.model in SMALL or case.model in LOSSES:
        return dataclasses.replace(entry, make=lambda: Deeper(entry.make()))
    return entry


def cast(value, dtype):
    return value.to(dtype) if torch.is_tensor(value) and value.is_floating_point() else value


def select_rows(entry, args, kwargs, total, index):
    """The rows ``index`` of every batched input."""

    def cut(key, value):
        dim = (entry.batch_dims or {}).get(key, 0)
        if not torch.is_tensor(value) or value.dim() <= dim or value.shape[dim] != total:
            return value
        return value.index_select(dim, index)

    return (
        tuple(cut(position, value) for position, value in enumerate(args)),
        {key: cut(key, value) for key, value in kwargs.items()},
    )


def tensors_of(output):
    """The tensors of an output in order, through tuples, dicts, dataclasses and ModelOutputs."""
    if torch.is_tensor(output):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    elif hasattr(output, "__dataclass_fields__"):
        output = [getattr(output, name) for name in output.__dataclass_fields__]
    if not isinstance(output, list | tuple):
        return []
    return [tensor for item in output for tensor in tensors_of(item)]


def split_loss(output):
    """The model's own scalar loss, or a mean over the rows of every floating output.

    Each term is positive: terms that cancel would leave a loss near zero, all of it rounding.
    """
    floating = [tensor for tensor in tensors_of(output) if tensor.is_floating_point()]
    for tensor in floating:
        if tensor.dim() == 0:
            return tensor, True
    trained = [tensor for tensor in floating if tensor.requires_grad]
    return sum((1 + tensor.sin() + tensor.square()).mean() for tensor in trained), False


def deal(total, parts, first):
    """Shares of ``total`` rows; the larger ones go round from part ``first``."""
    base, extra = divmod(total, parts)
    return [base + ((part - first) % parts < extra) for part in range(parts)]


def slices_of(local_rows, count):
    """For each rank, the sizes of its slices of ``count`` micro-batches."""
    return [deal(rows, count, sum(local_rows[:rank])) for rank, rows in enumerate(local_rows)]


def micro_batch_rows(slices):
    """For each micro-batch, the global row numbers: the k-th slice of every rank, in rank order."""
    result, position = [[] for _ in slices[0]], 0
    for sizes in slices:
        for k, size in enumerate(sizes):
            result[k] += range(position, position + size)
            position += size
    return result


class SharedBatchNorm(nn.Module):
    """BatchNorm as replicas do it: each share on its own, statistics averaged by rows."""

    def __init__(self, original):
        super().__init__()
        self.weight, self.bias = original.weight, original.bias
        for name, buffer in original.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        self.momentum, self.eps = original.momentum, original.eps
        self.shares = None

    def forward(self, x):
        if not self.training:
            return functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        parts, mean, var = [], 0, 0
        for part in x.split(self.shares):
            if not len(part):
                continue
            own_mean, own_var = self.running_mean.clone(), self.running_var.clone()
            parts.append(
                functional.batch_norm(
                    part, own_mean, own_var, self.weight, self.bias, True, self.momentum, self.eps
                )
            )
            mean, var = mean + own_mean * len(part) / len(x), var + own_var * len(part) / len(x)
        self.running_mean.copy_(mean)
        self.running_var.copy_(var)
        self.num_batches_tracked += 1
        return torch.cat(parts)


class Twin:
    """The unwrapped model on one process with the concatenated batch."""

    def __init__(self, case, entry):
        self.case, self.entry, self.steps = case, entry, 0
        self.model = entry.build().to(case.torch_dtype)
        self.norms = {
            name: module
            for name, module in self.model.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and not case.norms
        }
        for name, module in self.norms.items():
            parent, _, child = name.rpartition(".")
            shared = SharedBatchNorm(module).train(module.training)
            setattr(self.model.get_submodule(parent), child, shared)
            self.norms[name] = shared

    def step(self, wrapped, args, kwargs, local_rows):
        """Gradients into ``.grad``; returns the loss and, without BatchNorm, the outputs."""
        plan, total = wrapped.plan, sum(local_rows)
        if not self.norms:
            with self.masks(wrapped, range(total)):
                output = self.model(*args, **kwargs)
            loss, _ = split_loss(output)
            loss.backward()
            self.steps += 1
            return loss, output
        stage_of = stages_of_modules(wrapped)
        before, loss_sum = 0, 0.0
        slices = slices_of(local_rows, min(plan.micro_batches, total))
        for k, index in enumerate(micro_batch_rows(slices)):
            for name, norm in self.norms.items():
                ranks = plan.stages[stage_of[name]].ranks
                if ranks == list(range(len(local_rows))):
                    norm.shares = [sizes[k] for sizes in slices]
                else:
                    norm.shares = deal(len(index), len(ranks), before)
            part = select_rows(self.entry, args, kwargs, total, torch.tensor(index))
            with self.masks(wrapped, index):
                output = self.model(*part[0], **part[1])
            loss, _ = split_loss(output)
            (loss * (len(index) / total)).backward()
            loss_sum += loss.detach() * (len(index) / total)
            before += len(index)
        self.steps += 1
        return loss_sum, None

    def masks(self, wrapped, samples):
        if self.case.model not in DROPOUTS:
            return contextlib.nullcontext()
        return KeyedMasks(graph_of(wrapped), SEED, self.steps, samples)


def write_plan(path, case, entry, model, args, kwargs):
    """The plan of a case with drawn borders, for rank 0, which reads it for all."""
    captured = capture(
        model,
        args,
        kwargs,
        entry.batch_dims,
        explicit_draws=case.model in DROPOUTS,
        sync_batch_norm=case.norms == "sync",
    )
    schedule = schedules.request(captured, True, case.config(), "")["schedules"][0]
    ranks, first = [], 0
    for count in PLANS[case.plan.split("~")[0]]["replica_nums"]:
        first %= 4  # groups of an interleaved plan have several stages
        ranks.append(list(range(first, first + count)))
        first += count
    plan = borders.plan(
        captured.graph, ranks, case.micro_batches, schedule, case.recompute, case.seed
    )
    Path(path).write_text(json.dumps(plan))


@contextlib.contextmanager
def stages_recompute_by_turns(wanted):
    """Around the first call, which plans: the setting knows only what fits."""
    make_plan = candidates.Planner.plan

    def mixed(planner):
        plan = json.loads(make_plan(planner).to_json())
        together = {}
        for node in json.loads(planner.step.profile.to_json())["nodes"]:
            together.setdefault(node.get("group", node["name"]), []).append(node["name"])
        borders.recompute_by_turns(plan["stages"], together.values())
        plan["version"] = 3
        return _C.plan.Plan.from_json(json.dumps(plan))

    candidates.Planner.plan = mixed if wanted else make_plan
    try:
        yield
    finally:
        candidates.Planner.plan = make_plan


def make_optimizer(case, parameters):
    if case.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    # Where a true gradient is zero, as of the bias of attention keys, AdamW divides float32's noise
    # of 1e-9 by eps; by 1e-8 it would blow the noise up to a tenth of a step.
    eps = 1e-8 if case.precision == torch.float64 else 1e-6
    return torch.optim.AdamW(parameters, lr=1e-3, eps=eps)


def run_case(case, comm, folder):
    """Runs one case; returns what differs on this rank. ``folder``: of this rank, for plans."""
    entry, dtype = entry_of(case), case.torch_dtype
    twin = Twin(case, entry)
    twin_optimizer = make_optimizer(case, twin.model.parameters())
    plain = entry.build().to(dtype)
    if not case.begins_on_host:
        plain = on_device(plain)
    optimizer = make_optimizer(case, plain.parameters())
    path = None
    if case.seed is not None:
        path = f"{folder}/plan.json"
        if comm.rank == 0:
            whole, _, _ = batch_of(entry, dtype, 0, case.local_rows(0, comm.size), comm.rank)
            if not case.begins_on_host:
                whole = pytree.tree_map(on_device, whole)
            write_plan(path, case, entry, plain, *whole)
    model = pyrannc.RaNNCModule(
        plain,
        optimizer,
        case.config(),
        batch_dims=entry.batch_dims,
        outputs="all",
        load_deployment=path,
    )

    compare = Comparison(case.precision)
    for step in range(STEPS):
        local_rows = case.local_rows(step, comm.size)
        total = sum(local_rows)
        (args, kwargs), (local_args, local_kwargs), mine = batch_of(
            entry, dtype, step, local_rows, comm.rank
        )
        with stages_recompute_by_turns(case.recompute == "mixed"):
            output = model(*local_args, **local_kwargs)
        loss, inside = split_loss(output)
        loss.backward()
        twin_loss, twin_output = twin.step(model, args, kwargs, local_rows)

        whole = loss.detach().double().reshape(1).cpu()
        if not inside:  # the mean of no rows is nan, and counts nothing
            whole = whole * len(mine) / total if len(mine) else torch.zeros_like(whole)
            comm.all_reduce_sum(whole.numpy(), list(range(comm.size)))
        compare.add(f"step {step} loss", "loss", whole[0].to(dtype), twin_loss.to(dtype))
        if twin_output is not None:
            compare_outputs(compare, step, entry, output, twin_output, total, mine)
        for name, parameter in model.named_parameters(from_global=False):
            reference = twin.model.get_parameter(name)
            assert (parameter.grad is None) == (reference.grad is None), f"gradient of {name}"
            if parameter.grad is not None:
                compare.add(f"step {step} gradient", name, parameter.grad, reference.grad)
        optimizer.step()
        twin_optimizer.step()
        for name, parameter in model.named_parameters(from_global=False):
            compare.add(f"step {step} parameter", name, parameter, twin.model.get_parameter(name))
        optimizer.zero_grad()
        twin_optimizer.zero_grad()

    if case.is_uneven:
        compare_eval(compare, case, comm, entry, model, twin.model)
    state = model.state_dict()
    if comm.rank == 0:
        expected = twin.model.state_dict()
        assert list(state) == list(entry.build().state_dict()), "names of the state_dict"
        for name, tensor in state.items():
            kind = "buffer" if name in dict(twin.model.named_buffers()) else "saved parameter"
            compare.add(kind, name, tensor.double(), expected[name].double())
    return list(compare.failures()), describe(model)


def batch_of(entry, dtype, seed, local_rows, rank):
    """The arguments with the rows of all ranks, with those of ``rank``, and which those are."""
    total, begin = sum(local_rows), sum(local_rows[:rank])
    mine = torch.arange(begin, begin + local_rows[rank])
    args, kwargs = entry.inputs(total, seed=seed)
    args = tuple(cast(value, dtype) for value in args)
    kwargs = {key: cast(value, dtype) for key, value in kwargs.items()}
    own = pytree.tree_map(on_device, select_rows(entry, args, kwargs, total, mine))
    return (args, kwargs), own, mine


def on_device(thing):
    """A tensor or a model where the wrapped model computes; what else there is stays."""
    if not isinstance(thing, torch.Tensor | nn.Module) or DEVICE == "cpu":
        return thing
    # Otherwise torch gives each user of a tied parameter one of its own on a foreign device.
    torch.__future__.set_swap_module_params_on_conversion(True)
    return thing.to(DEVICE)


def compare_eval(compare, case, comm, entry, model, twin):
    """A step in eval mode with a batch of yet another size."""
    local_rows = [rows + 1 for rows in case.local_rows(0, comm.size)[::-1]]
    whole, (args, kwargs), mine = batch_of(entry, case.torch_dtype, STEPS, local_rows, comm.rank)
    model.eval()
    twin.eval()
    with torch.no_grad():
        output, expected = model(*args, **kwargs), twin(*whole[0], **whole[1])
    compare_outputs(compare, "eval", entry, output, expected, sum(local_rows), mine)


def compare_outputs(compare, step, entry, output, twin_output, total, mine):
    output_dim = 1 if entry.batch_dims else 0
    for index, (ours, theirs) in enumerate(
        zip(tensors_of(output), tensors_of(twin_output), strict=True)
    ):
        if not ours.is_floating_point() or ours.dim() == 0:
            continue
        for dim in (output_dim, 0):
            if theirs.dim() > dim and theirs.shape[dim] == total:
                theirs = theirs.index_select(dim, mine)
                break
        compare.add(f"step {step} output", str(index), ours, theirs)


def stages_of_modules(model):
    stage_of_node = {
        name: index for index, stage in enumerate(model.plan.stages) for name in stage.nodes
    }
    return {
        node.module: stage_of_node[node.name]
        for node in graph_of(model).nodes
        if node.name in stage_of_node
    }


def graph_of(model):
    return model._deployment.first.capture.graph


def describe(model):
    plan = model.plan
    nodes = [stage.nodes for stage in plan.stages]
    return {
        "smallest_share": borders.smallest_share(graph_of(model), nodes),
        "replicas": [len(stage.ranks) for stage in plan.stages],
        "micro_batches": plan.micro_batches,
        "recompute": [stage.recompute for stage in plan.stages],
        "schedule": plan.schedule,
    }


def main(names):
    comm = launch.world()
    torch.set_num_threads(1)
    if DEVICE == "standin":
        standin.start(devices=comm.size, delay_us=20)
        standin.set_device(comm.rank)
        standin.keep_to(comm.rank)
    elif DEVICE == "cuda":
        torch.cuda.set_device(comm.rank % torch.cuda.device_count())
    folder = tempfile.TemporaryDirectory()
    for name in names:
        torch.manual_seed(SEED)
        try:
            failures, plan = run_case(Case.parse(name), comm, folder.name)
        except BaseException:
            # The others may wait for this rank in the middle of a step: the job ends here.
            report(name, [f"rank {comm.rank}: {traceback.format_exc()[-1500:]}"], None)
            raise
        everyone = [json.loads(item) for item in comm.all_gather(json.dumps(failures).encode())]
        found = [f"rank {rank}: {text}" for rank, texts in enumerate(everyone) for text in texts]
        if comm.rank == 0:
            report(name, found, plan)


def report(name, failures, plan):
    print(json.dumps({"case": name, "failures": failures, "plan": plan}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
