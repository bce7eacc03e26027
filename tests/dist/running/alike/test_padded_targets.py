"""pyrannc.padded() on ranks with sequences of different lengths, against one process."""

import pytest


@pytest.mark.ranks(
    """
    import copy, pyrannc, torch
    from torch import nn
    from torch.nn import functional

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 4)).double()
    batches = [(torch.randint(0, 9, (3, n)), torch.randint(0, 4, (3, n))) for n in (5, 7)]
    rank = pyrannc.get_rank()
    ids, labels = batches[rank]
    for side in "right", "left":
        twin = copy.deepcopy(plain)
        model = pyrannc.RaNNCModule(
            copy.deepcopy(plain), config=pyrannc.Config(calibrate=False),
            pad={"input": 0}, pad_side=side, pad_to="powers of two",
        )
        try:
            pyrannc.padded(labels)
            raise AssertionError("no error")
        except pyrannc.RaNNCError as error:
            assert "no argument was of these sizes" in str(error), error
        scores = model(ids)
        assert scores.shape == (3, 8, 4), scores.shape
        targets = pyrannc.padded(labels)
        assert targets.shape == (3, 8) and (targets == -100).sum() == 3 * (8 - ids.shape[1])
        total = functional.cross_entropy(
            scores.flatten(0, 1), targets.flatten(), reduction="sum"
        )
        loss = pyrannc.mean(total, (targets != -100).sum())
        loss.backward()
        all_scores = torch.cat([twin(each).flatten(0, 1) for each, _ in batches])
        all_labels = torch.cat([each.flatten() for _, each in batches])
        wanted = functional.cross_entropy(all_scores, all_labels)
        wanted.backward()
        torch.testing.assert_close(loss, wanted)
        for name, parameter in model.named_parameters(from_global=False):
            torch.testing.assert_close(parameter.grad, twin.get_parameter(name).grad)
        model.undeploy()
    """
)
def test_a_loss_of_padded_outputs_and_targets_is_that_of_one_process(done):
    pass
