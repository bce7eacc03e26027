"""Training steps on the ranks of a job beside one process with the batches of all ranks."""

import torch

import pyrannc


def compare(make, batches, step, config=None, own=False, **settings):
    """Losses of ``step(model, batch)``, gradients after each step and the state after them.

    Args:
        make: Function that makes the model.
        batches: Tuples of tensors, of all ranks together.
        step: Runs forward and backward; returns numbers that have to be equal, by name, of which
            a loss of this rank's rows alone is none.
        config: ``pyrannc.Config``.
        own: ``step`` gives the mean over this rank's rows.
        settings: Of the RaNNCModule.

    Returns:
        The wrapped model.
    """
    rank, world = pyrannc.get_rank(), pyrannc.get_world_size()
    torch.manual_seed(0)
    twin = make().double()
    torch.manual_seed(0)
    plain = make().double()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    twins = torch.optim.SGD(twin.parameters(), lr=0.1)
    model = pyrannc.RaNNCModule(plain, optimizer, config, **settings)
    for number, batch in enumerate(batches):
        optimizer.zero_grad()
        twins.zero_grad()
        share = [each.tensor_split(world)[rank] for each in batch]
        wanted = step(twin, batch)
        found = step(model, share)
        for name, value in wanted.items():
            other = torch.as_tensor(found[name], dtype=torch.float64).detach()
            if own:
                rows = torch.tensor(float(len(share[0])), dtype=torch.float64)
                parts = torch.empty(2 * world, dtype=torch.float64)
                pyrannc.all_gather(torch.stack([other * rows, rows]), parts)
                other = parts[0::2].sum() / parts[1::2].sum()
            _equal(other, torch.as_tensor(value, dtype=torch.float64), f"step {number}, {name}")
        for path, parameter in twin.named_parameters():
            other = model.get_param_grad(path)
            if parameter.grad is not None or other is not None:
                _equal(other, parameter.grad, f"step {number}, gradient of {path}")
        optimizer.step()
        twins.step()
    state = model.state_dict(rank0_only=False)
    for path, wanted in twin.state_dict().items():
        _equal(state[path], wanted, f"{path} at the end")
    return model


def _equal(found, wanted, where):
    assert found is not None and wanted is not None, f"{where}: {found}, wanted {wanted}"
    torch.testing.assert_close(
        found, wanted.detach(), rtol=1e-9, atol=1e-9, msg=lambda text: f"{where}: {text}"
    )
