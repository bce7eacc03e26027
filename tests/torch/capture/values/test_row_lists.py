"""Lists of the rows of a tensor that are joined again, at any number of rows."""

import pytest
import torch
from torch import nn

from pyrannc import TraceError
from pyrannc.capture.model import capture
from pyrannc.selfcheck.check import check


class Listed(nn.Module):
    def __init__(self, join):
        super().__init__()
        self.layer, self.join = nn.Linear(6, 4), join

    def forward(self, x):
        return self.join(self.layer(x)).tanh()


def found(join):
    model, x = Listed(join), torch.randn(4, 3, 6)
    return check(model, capture(model, (x,)), (x,), {})


@pytest.mark.parametrize(
    "join",
    [
        lambda x: torch.cat(list(x), dim=0),
        lambda x: torch.cat(x.unbind()).reshape(-1, 3, 4) + torch.concat(torch.unbind(x, 0))[:1],
        lambda x: torch.stack([row for row in x]),
        lambda x: torch.cat(list(x), axis=0) + torch.cat([x, x], axis=1).sum(),  # numpy's name
        lambda x: torch.stack(torch.unbind(x, dim=1)),  # a fixed number: torch's own
        lambda x: torch.cat([torch.stack(x.unbind(axis=0), axis=0), x], axis=1),
        lambda x: torch.cat(list(x)).add_(1).sum(0) + x.sum((0, 1)),  # a copy: x stays
    ],
)
def test_all_rows_joined_in_their_order_are_the_tensor(join):
    assert found(join).ok


@pytest.mark.parametrize(
    "join",
    [
        lambda x: torch.cat(list(x)[1:]),
        lambda x: torch.cat(list(x)[::-1]),
        lambda x: torch.cat([row * 2 for row in x]),
    ],
)
def test_another_list_of_rows_is_refused(join):
    with pytest.raises(TraceError, match="when the number of rows differs"):
        found(join)


def test_a_list_of_rows_is_returned_for_any_number_of_them():
    model = Listed(lambda x: x)
    model.forward = lambda x: {"rows": list(model.layer(x)), "sum": model.layer(x).sum()}
    captured = capture(model, (torch.randn(4, 3, 6),))
    assert captured.output_paths() == ["output['rows']", "output['sum']"]
    x = torch.randn(7, 3, 6)
    found = captured.unflatten([model.layer(x), torch.zeros(())], 7)["rows"]
    assert type(found) is list and len(found) == 7
    torch.testing.assert_close(found[6], model.layer(x[6]))
