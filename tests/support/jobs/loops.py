"""One rank of the loop suite: what users write around a model, wrapped against one process.

Started by test_loops.py on four ranks with ``plan/schedule`` of each group of cases; rank 0 prints
one line of JSON for each case. A loop is one function that runs twice: on the wrapped model with
this rank's rows, and on the same model in this process with all rows.
"""

import contextlib
import copy
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import pyrannc
from pyrannc import _C, launch
from pyrannc.capture.model import capture

sys.path.append(str(Path(__file__).parents[1]))
from keyed_masks import KeyedMasks

# Ranks of each stage; four stages on two groups of ranks are for the schedule interleaved.
PLANS = {
    "4": [[0, 1, 2, 3]],
    "2+2": [[0, 1], [2, 3]],
    "1+1+1+1": [[0], [1], [2], [3]],
    "1+2+1": [[0], [1, 2], [3]],
    "1+3": [[0], [1, 2, 3]],
    "2x(2+2)": [[0, 1], [2, 3], [0, 1], [2, 3]],
    "2x(1+3)": [[3], [0, 1, 2], [3], [0, 1, 2]],
}
# Five rows of each rank in four micro-batches: shares of different sizes, some of them empty.
ROWS, MICRO_BATCHES, WIDTH, CLASSES = 5, 4, 6, 4
SEED = 1


class Net(nn.Module):
    """Returns its loss, a mean or a sum over the rows, and the outputs of its last two layers.

    ``between`` makes what stands between two layers.
    """

    def __init__(self, reduction, between):
        super().__init__()
        widths = [WIDTH, 8, 8, 8, 8, CLASSES]
        self.layers = nn.ModuleList(map(nn.Linear, widths, widths[1:]))
        self.layers[3].weight = self.layers[1].weight  # tied, over stages under most plans
        self.between = nn.ModuleList(between() for _ in range(5))
        self.norm = nn.LayerNorm(8)
        self.reduction = reduction

    def forward(self, x, labels):
        hidden = x
        for layer, between in zip(self.layers[:-1], self.between, strict=False):
            hidden = torch.tanh(between(layer(hidden)))
        logits = self.layers[-1](self.between[-1](self.norm(hidden)))
        loss = functional.cross_entropy(logits, labels, reduction=self.reduction)
        return {"loss": loss, "logits": logits, "hidden": hidden}


class Branching(Net):
    """Other calls lead through the layers in another order, or use a head and a buffer of their
    own, or only one of the two layers with tied weights."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.other = nn.Linear(8, CLASSES)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("others", torch.zeros(()))

    def forward(self, x, labels, way="all"):
        order = {"all": [0, 1, 2, 3], "swapped": [0, 3, 2, 1], "short": [0, 1]}.get(way, [0, 1, 2])
        hidden = x
        for index in order:
            hidden = torch.tanh(self.layers[index](hidden))
        if way == "swapped":
            self.calls += 1
        hidden = self.norm(hidden) / (1 + self.calls)
        if way == "other":
            self.others += 1
            logits = self.other(hidden) * self.others
        else:
            logits = self.layers[-1](hidden)
        return {"loss": functional.cross_entropy(logits, labels, reduction=self.reduction)}


class Heads(Net):
    """Two more heads, one on an early layer, of which a loop may leave some out of its loss."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.early, self.late = nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, x, labels):
        first = torch.tanh(self.layers[0](x))
        outputs = super().forward(x, labels)
        heads = {"early": self.early(first).exp(), "late": self.late(outputs["hidden"]).exp()}
        return outputs | heads


class Side:
    """A model with what its loop needs: its rows, its parameters, sums over ranks."""

    def __init__(self, model, comm, rows, schedule, wrapped):
        self.model, self.comm, self.rows = model, comm, rows
        self.schedule, self.wrapped = schedule, wrapped
        self.start()

    def start(self):
        self.found, self.losses = {}, 0  # what is compared, by name

    @property
    def inside(self):
        """Whether the wrapped model's backward runs inside its forward."""
        return self.schedule != "gpipe"

    def batch(self, number):
        generator = torch.Generator().manual_seed(number)
        total = ROWS * self.comm.size
        x = torch.randn(total, WIDTH, generator=generator, dtype=torch.float64)
        return x[self.rows], torch.randint(CLASSES, (total,), generator=generator)[self.rows]

    def loss(self, number, **arguments):
        loss = self.model(*self.batch(number), **arguments)["loss"]
        self.losses += 1
        self.found[f"loss {self.losses}"] = loss.detach().clone()
        return loss

    def parameters(self):
        """The plain model's, or those that this rank holds."""
        only_own = {"from_global": False} if self.wrapped else {}
        return dict(self.model.named_parameters(**only_own))

    def buffers(self):
        only_own = {"from_global": False} if self.wrapped else {}
        return dict(self.model.named_buffers(**only_own))

    def optimizer(self, **options):
        return torch.optim.SGD(list(self.parameters().values()), lr=0.1, **options)

    def sum_over_ranks(self, tensor):
        if self.wrapped:
            self.comm.all_reduce_sum(tensor.numpy(), list(range(self.comm.size)))
        return tensor

    def keep(self, what, tensors=None):
        """Gradients, or ``tensors`` by name, for the comparison."""
        if tensors is None:
            tensors = {name: p.grad for name, p in self.parameters().items()}
        for name, tensor in tensors.items():
            self.found[f"{what} {name}"] = None if tensor is None else tensor.detach().clone()

    def no_sync(self):
        return self.model.no_sync() if self.wrapped else contextlib.nullcontext()

    def sums_of_last_call(self):
        """How often the call that began last has summed gradients, and how often one call does."""
        deployment = self.model._deployment
        graph, rows = deployment.first.capture.graph, [ROWS] * self.comm.size
        program = _C.plan.lower(deployment.plan, graph, rows, True)
        actions = json.loads(program.to_json())["actions"][self.comm.rank]
        sums = [i for i, action in enumerate(actions) if action[0] == "reduce_gradients"]
        spans = [span.action for span in deployment.first.executor.timeline]
        return sum(spans.count(index) for index in sums), len(sums)

    @contextlib.contextmanager
    def expect(self, error, text):
        """The wrapped model raises ``error`` in the block; the other one may do as it does."""
        expected = error if self.wrapped else RuntimeError
        try:
            yield
        except expected as caught:
            assert not self.wrapped or text in str(caught), f"not '{text}' in: {caught}"
        else:
            assert not self.wrapped, f"no error that says '{text}'"


# -- loops: what is left out in one of the two runs is left out by name ---------------------------


def three_steps(side):
    optimizer = side.optimizer(momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        side.loss(step).backward()
        side.keep(f"step {step}")
        optimizer.step()
    side.keep("parameter", side.parameters())


def accumulation(side):
    optimizer = side.optimizer()
    for step in range(2):
        optimizer.zero_grad(set_to_none=step == 0)
        for part in range(3):
            (side.loss(3 * step + part) / 3).backward()
            side.keep(f"step {step}, part {part}")
        optimizer.step()


def forwards_before_the_backwards(side):
    first, second = side.loss(1), side.loss(2)
    (2 * second).backward()
    side.keep("after the second")
    first.backward()
    side.keep("after both")


def losses_added(side):
    (side.loss(1) + 3 * side.loss(2)).backward()
    side.keep("gradient")


def other_terms(side):
    # A rank adds the penalty of its own parameters; their gradients are all that it must be.
    penalty = sum(parameter.square().sum() for parameter in side.parameters().values())
    (side.loss(1) * 0.5 + 0.1 * penalty).backward()
    side.keep("gradient")


def loss_used_further(side):
    loss = side.loss(1)
    (loss.square() + loss.exp().log1p()).backward()
    side.keep("gradient")


def zero_grad_after_the_forward(side):
    side.loss(1).backward()
    loss = side.loss(2)
    for parameter in side.parameters().values():
        parameter.grad = None
    loss.backward()
    side.keep("gradient")


def retain_graph(side):
    loss = side.loss(1)
    loss.backward(retain_graph=True)
    side.keep("once")
    loss.backward(retain_graph=True)
    side.keep("twice")
    for parameter in side.parameters().values():
        parameter.grad.zero_()
    (0.5 * loss).backward(retain_graph=True)
    side.keep("scaled")
    other = side.loss(2)  # a call in between has messages of its own
    (2 * other).backward(retain_graph=True)
    loss.backward()
    other.backward()
    side.keep("last")
    with side.expect(RuntimeError, "were given away" if side.inside else "were freed"):
        loss.backward()
    side.keep("after the error")


def retain_graph_of_several_outputs(side):
    """Each backward is of other outputs: what the one before has left must not come back."""

    def parts(number):
        outputs = side.model(*side.batch(number))
        if side.inside:
            return [outputs["loss"], outputs["loss"].square()]
        others = outputs["logits"].sin().mean(), outputs["hidden"].square().mean()
        return [others[0], outputs["loss"], others[1]]

    for number, part in enumerate(parts(1)):
        part.backward(retain_graph=True)
        side.keep(f"part {number}")
    with side.no_sync():
        first, *rest = parts(2)
        (first / 2).backward(retain_graph=True)
        rest[-1].backward()
    side.loss(3).backward()
    side.keep("with what was kept")


def retain_graph_on_some_ranks(side):
    """Under gpipe the others would not take part in its second backward."""
    loss = side.loss(1)
    here = side.comm.rank == 1
    if side.wrapped and not side.inside:
        with side.expect(pyrannc.RaNNCError, "rank 1: backward of forward pass"):
            loss.backward(retain_graph=here)
    loss.backward(retain_graph=here and side.inside)
    side.keep("gradient")


def second_backward(side):
    loss = side.loss(1)
    loss.backward()
    with side.expect(RuntimeError, "backward was called twice"):
        loss.backward()
    side.keep("gradient")


def torch_autograd_grad(side):
    names, parameters = zip(*side.parameters().items(), strict=True)
    found = torch.autograd.grad(side.loss(1), parameters)
    side.keep("found", dict(zip(names, found, strict=True)))
    side.keep("untouched")
    loss = side.loss(2)
    # Under gpipe every rank calls backward, and ranks hold different numbers of parameters.
    for name, parameter in side.parameters().items() if side.inside else ():
        side.keep("one", {name: torch.autograd.grad(loss, parameter, retain_graph=True)[0]})
    side.keep("all", dict(zip(names, torch.autograd.grad(loss, parameters), strict=True)))


def create_graph(side):
    with side.expect(pyrannc.RaNNCError, "create_graph=True"):
        side.loss(1).backward(create_graph=True)
    if side.wrapped:
        side.keep("untouched")
    else:
        side.keep("untouched", dict.fromkeys(side.parameters()))


def hooks(side):
    seen, handles = {}, []
    for name, parameter in side.parameters().items():
        parameter.grad = torch.ones_like(parameter)

        def on_gradient(gradient, name=name):
            seen.setdefault(f"hook {name}", []).append(gradient.clone())
            return 2 * gradient

        def after(parameter, name=name):
            seen.setdefault(f"after {name}", []).append(parameter.grad.clone())

        handles.append(parameter.register_hook(on_gradient))
        handles.append(parameter.register_post_accumulate_grad_hook(after))
    (side.loss(1) / 2).backward()
    for handle in handles:
        handle.remove()
    assert all(len(gradients) == 1 for gradients in seen.values()), "a hook fired several times"
    side.keep("seen by", {name: gradient for name, (gradient,) in seen.items()})
    side.keep("gradient")


def loss_never_used(side):
    side.loss(1)
    side.keep("untouched")
    side.loss(2).backward()
    kept = [side.loss(3), side.loss(4)]
    side.keep("of the second")
    del kept
    side.loss(5).item()
    side.keep("still of the second")


def other_modes_before_the_backward(side):
    loss = side.loss(1)
    with torch.no_grad():
        outputs = side.model(*side.batch(2))
        assert not outputs["loss"].requires_grad
        side.keep("no_grad", {"loss": outputs["loss"]})
        side.keep(
            "own rows", {name: own_rows(side, outputs[name]) for name in ("logits", "hidden")}
        )
    side.model.eval()
    outputs = side.model(*side.batch(3))
    side.keep("eval", {"loss": outputs["loss"]})
    side.keep("own rows in eval", {"logits": own_rows(side, outputs["logits"])})
    if side.inside:
        with side.expect(RuntimeError, "ran without gradients"):
            outputs["loss"].backward()
        for parameter in side.parameters().values():
            parameter.grad = None
    side.model.train()
    loss.backward()
    side.keep("gradient")


def own_rows(side, tensor):
    return tensor if side.wrapped else tensor[own_slice(side.comm)]


def own_slice(comm):
    return slice(ROWS * comm.rank, ROWS * (comm.rank + 1))


def outputs_beside_the_loss(side):
    outputs = side.model(*side.batch(1))
    if side.inside and side.wrapped:
        text = repr(outputs["logits"])
        assert "output['logits']" in text and 'outputs="all"' in text, text
        for use in (
            lambda logits: logits.shape,
            lambda logits: logits[0],
            lambda logits: torch.argmax(logits, 1),
            lambda logits: logits.argmax(1),
            lambda logits: logits + 1,
            lambda logits: torch.ones(4) * logits,
            float,
            len,
        ):
            with side.expect(pyrannc.RaNNCError, 'RaNNCModule(..., outputs="all")'):
                use(outputs["logits"])
        outputs["loss"].backward()
    elif side.inside:
        outputs["loss"].backward()
    else:
        # Each rank's mean counts with its share of the rows.
        (outputs["loss"] + outputs["logits"].sin().mean()).backward()
        side.keep("own rows", {"logits": own_rows(side, outputs["logits"])})
    side.keep("gradient")


def clipped(side):
    side.loss(1).backward()
    if side.wrapped:
        norm = torch.tensor(side.model.clip_grad_norm(0.01), dtype=torch.float64)
    else:
        norm = torch.nn.utils.clip_grad_norm_(side.model.parameters(), 0.01)
    side.keep("norm", {"all": norm})
    side.keep("gradient")


def no_sync(side):
    """Two backwards are kept, the third or allreduce_grads() sums all of them, once."""
    optimizer = side.optimizer()
    for step in range(3):
        optimizer.zero_grad()
        side.loss(10 * step).backward()  # .grad may hold something already
        side.keep(f"step {step}, before")
        held = {name: p.grad.clone() for name, p in side.parameters().items()}
        with side.no_sync():
            for part in (1, 2):
                (side.loss(10 * step + part) / 3).backward()
                if side.wrapped:
                    assert side.sums_of_last_call()[0] == 0
        side.keep(f"step {step}, untouched", None if side.wrapped else held)
        if step == 1 and side.wrapped:
            side.model.allreduce_grads()
        elif step != 1:
            (side.loss(10 * step + 3) / 3).backward()
            if side.wrapped:
                done, once = side.sums_of_last_call()
                assert done == once, f"{done} sums instead of {once}"
        side.keep(f"step {step}, gradient")
        optimizer.step()
    side.keep("parameter", side.parameters())


def hooks_under_no_sync(side):
    handles = [
        parameter.register_hook(lambda gradient: 2 * gradient)
        for parameter in side.parameters().values()
    ]
    with side.no_sync():
        side.loss(1).backward()
    side.loss(2).backward()
    for handle in handles:
        handle.remove()
    side.keep("gradient")


def no_sync_in_another_order(side):
    with side.no_sync():
        first = side.loss(1)
    second = side.loss(2)  # its own gradients may be summed already when others are kept
    first.backward()
    (2 * second).backward()
    side.keep("kept after a forward")
    with side.no_sync():
        loss = side.loss(3)
        loss.backward(retain_graph=side.inside)
        if side.inside:
            (0.5 * loss).backward()
    third, fourth = side.loss(4), side.loss(5)
    third.backward(retain_graph=side.inside)
    if side.inside:
        (3 * third).backward()
    (0.5 * fourth).backward()
    side.keep("two forwards after what is kept")
    if side.wrapped:
        side.model.delay_grad_allreduce(True)
    side.loss(6).backward()
    if side.wrapped:
        side.model.delay_grad_allreduce(False)
    parameters = side.parameters()
    found = torch.autograd.grad(side.loss(7), list(parameters.values()))
    # What is kept comes with the gradients of the next call; one process has it in .grad already.
    pairs = zip(parameters.items(), found, strict=True)
    side.keep("all", {name: p.grad + gradient for (name, p), gradient in pairs})


def kept_gradients_are_not_forgotten(side):
    optimizer = side.optimizer()
    with side.no_sync():
        side.loss(1).backward()
        side.loss(2).backward()
    if side.wrapped:
        never = "gradients of 2 backward passes under no_sync() were never summed"
        with side.expect(pyrannc.RaNNCError, f"optimizer.step(): {never}"):
            optimizer.step()
        with side.expect(pyrannc.RaNNCError, f"the norm of gradients: {never}"):
            side.model.clip_grad_norm(1.0)
        torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1).step()  # has nothing to do with it
    side.model.zero_grad()
    side.loss(3).backward()
    optimizer.step()
    side.keep("gradient")
    side.keep("parameter", side.parameters())


def no_sync_on_some_ranks(side):
    if side.wrapped:
        block = side.no_sync() if side.comm.rank == 1 else contextlib.nullcontext()
        with side.expect(pyrannc.RaNNCError, "rank 1: forward pass"), block:
            side.model(*side.batch(1))
    side.loss(2).backward()
    side.keep("gradient")


def all_outputs(side):
    """With outputs="all" the others arrive; a backward through them is an error."""
    outputs = side.model(*side.batch(1))
    side.keep("own rows", {name: own_rows(side, outputs[name]) for name in ("logits", "hidden")})
    if side.inside:
        total = outputs["loss"] + outputs["logits"].mean()
        with side.expect(RuntimeError, "schedule='gpipe'"):
            total.backward()
        for parameter in side.parameters().values():
            parameter.grad = None
    side.loss(2).backward()
    side.keep("gradient")


def heads_without_a_loss(side):
    """What has no part in the loss has no gradient, whatever crosses stages and ranks."""
    optimizer = torch.optim.AdamW(side.parameters().values(), lr=0.1, weight_decay=0.5)
    ways = [("loss",), ("loss", "early"), ("late",), ("early",), ("early", "late"), ("loss",)]
    for step, used in enumerate(ways if not side.inside else [("loss",)] * 2):
        optimizer.zero_grad()
        outputs = side.model(*side.batch(step))
        sum(outputs[name].mean() for name in used).backward()
        side.keep(f"step {step}")
        optimizer.step()
    side.keep("parameter", side.parameters())


def gradients_of_arguments(side):
    """torch.autograd.grad() of an argument adds to no parameter, and takes nothing that is kept."""

    def of_argument(number):
        x, labels = side.batch(number)
        loss = side.model(x.requires_grad_(), labels)["loss"]
        (found,) = torch.autograd.grad(loss, x)
        side.keep(f"argument {number}", {"x": own_rows(side, found)})

    with side.no_sync():
        of_argument(1)
        side.loss(2).backward()
        of_argument(3)
    of_argument(4)
    side.keep("after the arguments")
    side.loss(5).backward()
    side.keep("gradient")


def inside_a_larger_model(side):
    """Layers before and after; their gradients are sums over the ranks, as the user must know."""
    stem = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
    scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
    with torch.no_grad():
        for index, parameter in enumerate(stem.parameters()):
            parameter.copy_(
                torch.linspace(-1, 1, parameter.numel()).view_as(parameter) / (1 + index)
            )
    for number in (1, 2):
        x, labels = side.batch(number)
        x.requires_grad_()
        loss = side.model(stem(x).tanh(), labels)["loss"]
        (scale * loss).backward()
        side.keep(f"{number}: loss", {"loss": loss})
        side.keep(f"{number}: input", {"x": own_rows(side, x.grad)})
    side.keep("gradient")
    side.keep("scale", {"scale": scale.grad})
    side.keep("stem", {n: side.sum_over_ranks(p.grad) for n, p in stem.named_parameters()})


def unfreezing(side):
    """Layers that were frozen at the first call take gradients later; rank by rank their stages."""
    optimizer = side.optimizer()
    for step, trained in enumerate((0, 2, 1, 5)):  # layers from the end
        for number, layer in enumerate(side.model.layers):
            for parameter in (layer.weight, layer.bias):
                parameter.requires_grad = number >= 4 - trained
        optimizer.zero_grad()
        side.loss(step).backward()
        side.keep(f"step {step}")
        optimizer.step()
    side.keep("parameter", side.parameters())


def other_ways(side):
    """Calls that use parameters and buffers on other ranks than the first call did."""
    ways = ["all", "swapped", "other", "short", "all", "other", "swapped"]
    for step, way in enumerate(ways):
        side.adamw.zero_grad()
        with side.no_sync():
            side.loss(3 * step, way=way).backward()
        last = side.loss(3 * step + 1, way=ways[step - 1])
        side.loss(3 * step + 2, way=way).backward()
        last.backward()
        side.keep(f"step {step}")
        if side.wrapped:
            norm = side.model.clip_grad_norm(0.5)
        else:
            norm = nn.utils.clip_grad_norm_(side.model.parameters(), 0.5).item()
        side.keep(f"step {step}", {"norm": torch.tensor(norm, dtype=torch.float64)})
        side.adamw.step()
        with torch.no_grad():
            side.loss(step, way=ways[-step])
    side.keep("parameter", side.parameters())
    whole = side.model.state_dict(**({"rank0_only": False} if side.wrapped else {}))
    side.keep("saved", whole)


LOOPS = [
    three_steps, accumulation, forwards_before_the_backwards, losses_added, other_terms,
    loss_used_further, zero_grad_after_the_forward, retain_graph, retain_graph_of_several_outputs,
    retain_graph_on_some_ranks, second_backward,
    torch_autograd_grad, create_graph, hooks, loss_never_used, other_modes_before_the_backward,
    outputs_beside_the_loss, clipped, no_sync, hooks_under_no_sync, no_sync_in_another_order,
    kept_gradients_are_not_forgotten, no_sync_on_some_ranks,
]  # fmt: skip
# Each of these has a model of its own.
ALONE = {
    all_outputs: {"outputs": "all"},
    unfreezing: {"frozen": True},
    inside_a_larger_model: {"reduction": "sum", "takes_gradient": True},
    gradients_of_arguments: {"takes_gradient": True},
    heads_without_a_loss: {"outputs": "all", "kind": Heads},
    other_ways: {"kind": Branching},
}
# With batch normalisation by the whole batch, whose replicas wait for each other in every backward,
# and with dropout, whose masks every backward and every recompute wants again.
SYNCHRONISED = [
    three_steps, forwards_before_the_backwards, retain_graph, retain_graph_of_several_outputs,
    retain_graph_on_some_ranks, torch_autograd_grad, loss_never_used,
    other_modes_before_the_backward, no_sync,
]  # fmt: skip


def cases_of(group):
    """``loop/plan/schedule``, which "/sync" follows where the model is that of SYNCHRONISED."""
    names = [f"{loop.__name__}/{group}" for loop in [*LOOPS, *ALONE]]
    plan, schedule = group.split("/")
    has_replicas = any(len(ranks) > 1 for ranks in PLANS[plan])
    if has_replicas and schedule != "interleaved":  # that one wants several micro-batches
        names += [f"{loop.__name__}/{group}/sync" for loop in SYNCHRONISED]
    return names


# -- running them -------------------------------------------------------------------------------


def build(kind, reduction, between):
    torch.manual_seed(SEED)
    return kind(reduction, between).double()


def norm_and_dropout():
    return nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.3))


def hand_masks_to(twin, wrapped):
    """From the second call on, the first being that of ``wrapped`` alone."""
    step, modes = 1, []

    def enter(module, arguments):
        graph = wrapped._deployment.first.capture.graph
        if module.training:
            modes.append(KeyedMasks(graph, SEED, step, range(len(arguments[0]))))
            modes[-1].__enter__()

    def leave(module, arguments, outputs):
        nonlocal step
        if modes:
            modes.pop().__exit__(None, None, None)
        step += torch.is_grad_enabled()

    twin.register_forward_pre_hook(enter)
    twin.register_forward_hook(leave)


def plan_of(model, stage_ranks, schedule, micro_batches, takes_gradient):
    """A plan with equally many nodes in each stage."""
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=takes_gradient)
    graph = capture(model, (x, torch.zeros(ROWS, dtype=torch.int64))).graph
    placed = _C.ir.depends_on_rows(graph)
    nodes = [node.name for node, wanted in zip(graph.nodes, placed, strict=True) if wanted]
    cuts = [len(nodes) * stage // len(stage_ranks) for stage in range(len(stage_ranks) + 1)]
    return {
        "format": "rannc-plan",
        "version": 1,
        "schedule": schedule,
        "interleave": 2 if schedule == "interleaved" else 1,
        "micro_batches": micro_batches,
        "stages": [
            {"nodes": nodes[begin:end], "ranks": ranks, "recompute": index == 1}
            for index, (begin, end, ranks) in enumerate(
                zip(cuts, cuts[1:], stage_ranks, strict=False)
            )
        ],
    }


def make_sides(
    comm,
    plan,
    schedule,
    reduction="mean",
    outputs="loss",
    takes_gradient=False,
    sync_batch_norm=False,
    frozen=False,
    kind=Net,
):
    between = norm_and_dropout if sync_batch_norm else nn.Identity
    twin, plain = build(kind, reduction, between), build(kind, reduction, between)
    for layers in (twin.layers[:4], plain.layers[:4]) if frozen else ():
        layers.requires_grad_(False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        micro_batches = 1 if sync_batch_norm else MICRO_BATCHES
        content = plan_of(twin, PLANS[plan], schedule, micro_batches, takes_gradient)
        path.write_text(json.dumps(content))
        optimizer = torch.optim.AdamW(plain.parameters(), lr=0.05)
        model = pyrannc.RaNNCModule(
            plain,
            optimizer,
            config=pyrannc.Config(
                comm_timeout_s=60,
                self_check=False,
                sync_batch_norm=sync_batch_norm,
                deterministic_dropout=sync_batch_norm,
            ),
            load_deployment=path,
            outputs=outputs,
        )
        ours = Side(model, comm, own_slice(comm), schedule, wrapped=True)
        x, labels = ours.batch(0)
        model(x.requires_grad_(takes_gradient), labels)["loss"].backward()
    if sync_batch_norm:
        hand_masks_to(twin, model)
    theirs = Side(twin, comm, slice(0, ROWS * comm.size), schedule, wrapped=False)
    ours.adamw = optimizer
    theirs.adamw = torch.optim.AdamW(twin.parameters(), lr=0.05)
    return ours, theirs


def run_loop(loop, ours, twin, start):
    """What differs on this rank, as lines."""
    for side in (ours, twin):
        side.start()
        side.model.load_state_dict(start)
        side.model.train()
        for parameter in side.parameters().values():
            parameter.grad = None
        loop(side)
        side.keep("buffer", side.buffers())
    expected = twin.found
    assert ours.losses == twin.losses
    scale = max(t.abs().max().item() for t in expected.values() if t is not None)
    for name, tensor in ours.found.items():
        if (tensor is None) != (expected[name] is None):
            yield f"{name}: {tensor}, one process {expected[name]}"
        elif tensor is not None and not (tensor - expected[name]).abs().max() <= 1e-12 * scale:
            yield f"{name}: off by {(tensor - expected[name]).abs().max():.3g} of {scale:.3g}"


def main(groups):
    comm = launch.world()
    torch.set_num_threads(1)
    loops = {loop.__name__: loop for loop in [*LOOPS, *ALONE]}
    settings_of_sides = None
    for group in groups:
        for name in cases_of(group):
            loop, plan, schedule, *sync = name.split("/")
            settings = ALONE.get(loops[loop], {"sync_batch_norm": bool(sync)})
            if settings_of_sides != (group, settings):
                settings_of_sides = (group, settings)
                ours, twin = make_sides(comm, plan, schedule, **settings)
                start = copy.deepcopy(twin.model.state_dict())
            failures = list(run_loop(loops[loop], ours, twin, start))
            everyone = [json.loads(item) for item in comm.all_gather(json.dumps(failures).encode())]
            if comm.rank == 0:
                report(
                    name,
                    [f"rank {r}: {text}" for r, texts in enumerate(everyone) for text in texts],
                )


def report(name, failures):
    print(json.dumps({"case": name, "failures": failures}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
