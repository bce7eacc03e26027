"""Embeddings with the options that change their gradients."""

import copy

import pytest
import torch
from torch import nn

from pyrannc import Config, ConfigError, RaNNCModule


class Words(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.words = nn.Embedding(9, 4, **options)
        self.bags = nn.EmbeddingBag(9, 4, mode="sum", **options)
        self.head = nn.Linear(4, 1)

    def forward(self, ids):
        return self.head(self.words(ids).sum(1) + self.bags(ids)).square().mean()


IDS = torch.tensor([[1, 2, 2], [2, 3, 8], [5, 1, 1], [0, 2, 7]])


def steps(model, optimizer):
    losses = []
    for ids in (IDS, IDS + 0, IDS.flip(0)):
        optimizer.zero_grad()
        losses.append(model(ids))
        losses[-1].backward()
        optimizer.step()
    return torch.stack(losses)


def sgd_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def assert_equal_training(plain, **config):
    twin = copy.deepcopy(plain)
    optimizer = sgd_of(plain)
    model = RaNNCModule(plain, optimizer, Config(**config))
    torch.testing.assert_close(steps(model, optimizer), steps(twin, sgd_of(twin)))
    for (name, ours), theirs in zip(plain.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad.to_dense(), msg=name)
        torch.testing.assert_close(ours, theirs, msg=name)
    return model


@pytest.mark.parametrize("micro_batches", [0, 2])
def test_gradients_that_are_asked_to_be_sparse_are_dense_and_equal(micro_batches):
    torch.manual_seed(0)
    assert_equal_training(Words(sparse=True), pipeline_num=micro_batches)


def test_an_optimizer_for_sparse_gradients_is_an_error_that_names_the_module():
    plain = Words(sparse=True)
    optimizer = torch.optim.SparseAdam([plain.words.weight, plain.bags.weight])
    with pytest.raises(ConfigError, match=r"(?s)SparseAdam.*module 'words'.*1 more.*Use Adam"):
        RaNNCModule(plain, optimizer)(IDS)


def test_gradients_divided_by_frequency_keep_the_batch_whole():
    torch.manual_seed(0)
    # The self-check, too, would find that rows interact.
    plan = assert_equal_training(Words(scale_grad_by_freq=True), self_check=False).plan
    assert plan.micro_batches == 1
    plain = Words(scale_grad_by_freq=True)
    with pytest.raises(ConfigError, match="divides gradients by how often an index is in the"):
        RaNNCModule(plain, sgd_of(plain), Config(pipeline_num=2, self_check=False))(IDS)
