"""Models that train with dropout, for the suites that run them under ``deterministic_dropout``."""

import torch
from loss_models import bert_config, masked_language, padded_language
from models import Entry, floats, language_ids, sequence_first
from torch import nn
from torch.nn import functional


class Encoder(nn.Module):
    """nn.TransformerEncoderLayer: dropout in the attention, which is fused, and around it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.25, batch_first=True) for _ in range(2)
        )
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, src_mask=self.mask)
        return x


class Attention(nn.Module):
    """nn.MultiheadAttention, sequence first: fused, and with its weights as an output."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.MultiheadAttention(16, 2, dropout=0.3) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 5))

    def forward(self, x):
        x = x + self.first(x, x, x, need_weights=False)[0]
        y, weights = self.second(self.norm(x), x, x)
        return self.head(x + y), weights


class Language(nn.Module):
    """A GPT of plain torch.nn whose loss leaves out some labels; one embedding is dropped whole."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(97, 16)
        self.position = nn.Parameter(torch.randn(10, 16) * 0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.attention = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Dropout(0.2))
        self.head = nn.Linear(16, 97, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids, labels):
        batch, length = input_ids.shape
        position = functional.dropout(self.position[:length], 0.1, self.training)
        x = functional.dropout(self.embedding(input_ids), 0.1, self.training) + position
        for norm, attention in zip(self.norms, self.attention, strict=False):
            q, k, v = attention(norm(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(
                q, k, v, dropout_p=0.2 if self.training else 0.0, is_causal=True
            )
            x = x + y.transpose(1, 2).reshape(batch, length, 16)
        logits = self.head(self.norms[2](x + self.mlp(x)))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


class Kinds(nn.Module):
    """Every kind of dropout, in place too, between layers with batch normalisation."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.3),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SELU(), nn.AlphaDropout(0.2),
            nn.Conv2d(8, 8, 3, padding=1), nn.FeatureAlphaDropout(0.2),
            nn.Dropout(0.4, inplace=True), nn.BatchNorm2d(8),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x)


def bert():
    from transformers import BertForMaskedLM

    config = bert_config()
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.1
    return BertForMaskedLM(config)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    # All three probabilities are 0.1 by default.
    config = GPT2Config(
        vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False
    )
    return GPT2LMHeadModel(config)


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        decoder_start_token_id=0, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


DROPOUTS = {
    "dropout_encoder": Entry(Encoder, floats(6, 16)),
    "dropout_attention": Entry(Attention, sequence_first(6, 16), batch_dims={0: 1}),
    "dropout_kinds": Entry(Kinds, floats(3, 6, 6)),
    "dropout_language": Entry(Language, masked_language),
    "dropout_bert": Entry(bert, masked_language),
    "dropout_gpt2": Entry(gpt2, padded_language),
    "dropout_t5": Entry(t5, language_ids),
}
