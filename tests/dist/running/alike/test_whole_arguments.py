"""Arguments without rows on an accelerator are compared in the next call: nobody waits for them."""

import pytest
import standin

ON_A_DEVICE = """
import standin
import torch

import pyrannc
from pyrannc import Config, RaNNCError, RaNNCModule, launch

rank = launch.world().rank
standin.start(devices=2, delay_us=20)
standin.keep_to(rank)
standin.set_device(rank)

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, x, scale):
        return self.second(torch.tanh(self.first(x))) * scale.sum()

torch.manual_seed(0)
config = Config(device="standin", partition_num=2, replica_nums=[1, 1], calibrate=False)
model = RaNNCModule(Scaled(), None, config, batch_dims={0: 0, 1: None})
x = torch.randn(4, 6, device=f"standin:{rank}")
for values in ([2.0], [1.0, 3.0, 5.0]):
    scale = torch.tensor(values).to(x.device)
    for _ in range(3):
        with torch.no_grad():
            model(x, scale)
    try:
        with torch.no_grad():
            model(x, scale + rank)
            model(x, scale)
    except RaNNCError as error:
        assert "'args[1]' has no rows, and is not the same on every rank" in str(error), error
    else:
        raise AssertionError("no error")
    with torch.no_grad():
        model(x, scale)
print("all right", flush=True)
"""


@pytest.mark.skipif(not standin.built(), reason="the stand-in device was not built")
@pytest.mark.ranks(ON_A_DEVICE)
def test_an_accelerators_are_compared_with_the_next_call(done):
    assert done.stdout.count("all right") == 2, done.stderr
