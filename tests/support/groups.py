"""Models, steps and comparisons of tests in which ranks compute layers together."""

import copy
import tempfile  # noqa: F401  what cases take from here

import torch
from torch import nn
from torch.nn import functional

import pyrannc

rank, size = pyrannc.get_rank(), pyrannc.get_world_size()
_place = {"device": torch.device("cpu"), "settings": {}}


def compute_on(device, **settings):
    """From here on models are on ``device``, and wrapped with these settings beside a case's."""
    _place.update(device=device, settings=settings)


class Block(nn.Module):
    def __init__(self, width, heads, inner, drop):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.drop = nn.Linear(width, inner), nn.Linear(inner, width), drop

    def forward(self, x):
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.drop * self.training
        )
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        inner = functional.gelu(self.up(self.norm2(x)))
        inner = functional.dropout(inner, self.drop, self.training)
        return x + functional.dropout(self.down(inner), self.drop, self.training)


class GPT(nn.Module):
    def __init__(self, words=11, width=12, heads=3, inner=20, layers=2, drop=0.0):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(6, width)
        self.blocks = nn.Sequential(*(Block(width, heads, inner, drop) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        scores = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def large():  # two stages of it are worth two ranks each
    return GPT(width=96, inner=384, layers=4)


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8).eval()
        self.apart, self.two = nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 6, 1)

    def forward(self, x):
        self.norm.eval()
        x = self.two(self.apart(functional.relu(self.norm(self.one(x))))).mean((2, 3))
        return functional.cross_entropy(x, x.detach().argmin(1))


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 5, 1)

    def forward(self, x):
        x = self.two(functional.relu(self.norm(self.one(x)))).mean((2, 3))
        return functional.cross_entropy(x, x.detach().argmin(1))


class Outputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x):
        return self.layers(x)


class ByNorm(torch.optim.Optimizer):
    "Looks at the whole of each gradient."

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad / (p.grad.norm() + 1), alpha=group["lr"])


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 9), nn.GELU(), nn.LayerNorm(9), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 4)
        )

    def forward(self, x):
        return self.layers(x).square().mean()


def tokens(rows):
    return torch.randint(11, (rows, 6))


def on_device(twin):
    """A copy on the device of models, with the parameters tied that are so in ``twin``."""
    model = copy.deepcopy(twin).to(_place["device"])
    first = {}
    for name, parameter in twin.named_parameters(remove_duplicate=False):
        if (other := first.setdefault(id(parameter), name)) != name:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, model.get_parameter(other))
    return model


def begun(build, optimizer=torch.optim.AdamW, wrap=None, **settings):
    """``wrap``: arguments of RaNNCModule beside the settings."""
    torch.manual_seed(4)
    twin = build().double()
    model = on_device(twin)
    made = optimizer(model.parameters(), lr=0.02)
    config = pyrannc.Config(**_place["settings"] | settings)
    return (
        pyrannc.RaNNCModule(model, made, config, **(wrap or {})),
        made,
        twin,
        optimizer(twin.parameters(), lr=0.02),
    )


def own(batch, shares=None):
    shares = shares or [len(batch) // size] * size
    begin = sum(shares[:rank])
    return batch[begin : begin + shares[rank]].to(_place["device"])


def step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model(batch)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return loss.detach(), norm


def same(one, other, bound=1e-10):
    one = one.cpu() if isinstance(one, torch.Tensor) else one
    torch.testing.assert_close(one, other, atol=bound, rtol=bound, check_dtype=False)


def equal_state(model, twin):
    found = model.state_dict(rank0_only=False)
    for name, tensor in twin.state_dict().items():
        same(found[name], tensor)


def adds_up(model, optimizer, twin, its, all_batches):
    """Steps of two backwards, of which the first only adds to the second: as in one process."""
    for batch in all_batches:
        optimizer.zero_grad(), its.zero_grad()
        with model.no_sync():
            model(own(batch)).backward()
        model(own(batch)).backward()
        for _ in range(2):
            twin(batch).backward()
        optimizer.step(), its.step()
    equal_state(model, twin)


def trains_alike(build, batches, shares=None, optimizer=torch.optim.AdamW, **settings):
    model, optimizer, twin, its = begun(build, optimizer, **settings)
    for batch in batches:
        loss, norm = step(model, optimizer, own(batch, shares))
        its_loss, its_norm = step(twin, its, batch)
        same(loss, its_loss)
        same(norm, its_norm)
    equal_state(model, twin)
    here = [p for p in model.module.parameters() if not hasattr(p, "place_elsewhere")]
    assert here and any(hasattr(p, "place_of_part") for p in here), "nothing is cut"
    return model, optimizer, twin, its


def batches(make, rows, count=3):
    torch.manual_seed(7)
    return [make(rows) for _ in range(count)]
