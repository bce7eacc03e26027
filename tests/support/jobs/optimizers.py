"""One rank that trains with an optimizer of some class, as one process does with the whole batch.

Started by tests/dist/optimizer/test_user_optimizer.py as shared_states.py is.
"""

import itertools
import sys
from pathlib import Path

import shared_states
import torch
from shared_states import OPTIMIZERS, ROWS, STEPS, Run, Tied, groups

import pyrannc

optim = torch.optim


def adafactor(parameters, **options):
    from transformers.optimization import Adafactor  # takes seconds

    options = {"lr": 0.01, "relative_step": False, "scale_parameter": False} | options
    return Adafactor(parameters, **options)


OPTIMIZERS |= {
    "adafactor": adafactor,
    "adafactor_scaled": lambda p: adafactor(p, scale_parameter=True, beta1=0.9),
    "adafactor_relative": lambda p: adafactor(
        p, lr=None, relative_step=True, scale_parameter=True, warmup_init=True
    ),
    "torch_adafactor": lambda p: optim.Adafactor(p, lr=0.01),
    "adam_fused": lambda p: optim.Adam(p, lr=0.01, fused=True),
    "sgd_fused": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adagrad_fused": lambda p: optim.Adagrad(p, lr=0.05, fused=True),
    **{
        f"{name}_foreach": lambda p, name=name: getattr(optim, name)(p, lr=0.01, foreach=True)
        for name in ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam",
                     "Rprop")
    },
}  # fmt: skip


def scheduler_of(optimizer):
    """That of transformers where Adafactor itself says how far a step goes."""
    if optimizer.param_groups[-1].get("relative_step"):
        from transformers.optimization import AdafactorSchedule

        return AdafactorSchedule(optimizer)
    return optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def alone(name):
    """Weights of one process after as many steps on the whole batches."""
    torch.manual_seed(7)
    model = Tied().double()
    optimizer = OPTIMIZERS[name](groups(model))
    scheduler = scheduler_of(optimizer)
    for step in range(STEPS):
        torch.manual_seed(100 * step)
        optimizer.zero_grad()
        model(*torch.randint(0, 60, (2, ROWS))).backward()
        optimizer.step()
        scheduler.step()
    return model.state_dict()


def steps(plan, optimizer):
    """With two groups and a scheduler."""
    wanted = alone(optimizer)
    run = Run(plan, False, optimizer=optimizer, grouped=True)
    run.train(scheduler=scheduler_of(run.optimizer))
    found = run.model.state_dict(rank0_only=False)
    for name, value in wanted.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-6, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
        )


def muon_and_adamw(model):
    """As they are used together: matrices are stepped by the one, and all else by the other."""
    named = [*model.named_parameters()]
    matrices = [p for name, p in named if "layers" in name and p.dim() == 2]
    others = [p for name, p in named if not ("layers" in name and p.dim() == 2)]
    return [optim.Muon(matrices, lr=0.02, momentum=0.9), optim.AdamW(others, lr=0.01)]


def train_with(optimizers, model, batch):
    schedulers = [
        optim.lr_scheduler.LambdaLR(each, lambda step: 1 / (1 + step)) for each in optimizers
    ]
    norms = []
    for step in range(STEPS):
        for each in optimizers:
            each.zero_grad()
        model(*batch(step)).backward()
        norms.append(model.clip_grad_norm_(0.5, norm_type=1.0, error_if_nonfinite=True))
        for each in (*optimizers, *schedulers):
            each.step()
    return torch.stack(norms)


class Plain(Tied):
    def clip_grad_norm_(self, *args, **kwargs):
        return torch.nn.utils.clip_grad_norm_(self.parameters(), *args, **kwargs)


def whole_batch(step):
    torch.manual_seed(100 * step)
    return torch.randint(0, 60, (2, ROWS)).unbind()


def lists(plan, when="given"):
    """Muon and AdamW, with a scheduler each, and clipping; given, or made after the first call."""
    torch.manual_seed(7)
    plain = Plain().double()
    wanted = train_with(muon_and_adamw(plain), plain, whole_batch)
    torch.manual_seed(7)
    inner = Tied().double()
    given = muon_and_adamw(inner) if when == "given" else None
    ranks, rank = pyrannc.get_world_size(), pyrannc.get_rank()

    def mine(step):
        return [each.chunk(ranks)[rank] for each in whole_batch(step)]

    model = pyrannc.RaNNCModule(
        inner, given, pyrannc.Config(calibrate=False, self_check=False),
        load_deployment=shared_states.write_plan(inner, mine(0), plan),
    )  # fmt: skip
    if when == "late":
        model(*mine(0)).backward()
        model.zero_grad()
    norms = train_with(given or muon_and_adamw(model), model, mine)
    torch.testing.assert_close(norms, wanted)
    for name, value in model.state_dict(rank0_only=False).items():
        torch.testing.assert_close(
            value,
            plain.state_dict()[name],
            rtol=1e-6,
            atol=1e-7,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def refused(plan):
    """By name, on every rank, also where it is made after wrapping."""
    for when, kind in itertools.product(("given", "late"), (optim.LBFGS, optim.SparseAdam)):
        torch.manual_seed(7)
        inner = Tied()
        batch = Run.batch(None, 0)
        path = shared_states.write_plan(inner, batch, plan)
        fault = "no error"
        try:
            optimizer = kind(inner.parameters()) if when == "given" else None
            model = pyrannc.RaNNCModule(
                inner, optimizer, pyrannc.Config(calibrate=False), load_deployment=path
            )
            model(*batch).backward()
            optimizer = optimizer or kind(model.parameters())
            optimizer.step(lambda: 0.0)
        except Exception as error:
            fault = str(error)
        assert kind.__name__ in fault, (when, kind, fault)


def not_finite(plan):
    """The method's error comes on every rank, and leaves the gradients."""
    run = Run(plan, False)
    run.model(*run.batch(0)).backward()
    for name, parameter in run.model.named_parameters(from_global=False):
        if name == "layers.5.weight":
            parameter.grad[0, 0] = float("nan")
    before = [p.grad.clone() for p in run.model.parameters(from_global=False)]
    for clip in (run.model.clip_grad_norm, run.model.clip_grad_norm_):
        try:
            clip(0.1, error_if_nonfinite=True)
            raise AssertionError("no error")
        except RuntimeError as error:
            assert "non-finite" in str(error), error
    after = [p.grad for p in run.model.parameters(from_global=False)]
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
    assert run.model.clip_grad_norm_(0.1).isnan()


shared_states.CASES = {each.__name__: each for each in (steps, lists, refused, not_finite)}

if __name__ == "__main__":
    shared_states.main(Path(sys.argv[1]))
