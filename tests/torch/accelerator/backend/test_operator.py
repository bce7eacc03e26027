"""Operators give what the CPU's give, to the bit, but late."""

import pytest
import standin
import torch
from models import ZOO
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

# What names the CPU itself, is compiled, or is a layer that torch has for CUDA only.
NOT_HERE = {"autocast", "experts", "stray_tensor", "script_loop", "lstm", "lstm_sequence_first"}


class Gpt(nn.Module):
    """Two layers of a GPT with fused attention."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(32),
                    "qkv": nn.Linear(32, 96),
                    "norm2": nn.LayerNorm(32),
                    "mlp": nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)),
                }
            )
            for _ in range(2)
        )
        self.head = nn.Linear(32, 50)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        batch, length, width = x.shape
        for layer in self.layers:
            qkv = layer["qkv"](layer["norm1"](x)).view(batch, length, 3, 4, 8)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + y.transpose(1, 2).reshape(batch, length, width)
            x = x + layer["mlp"](layer["norm2"](x))
        return functional.cross_entropy(self.head(x).view(-1, 50), targets.view(-1))


class Cnn(nn.Module):
    """Convolutions with strides and groups, transposed, pooled and normalised."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False),
            nn.GroupNorm(2, 8),
            nn.MaxPool2d(2),
            nn.ConvTranspose2d(8, 4, 2, stride=2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 5),
        )

    def forward(self, images, labels):
        return functional.cross_entropy(self.body(images), labels)


def trained(make, batches, make_optimizer, device):
    """Losses, parameters and buffers of a training, on the host."""
    torch.manual_seed(5)
    model = make().to(device)
    optimizer = make_optimizer(model.parameters())
    losses = []
    for batch in batches:
        loss = model(*(tensor.to(device) for tensor in batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [tensor.cpu() for tensor in [*losses, *model.state_dict().values()]]


def assert_same_bits(here, there):
    assert len(here) == len(there)
    for ours, theirs in zip(here, there, strict=True):
        assert torch.equal(ours, theirs), (ours - theirs).abs().max()


def test_a_gpt_trains_as_on_the_cpu():
    random = torch.Generator().manual_seed(1)
    batches = [torch.randint(50, (2, 4, 12), generator=random).unbind() for _ in range(4)]

    def run(device):
        return trained(
            Gpt, batches, lambda parameters: torch.optim.AdamW(parameters, foreach=False), device
        )

    assert_same_bits(run("standin"), run("cpu"))


def test_a_cnn_trains_as_on_the_cpu():
    random = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(4, 3, 16, 16, generator=random), torch.randint(5, (4,), generator=random))
        for _ in range(4)
    ]

    def run(device):
        return trained(
            Cnn, batches, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False), device
        )

    assert_same_bits(run("standin"), run("cpu"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [lambda: nn.LayerNorm(8), lambda: nn.BatchNorm1d(8)])
def test_norms_whose_parameters_have_16_bits_train_as_on_the_cpu(make, dtype):
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).to(dtype)

    class Squares(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = make().to(dtype)

        def forward(self, x):
            return self.norm(x).square().mean()

    def run(device):
        return trained(Squares, [(x,)] * 3, lambda p: torch.optim.SGD(p, 0.5), device)

    assert_same_bits(run("standin"), run("cpu"))


@pytest.mark.parametrize("name", sorted(set(ZOO) - NOT_HERE))
def test_models_of_the_zoo_give_the_cpus_outputs_and_gradients(name):
    def run(device):
        model = ZOO[name].build()
        # Otherwise torch gives each user of a tied parameter one of its own, as on any foreign
        # device.
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            model.to(device)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)
        arguments, keywords = pytree.tree_map(
            lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf,
            ZOO[name].inputs(3),
        )
        outputs = model(*arguments, **keywords)
        leaves = pytree.tree_leaves(vars(outputs) if hasattr(outputs, "__dict__") else outputs)
        outputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        differentiable = [tensor.sum() for tensor in outputs if tensor.requires_grad]
        if differentiable:
            sum(differentiable).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return [tensor.detach().cpu() for tensor in [*outputs, *gradients, *model.buffers()]]

    assert_same_bits(run("standin"), run("cpu"))


def test_a_call_returns_before_its_work_is_done():
    x = torch.ones(3, device="standin")
    with standin.held():
        y = x + 1
        assert y.shape == (3,)
        assert not standin.current_stream().query()
    assert y.tolist() == [2, 2, 2]


def test_wrong_shapes_are_refused_at_once():
    with standin.held(), pytest.raises(RuntimeError, match="broadcast"):
        torch.ones(3, device="standin") + torch.ones(4, device="standin")


def test_wrong_values_are_the_end_of_the_device_later():
    table = torch.ones(3, 2, device="standin")
    row = functional.embedding(torch.tensor([7], device="standin"), table)
    with pytest.raises(RuntimeError, match=r"standin:0 does nothing any more.*index_select"):
        row.cpu()
    with pytest.raises(RuntimeError, match="standin:0 does nothing any more"):
        torch.ones(1, device="standin")


def test_numbers_of_the_host_are_those_of_the_moment():
    number, x = torch.tensor(2.0), torch.ones(2, device="standin")
    with standin.held():
        y = x * number
        number.fill_(3)
    assert y.tolist() == [2, 2]


def test_other_tensors_of_the_host_are_refused():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2, device="standin") + torch.ones(2)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.tensor(0.0).add_(torch.tensor(1.0, device="standin"))


def test_sizes_that_depend_on_values_make_the_host_wait_and_others_do_not():
    x = torch.tensor([3.0, 0.0, 5.0], device="standin")
    mask = x > 0
    standin.clear_counts()
    with standin.no_waits():
        x[mask] = 1.0
        kept = torch.where(mask, x, 2 * x)
        with pytest.raises(RuntimeError, match="the host would wait for a stand-in device: aten::"):
            x[mask]
    assert standin.waits() == {}
    assert x[mask].tolist() == [1, 1]
    assert kept.tolist() == [1, 0, 1]
    assert x.nonzero().tolist() == [[0], [2]]
    places = {place for thread, place in standin.waits() if thread == "main"}
    assert {"aten::index", "aten::nonzero", "copy to host"} <= places


def test_an_output_that_is_given_is_resized():
    out = torch.empty(0, device="standin")
    torch.add(torch.ones(3, device="standin"), 1, out=out)
    assert out.tolist() == [2, 2, 2]
