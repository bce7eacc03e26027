"""Models whose layers are cut in different ways, beside those of models.py."""

import torch
from models import TRANSFORMERS, ZOO, Entry, floats, language_ids
from torch import nn


def uneven_mlp():
    """Two inner dimensions, of which a group cuts only every second product's."""
    return nn.Sequential(
        nn.Linear(6, 11), nn.GELU(), nn.Linear(11, 13), nn.ReLU(), nn.Linear(13, 5)
    )


class Scaled(nn.Module):
    """A whole weight between two products that are cut: its gradient is partial."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)
        self.slope = nn.Parameter(torch.rand(1))

    def forward(self, x):
        return self.down(self.up(x) * self.slope)


class Windows(nn.Module):
    """Windows over the memory of heads that stand beside each other, as in Longformer."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        heads = self.up(x).unflatten(-1, (8, 2)).transpose(1, 2)
        rows, head, place, inner = heads.stride()
        windows = heads.as_strided((len(x), 8, 2, 2, 2), (rows, head, place, place, inner))
        return self.down(windows.square().sum(3).transpose(1, 2).flatten(2))


class Mixer(nn.Module):
    """Products along tokens and along channels, of which each has the other as a sequence."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.tokens = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))
        self.channels = nn.Sequential(nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 8))

    def forward(self, x):
        x = x + self.tokens(self.norm(x).mT).mT
        return x + self.channels(self.norm(x))


def grouped_cnn():
    """Groups of channels, of which the outputs inside of each are more than there are groups."""
    return nn.Sequential(
        nn.Conv1d(6, 12, 1), nn.ReLU(), nn.Conv1d(12, 24, 3, groups=2), nn.GELU(),
        nn.Conv1d(24, 12, 1, groups=4), nn.Flatten(), nn.Linear(24, 5),
    )  # fmt: skip


def depthwise_cnn():
    return nn.Sequential(
        nn.Conv2d(3, 12, 1), nn.ReLU(), nn.Conv2d(12, 12, 3, groups=12), nn.ReLU(),
        nn.Conv2d(12, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


def bart():
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=97, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, dropout=0.0,
        max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    return BartForConditionalGeneration(config)


def phi3():
    """Queries, keys and values side by side in unequal parts."""
    from transformers import Phi3Config, Phi3ForCausalLM

    config = Phi3Config(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0,
        use_cache=False,
    )  # fmt: skip
    return Phi3ForCausalLM(config)


def neox():
    """Queries, keys and values interleaved per head."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=32, hidden_dropout=0.0,
        attention_dropout=0.0, use_cache=False,
    )  # fmt: skip
    return GPTNeoXForCausalLM(config)


def bigcode():
    """One head of keys and values for all of the queries."""
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    config = GPTBigCodeConfig(
        vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return GPTBigCodeForCausalLM(config)


OF_TORCH = {
    "uneven_mlp": Entry(uneven_mlp, floats(6)),
    "scaled": Entry(Scaled, floats(6)),
    "windows": Entry(Windows, floats(3, 6)),
    "mixer": Entry(Mixer, floats(6, 8)),
    "grouped_cnn": Entry(grouped_cnn, floats(6, 4)),
    "depthwise_cnn": Entry(depthwise_cnn, floats(3, 8, 8)),
    "encoder_eval": ZOO["encoder_eval"],
    "tied_lm": ZOO["tied_lm"],
}
OF_TRANSFORMERS = {
    **TRANSFORMERS,
    "bart": Entry(bart, language_ids),
    "phi3": Entry(phi3, language_ids),
    "neox": Entry(neox, language_ids),
    "bigcode": Entry(bigcode, language_ids),
}
