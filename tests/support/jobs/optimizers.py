"""One rank that trains with an optimizer of some class, as one process does with the whole batch.

Started by tests/dist/optimizer/test_user_optimizer.py as shared_states.py is.
"""

import sys
from pathlib import Path

import shared_states
import torch
from shared_states import OPTIMIZERS, ROWS, STEPS, Run, Tied, groups

optim = torch.optim


def adafactor(parameters, **options):
    from transformers.optimization import Adafactor  # takes seconds

    options = {"lr": 0.01, "relative_step": False, "scale_parameter": False} | options
    return Adafactor(parameters, **options)


OPTIMIZERS |= {
    "adafactor": adafactor,
    "adafactor_scaled": lambda p: adafactor(p, scale_parameter=True, beta1=0.9),
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


def alone(name):
    """Weights of one process after as many steps on the whole batches."""
    torch.manual_seed(7)
    model = Tied().double()
    optimizer = OPTIMIZERS[name](groups(model))
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
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
    run.train(scheduler=optim.lr_scheduler.StepLR(run.optimizer, 2, 0.5))
    found = run.model.state_dict(rank0_only=False)
    for name, value in wanted.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-6, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
        )


shared_states.CASES = {"steps": steps}

if __name__ == "__main__":
    shared_states.main(Path(sys.argv[1]))
