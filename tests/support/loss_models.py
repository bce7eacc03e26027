"""Models whose loss divides by something that the data say, for the tests of exact losses.

Samples differ: the last quarter of a batch has no label at all, the first sample has all of them,
so ranks and micro-batches differ too.
"""

import torch
from models import Entry, language_ids
from torch import nn
from torch.nn import functional

CLASSES = 6


class LossModel(nn.Module):
    """Scores (rows, 5, CLASSES) and a loss made of them."""

    def __init__(self, loss):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, CLASSES))
        self.register_buffer("weights", torch.linspace(0.5, 2, CLASSES))
        self.loss = loss

    def forward(self, x, labels, mask):
        return self.loss(self, self.body(x), labels, mask)


def flat(scores, labels):
    return scores.reshape(-1, CLASSES), labels.reshape(-1)


def error(scores, mask):
    """(rows, 5), and a target that depends on the arguments."""
    return (scores - mask.unsqueeze(-1)).square().mean(-1)


def ignored(model, scores, labels, mask):
    return functional.cross_entropy(*flat(scores, labels))


def class_weights(model, scores, labels, mask):
    return functional.cross_entropy(*flat(scores, labels), weight=model.weights)


def label_smoothing(model, scores, labels, mask):
    return functional.cross_entropy(*flat(scores, labels), label_smoothing=0.1)


def weights_and_smoothing(model, scores, labels, mask):
    return functional.cross_entropy(
        *flat(scores, labels), weight=model.weights, label_smoothing=0.2
    )


def likelihood(model, scores, labels, mask):
    return functional.nll_loss(scores.log_softmax(-1).transpose(1, 2), labels, ignore_index=-100)


def masked_mean(model, scores, labels, mask):
    return (error(scores, mask) * mask).sum() / mask.sum()


def selected_labels(model, scores, labels, mask):
    return functional.cross_entropy(scores[labels != -100], labels[labels != -100])


def selected_errors(model, scores, labels, mask):
    kept = mask > 0
    return error(scores, mask)[kept].mean() + 0.1 * scores[kept].abs().mean()


def at_least_one(model, scores, labels, mask):
    kept = (labels != -100).sum().clamp_(min=1)
    return (error(scores, mask) * (labels != -100)).sum() / kept


def total(model, scores, labels, mask):
    return functional.cross_entropy(*flat(scores, labels), reduction="sum")


def several_terms(model, scores, labels, mask):
    """Sums over different counts, a mean, and a constant that has a gradient."""
    size = sum(parameter.square().sum() for parameter in model.parameters())
    loss = functional.cross_entropy(*flat(scores, labels)) + 0.5 * masked_mean(
        model, scores, labels, mask
    )
    return loss + error(scores, mask).mean() + 1e-3 * size + 0.25


def standardised(model, scores, labels, mask):
    """Arguments minus their mean, over their deviation: one sum depends on another."""
    centred = mask - mask.mean()
    deviation = centred.square().mean().sqrt()
    return error(scores, centred / (deviation + 1e-3)).mean()


def sample_weights(model, scores, labels, mask):
    weights = mask[:, 0] + 0.5
    return (error(scores, mask).mean(1) * weights / weights.sum()).sum()


def averaged_by_hand(model, scores, labels, mask):
    """Divided by a float of the batch size."""
    return error(scores, mask).sum() / (0.0 + 5 * len(mask)) + error(scores, mask).sum(0)[2] / 1e3


def root(model, scores, labels, mask):
    """Not linear in a mean."""
    return error(scores, mask).mean().sqrt()


def inputs(rows, generator):
    x = torch.randn(rows, 5, 8, generator=generator)
    labels = torch.randint(CLASSES, (rows, 5), generator=generator)
    hidden = torch.rand(rows, 5, generator=generator) < 0.4
    hidden[0], hidden[rows - rows // 4 :] = False, True
    mask = torch.rand(rows, 5, generator=generator) * ~hidden
    return (x, labels.masked_fill(hidden, -100), mask), {}


FUNCTIONS = (
    ignored, class_weights, label_smoothing, weights_and_smoothing, likelihood, masked_mean,
    at_least_one, total, several_terms, standardised, sample_weights, selected_labels,
    selected_errors, averaged_by_hand,
)  # fmt: skip


def entry(function):
    return Entry(lambda: LossModel(function), inputs)


LOSSES = {function.__name__: entry(function) for function in FUNCTIONS}
ROOT = entry(root)


def bert_config():
    from transformers import BertConfig

    return BertConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def masked_bert():
    from transformers import BertForMaskedLM

    return BertForMaskedLM(bert_config())


def pretraining_bert():
    from transformers import BertForPreTraining

    return BertForPreTraining(bert_config())


def masked_language(rows, generator):
    """A few words to guess in each sample, none in the last quarter."""
    _, kwargs = language_ids(rows, generator)
    hidden = torch.rand(rows, 10, generator=generator) < 0.7
    hidden[0], hidden[rows - rows // 4 :] = False, True
    kwargs["labels"] = kwargs["labels"].masked_fill(hidden, -100)
    return (), kwargs


def pretraining(rows, generator):
    _, kwargs = masked_language(rows, generator)
    kwargs["next_sentence_label"] = torch.randint(2, (rows,), generator=generator)
    return (), kwargs


def padded_gpt2():
    from models import gpt2

    return gpt2()


def padded_language(rows, generator):
    """Texts of different lengths; what comes after the end is no label."""
    _, kwargs = language_ids(rows, generator)
    lengths = torch.randint(1, 11, (rows, 1), generator=generator)
    kwargs["labels"] = kwargs["labels"].masked_fill(torch.arange(10) >= lengths, -100)
    return (), kwargs


def choosing_bert():
    from transformers import BertForMultipleChoice

    model = BertForMultipleChoice(bert_config())
    # It adds the same to every choice, so its gradient is rounding, of which Adam makes steps.
    model.classifier.bias.requires_grad_(False)
    return model


def choices(rows, generator):
    """Three texts of different lengths for each sample, which the model flattens."""
    ids = torch.randint(3, 90, (rows, 3, 10), generator=generator)
    lengths = torch.randint(1, 11, (rows, 3, 1), generator=generator)
    mask = (torch.arange(10) < lengths).long()
    labels = torch.randint(3, (rows,), generator=generator)
    return (), {"input_ids": ids, "attention_mask": mask, "labels": labels}


LANGUAGE_LOSSES = {
    "masked_bert": Entry(masked_bert, masked_language),
    "pretraining_bert": Entry(pretraining_bert, pretraining),
    "padded_gpt2": Entry(padded_gpt2, padded_language),
    "choosing_bert": Entry(choosing_bert, choices),
}
