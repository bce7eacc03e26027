"""A gradient scaler that all ranks of a job share."""

import torch


class GradScaler(torch.amp.GradScaler):
    """torch's gradient scaler, whose ranks skip a step together.

    torch's own does the same for the optimizers of wrapped models (``shared_overflow.py``); this
    name stays for scripts that use it. Every rank calls ``step()``, and ``unscale_()`` if any does;
    a rank without parameters of its own, too.

    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = pyrannc.RaNNCModule(model, optimizer)
    >>> scaler = GradScaler("cpu")
    >>> with torch.autocast("cpu", torch.float16):
    ...     loss = model(torch.ones(8, 4)).mean()
    >>> _ = scaler.scale(loss).backward()
    >>> _ = scaler.step(optimizer)
    >>> scaler.update()
    """
