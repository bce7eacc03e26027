"""Who is told which grad mode while a model is captured."""

import threading

import pytest
import torch
from torch import is_grad_enabled, nn

from pyrannc import _C
from pyrannc.capture.model import capture
from pyrannc.capture.values.grad_mode import GradMode

FRONT_ENDS = ["torchscript", "export"] if hasattr(_C.frontend, "Tracer") else ["export"]


class Asking(nn.Linear):
    def forward(self, x):
        if not self.training and not torch.is_grad_enabled():
            return super().forward(x).softmax(-1)
        return super().forward(x)


class AskingByAName(nn.Linear):
    def forward(self, x):
        if not self.training and not is_grad_enabled():
            return super().forward(x).softmax(-1)
        return super().forward(x)


@pytest.mark.parametrize("kind", [Asking, AskingByAName])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_capture_knows_what_its_model_was_told(front_end, kind):
    def captured(grad):
        return capture(model, (torch.ones(4, 3),), front_end=front_end, grad=grad)

    model = kind(3, 2)
    assert captured(False).grad is None  # in training nobody asks
    model.eval()
    for grad in (True, False):
        found = captured(grad)
        operators = [node.op for node in found.graph.nodes]
        assert found.grad is grad and ("aten::softmax.int" in operators) == (not grad), operators
    assert is_grad_enabled is torch.is_grad_enabled and is_grad_enabled()


def test_blocks_without_gradients_other_threads_and_libraries_get_torchs_answer():
    def ask():
        answers.append(torch.is_grad_enabled())

    answers, mode, torchs = [], GradMode(False), torch.is_grad_enabled
    with mode.answered(nn.Linear(2, 2)):
        with torch.no_grad():
            ask()
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        with torch.enable_grad():
            pass
        with torch.set_grad_enabled(True):  # which asks, too
            assert mode.told is None
        assert torchs()
        ask()
    assert answers == [False, True, False] and mode.told is False
    assert torch.is_grad_enabled is torchs
