"""What ranks tell each other outside of a model."""

import pytest


@pytest.mark.ranks(
    """
    import pyrannc, torch

    rank = pyrannc.get_rank()
    found = pyrannc.all_gather({"right": 3 + rank, "names": ["a"] * rank})
    assert found == [{"right": 3, "names": []}, {"right": 4, "names": ["a"]}], found
    assert sum(pyrannc.all_gather(rank + 1)) == 3

    # Tensors of other lengths on each rank; of a view what is seen of it.
    rows = torch.arange(6.0, requires_grad=True)[: 2 + rank]
    gathered = pyrannc.all_gather(rows)
    assert torch.cat(gathered).tolist() == [0, 1, 0, 1, 2]
    assert not any(each.requires_grad for each in gathered)
    assert gathered[0].untyped_storage().nbytes() == 8
    assert pyrannc.all_gather([rows])[1][0].tolist() == [0, 1, 2]

    # One that cannot be sent is an error on every rank, and the ranks go on.
    try:
        pyrannc.all_gather((lambda: 0) if rank == 1 else 0)
        raise AssertionError("no error")
    except pyrannc.RaNNCError as error:
        assert str(error).startswith("rank 1: all_gather of what cannot be pickled"), error
    buffer = torch.zeros(4)
    assert pyrannc.all_gather(torch.ones(2) * rank, buffer) is None
    assert buffer.tolist() == [0, 0, 1, 1]
    """
)
def test_all_gather_of_anything_gives_a_list(done):
    pass
