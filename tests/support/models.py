"""A zoo of small models, shared by the tests of capture, interpreter, runtime and self-check.

``ZOO[name].build()`` gives a module with weights fixed by a seed; ``ZOO[name].inputs(rows, seed)``
gives its ``(args, kwargs)`` with ``rows`` samples. Dropout is zero wherever a model trains, so that
two runs can be compared.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree


@dataclasses.dataclass(frozen=True)
class Entry:
    """One model of the zoo."""

    make: Callable[[], nn.Module]
    make_inputs: Callable[[int, torch.Generator], tuple[tuple, dict]]
    batch_dims: object = None
    training: bool = True

    def build(self) -> nn.Module:
        """The module in its mode, with the same weights each time; the random state is kept."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return self.make().train(self.training)

    def inputs(self, rows: int, seed: int = 0) -> tuple[tuple, dict]:
        """``(args, kwargs)`` of one call with ``rows`` samples."""
        return self.make_inputs(rows, torch.Generator().manual_seed(1000 * seed + rows))

    def in_float64(self) -> "Entry":
        """The same in float64, in which kernels of different machines agree to many digits."""

        def make_inputs(rows, generator):
            return pytree.tree_map(
                lambda leaf: leaf.double() if is_floating(leaf) else leaf,
                self.make_inputs(rows, generator),
            )

        return dataclasses.replace(self, make=lambda: self.make().double(), make_inputs=make_inputs)


def is_floating(leaf) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def floats(*sizes):
    """Inputs: one tensor of ``(rows, *sizes)`` normal numbers."""
    return lambda rows, generator: ((torch.randn(rows, *sizes, generator=generator),), {})


def tokens(length, vocabulary):
    """Inputs: one tensor of ``(rows, length)`` token numbers."""

    def make(rows, generator):
        return (torch.randint(vocabulary, (rows, length), generator=generator),), {}

    return make


class Residual(nn.Module):
    """Convolutions with batch normalisation around a skip."""

    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(x + self.second_norm(self.second(y)))


class ResidualCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.body = nn.Sequential(Residual(8), Residual(8))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.body(self.stem(x))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class UNet(nn.Module):
    """Skips that span most of the model."""

    def __init__(self):
        super().__init__()
        self.down1 = nn.Conv2d(3, 6, 3, padding=1)
        self.down2 = nn.Conv2d(6, 12, 3, padding=1)
        self.middle = nn.Conv2d(12, 12, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(12, 12, 2, stride=2)
        self.merge2 = nn.Conv2d(24, 6, 3, padding=1)
        self.up1 = nn.Upsample(scale_factor=2)
        self.merge1 = nn.Conv2d(12, 2, 3, padding=1)

    def forward(self, x):
        skip1 = torch.relu(self.down1(x))
        skip2 = torch.relu(self.down2(functional.max_pool2d(skip1, 2)))
        x = torch.relu(self.middle(functional.max_pool2d(skip2, 2)))
        x = torch.relu(self.merge2(torch.cat([self.up2(x), skip2], 1)))
        return self.merge1(torch.cat([self.up1(x), skip1], 1))


class Encoder(nn.Module):
    """nn.TransformerEncoder with a causal mask; sequence first unless ``batch_first``."""

    def __init__(self, batch_first):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            16, 2, dim_feedforward=32, dropout=0.0, batch_first=batch_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6))

    def forward(self, x):
        return self.encoder(x, mask=self.mask, is_causal=True)


class Transformer(nn.Module):
    """nn.Transformer with a causal mask that it is not told to be causal."""

    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.transformer(source, target, tgt_mask=mask)


def two_sequences(rows, generator):
    source, target = (torch.randn(rows, length, 16, generator=generator) for length in (6, 5))
    return (source, target), {}


class Lstm(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.lstm = nn.LSTM(10, 12, num_layers=2, batch_first=batch_first)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        y, (hidden, _) = self.lstm(x)
        return self.head(y), hidden.transpose(0, 1).contiguous()


class TiedLm(nn.Module):
    """A GPT of plain torch.nn with a tied embedding that returns its scalar loss."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.position = nn.Parameter(torch.randn(8, 16) * 0.02)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention = nn.Linear(16, 48)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, targets):
        batch, length = tokens.shape
        x = self.embedding(tokens) + self.position[:length]
        q, k, v = self.attention(self.norm1(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(batch, length, 16)
        x = x + self.mlp(self.norm2(x))
        return functional.cross_entropy(self.head(x).view(-1, 50), targets.view(-1))


def language_inputs(rows, generator):
    ids = torch.randint(50, (rows, 9), generator=generator)
    return (ids[:, :-1].contiguous(), ids[:, 1:].contiguous()), {}


class SeveralInputs(nn.Module):
    """Inputs that enter at different depths, one of them without rows."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x, late, scale, later):
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x) + late)
        return self.third(x * scale) + later.unsqueeze(1)


def several_inputs(rows, generator):
    def tensor(*sizes):
        return torch.randn(*sizes, generator=generator)

    return (tensor(rows, 8), tensor(rows, 8), tensor(8), tensor(rows)), {}


class InPlace(nn.Module):
    """In-place operators, also through views, and writes by index."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.first(x)
        y.sub_(0.1)
        left = y[:, :4]
        left.mul_(2.0).add_(1)
        y[:, 6] = 0.5
        y[:, 7] = x[:, 0]
        z = y.clone()
        z[0:, 1:3] += 3
        y = self.second(y.view(-1, 2, 4).transpose(1, 2).reshape(-1, 8))
        return torch.relu_(y) + z


class Filled(nn.Module):
    """A tensor made without gradient that gets one by writes, read several layers later."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        x = torch.tanh(self.layers[0](x))
        y = torch.zeros_like(x)
        y[:, :4] = x[:, 4:]
        y[:, 4:].copy_(x[:, :4])
        z = torch.tanh(self.layers[1](y))
        return self.layers[3](torch.tanh(self.layers[2](z)) + y), y


@torch.jit.script
def scripted_loop(x: torch.Tensor, weight: torch.Tensor, steps: int) -> torch.Tensor:
    i = 0
    while i < steps:
        x = torch.tanh(x @ weight) if i % 2 == 0 else x + torch.sigmoid(x)
        i += 1
    return x


class ScriptLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) * 0.3)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(scripted_loop(x, self.weight, 3))


class DictOutput(nn.Module):
    """A dict with nested containers, None and a number."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return {"logits": self.second(hidden), "states": (hidden, [x]), "cache": None, "depth": 2}


@dataclasses.dataclass
class Heads:
    """What a model with two heads returns."""

    logits: torch.Tensor
    value: torch.Tensor
    note: str = ""


class DataclassOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.policy, self.value = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, x):
        x = torch.tanh(self.body(x))
        return Heads(logits=self.policy(x), value=self.value(x).squeeze(-1), note="two heads")


class Kwargs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, *, bias=None, labels=None, scale=1.0, reverse=False):
        x = self.first(x) * scale
        if bias is not None:
            x = x + bias
        x = self.second(x.flip(1) if reverse else x)
        return x if labels is None else functional.cross_entropy(x, labels)


def kwargs_inputs(rows, generator):
    return (torch.randn(rows, 8, generator=generator),), {
        "labels": torch.randint(8, (rows,), generator=generator),
        "scale": 0.5,
        "reverse": True,
    }


class NoGrad(nn.Module):
    """A frozen branch under no_grad, and a detached one."""

    def __init__(self):
        super().__init__()
        self.teacher, self.student, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        with torch.no_grad():
            target = torch.tanh(self.teacher(x))
        student = torch.tanh(self.student(x))
        return self.head(student * target + student.detach())


class Autocast(nn.Module):
    """A region in bfloat16 with the rest in float32."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.second(torch.relu(x))
            x = self.second(x)
        return self.third(x.float())


class ScaledClamp(torch.autograd.Function):
    """A custom backward that differs from the derivative of its forward."""

    @staticmethod
    def forward(ctx, x, low, scale):
        ctx.save_for_backward(x)
        ctx.low, ctx.scale = low, scale
        return x.clamp(min=low)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.scale * (x > 2 * ctx.low), None, None


class CustomFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        self.clamp = ScaledClamp.apply

    def forward(self, x):
        return self.second(self.clamp(self.first(x), -0.25, 3.0))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        self.first.requires_grad_(False)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class StrayTensor(nn.Module):
    """A tensor attribute that is no buffer, and tensors made in forward."""

    def __init__(self):
        super().__init__()
        self.scale = torch.linspace(0.5, 1.5, 8)
        self.body = nn.Linear(8, 8)

    def forward(self, x):
        shift = torch.tensor([0.25] * 8)
        return self.body(x) * self.scale + shift + torch.arange(8) / x.size(1)


class Buffers(nn.Module):
    """Buffers read as constants, and one that counts calls."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.register_buffer("mean", torch.linspace(-1, 1, 8))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)), persistent=False)

    def forward(self, x):
        self.calls.add_(1)
        return self.body((x - self.mean) @ self.mask)


class Dropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        return self.body(x)


class Loss(nn.Module):
    """Returns its scalar loss."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x, labels):
        return functional.cross_entropy(self.body(x), labels)


def labelled(rows, generator):
    x = torch.randn(rows, 8, generator=generator)
    return (x, torch.randint(4, (rows,), generator=generator)), {}


def sequence_first(length, width):
    def make(rows, generator):
        return (torch.randn(length, rows, width, generator=generator),), {}

    return make


def mlp():
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    )


class Experts(nn.Module):
    """Tokens sorted by their experts, computed with, and put back; in each layer another way that
    libraries do it. Returns its loss."""

    def __init__(self):
        super().__init__()
        self.routers = nn.ModuleList(nn.Linear(8, 4) for _ in range(4))
        self.weights = nn.ParameterList(torch.randn(4, 8, 8) / 3 for _ in range(4))
        self.head = nn.Linear(8, 5)

    def experts(self, layer, tokens, chosen):
        """``[slices, 8]``, each times the matrix of its expert."""
        products = torch.bmm(tokens.unsqueeze(1), self.weights[layer][chosen])
        return functional.gelu(products.squeeze(1))

    def forward(self, x, labels):
        tokens = x.flatten(0, 1)
        for layer, mix in enumerate([self.mix_0, self.mix_1, self.mix_2, self.mix_3]):
            scores, chosen = self.routers[layer](tokens).softmax(-1).topk(2)
            tokens = tokens + mix(layer, tokens, scores, chosen)
        logits = self.head(tokens.reshape(x.shape)).mean(1)
        return functional.cross_entropy(logits, labels)

    def mix_0(self, layer, tokens, scores, chosen):
        keys, sources = chosen.flatten().sort()
        products = self.experts(layer, tokens[sources // 2], keys) * scores.flatten()[sources, None]
        targets = torch.empty_like(sources)
        targets[sources] = torch.arange(sources.size(0))
        return products[targets].reshape(-1, 2, 8).sum(1)

    def mix_1(self, layer, tokens, scores, chosen):
        sources = chosen.flatten().argsort(stable=True)
        products = self.experts(layer, tokens[sources // 2], chosen.flatten()[sources])
        products = products.mul_(scores.flatten()[sources].unsqueeze(1))
        return torch.zeros_like(tokens).index_add(0, sources // 2, products)

    def mix_2(self, layer, tokens, scores, chosen):
        sources = chosen.flatten().argsort()
        index = (sources // 2).reshape(-1, 1).expand(-1, 8)
        products = self.experts(layer, tokens.gather(0, index), chosen.flatten()[sources])
        products = scores.flatten()[sources].reshape(-1, 1) * products
        return torch.zeros_like(tokens).scatter_add(0, index, products)

    def mix_3(self, layer, tokens, scores, chosen):
        sources = chosen[:, 0].sort(descending=True).indices
        products = self.experts(layer, tokens.index_select(0, sources), chosen[:, 0][sources])
        return products.index_select(0, sources.argsort()) * scores[:, :1]


def labelled_tokens(rows, generator):
    x = torch.randn(rows, 6, 8, generator=generator)
    return (x, torch.randint(0, 5, (rows,), generator=generator)), {}


ZOO = {
    "mlp": Entry(mlp, floats(8)),
    "residual_cnn": Entry(ResidualCnn, floats(3, 8, 8)),
    "unet": Entry(UNet, floats(3, 8, 8)),
    "encoder": Entry(lambda: Encoder(batch_first=True), floats(6, 16)),
    "encoder_eval": Entry(lambda: Encoder(batch_first=True), floats(6, 16), training=False),
    "encoder_sequence_first": Entry(
        lambda: Encoder(batch_first=False), sequence_first(6, 16), batch_dims={0: 1}
    ),
    "transformer": Entry(Transformer, two_sequences),
    "lstm": Entry(lambda: Lstm(batch_first=True), floats(6, 10)),
    "lstm_sequence_first": Entry(
        lambda: Lstm(batch_first=False), sequence_first(6, 10), batch_dims={0: 1}
    ),
    "tied_lm": Entry(TiedLm, language_inputs),
    "several_inputs": Entry(SeveralInputs, several_inputs),
    "in_place": Entry(InPlace, floats(8)),
    "filled": Entry(Filled, floats(8)),
    "script_loop": Entry(ScriptLoop, floats(8)),
    "dict_output": Entry(DictOutput, floats(8)),
    "dataclass_output": Entry(DataclassOutput, floats(8)),
    "kwargs": Entry(Kwargs, kwargs_inputs),
    "no_grad": Entry(NoGrad, floats(8)),
    "autocast": Entry(Autocast, floats(8)),
    "custom_function": Entry(CustomFunction, floats(8)),
    "frozen": Entry(Frozen, floats(8)),
    "stray_tensor": Entry(StrayTensor, floats(8)),
    "buffers": Entry(Buffers, floats(8)),
    "dropout_eval": Entry(Dropout, floats(8), training=False),
    "loss": Entry(Loss, labelled),
    "experts": Entry(Experts, labelled_tokens),
}


def language_ids(rows, generator):
    ids = torch.randint(3, 90, (rows, 10), generator=generator)
    return (), {"input_ids": ids, "labels": ids.clone()}


def bert():
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForMaskedLM(config)


def bert_inputs(rows, generator):
    _, kwargs = language_ids(rows, generator)
    kwargs["attention_mask"] = torch.ones(rows, 10, dtype=torch.int64)
    kwargs["attention_mask"][0, 7:] = 0
    return (), kwargs


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, use_cache=False,
        pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, use_cache=False,
    )  # fmt: skip
    return MixtralForCausalLM(config)


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        image_size=16, patch_size=4, num_labels=5, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return ViTForImageClassification(config)


def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", num_labels=5
    )
    return ResNetForImageClassification(config)


def images(size):
    def make(rows, generator):
        return (), {
            "pixel_values": torch.randn(rows, 3, size, size, generator=generator),
            "labels": torch.randint(5, (rows,), generator=generator),
        }

    return make


#: Models of the transformers library; tests that use them skip when it is not installed.
TRANSFORMERS = {
    "bert": Entry(bert, bert_inputs),
    "gpt2": Entry(gpt2, language_ids),
    "t5": Entry(t5, language_ids),
    "llama": Entry(llama, language_ids),
    "vit": Entry(vit, images(16)),
    "resnet": Entry(resnet, images(32)),
}
# Its grouped products know no float64.
FLOAT32_TRANSFORMERS = {"mixtral": Entry(mixtral, language_ids)}
