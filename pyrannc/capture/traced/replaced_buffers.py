"""Buffers that forward() replaces by other tensors, as `self.count = self.count + 1` does."""

import torch

from pyrannc.errors import TraceError


def put_buffers(model, states, fakes):
    """Those that forward() replaced are again what a trace begins with."""
    for names, tensor, kind in states:
        for path in names if kind == "buffer" else ():
            owner, _, name = path.rpartition(".")
            model.get_submodule(owner)._buffers[name] = fakes[id(tensor)]


def copy_replaced_buffers(model, states, fakes, replaced):
    """Lets forward() begin with copies of the buffers that it replaces: their old tensors, which
    backward may need, live on in eager, while here the buffer itself is written.
    """
    for names, tensor, _ in states:
        if id(tensor) not in replaced:
            continue
        copy = fakes[id(tensor)].clone()
        for path in names:
            owner, _, name = path.rpartition(".")
            model.get_submodule(owner)._buffers[name] = copy


def store_replaced_buffers(model, states, fakes):
    """`self.count = self.count + 1` on a buffer: stored as a write to it. Returns the ids of such
    buffers.
    """
    replaced = {}
    for names, tensor, kind in states:
        if kind != "buffer":
            continue
        owner, _, name = names[0].rpartition(".")
        held, fake = model.get_submodule(owner)._buffers.get(name), fakes[id(tensor)]
        if held is fake:
            continue
        if held is None or held.shape != fake.shape or held.dtype != fake.dtype:
            raise TraceError(
                f"forward() replaces the buffer '{names[0]}' by one of another shape or dtype; "
                "write into it instead"
            )
        replaced[id(tensor)] = (fake, held)
    with torch.no_grad():
        # `self.before = self.now` takes what `now` held, which the loop below may overwrite.
        held_before = set(map(id, fakes.values()))
        contents = [
            held.clone() if {id(held), id(held._base)} & held_before else held
            for _, held in replaced.values()
        ]
        for (fake, _), content in zip(replaced.values(), contents, strict=True):
            fake.copy_(content)
    return set(replaced)
