"""Numbers that forward() reads for a log, on two ranks: those of one process."""

import pytest

MODEL = """
import collections, logging
import pyrannc, torch
from torch import nn
from torch.nn import functional as F
from beside_one_process import compare

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(5, 8), nn.Tanh()), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.last, self.log, self.history = 0.0, {}, []
        self.recent = collections.deque(maxlen=2)
        self.nested = {"loss": []}

    def forward(self, x, labels):
        hidden = self.body(x)
        logits = self.scale * self.head(hidden)
        loss = F.cross_entropy(logits, labels)
        return self.note(hidden, logits, labels, loss)

def step(model, batch):
    found = model(*batch)
    loss = found[0] if isinstance(found, tuple) else found
    loss.backward()
    return dict(loss=loss.detach(), **kept(model, found))

def batches(count):
    torch.manual_seed(1)
    return [(torch.randn(7, 5).double(), torch.randint(3, (7,))) for _ in range(count)]

PLANS = (
    dict(partition_num=2, replica_nums=[1, 1], pipeline_num=3, calibrate=False),
    dict(partition_num=1, replica_nums=[2], pipeline_num=2, calibrate=False),
)
"""
LOGGED = {
    "attribute": ("self.last = loss.item()", "dict(last=model.last)"),
    "tensor": ("self.last = hidden.mean().detach()", "dict(last=model.last.item())"),
    "dict": (
        "self.log['right'] = (logits.argmax(1) == labels).double().mean().item()",
        "model.log",
    ),
    "new_dict": (
        "self.log = {'cross_entropy': loss.item(), 'size': round(hidden.abs().mean().item(), 3)}",
        "model.log",
    ),
    "list": ("self.history.append(loss.item())", "dict(all=model.history)"),
    "deque": ("self.recent.append(hidden.mean().item())", "dict(all=list(model.recent))"),
    "largest": ("self.last = hidden.max().item()", "dict(last=model.last)"),
    "count": ("self.last = (hidden > 0).sum().item()", "dict(last=model.last)"),
    "parameter": ("self.last = self.scale.item()", "dict(last=model.last)"),
    "arithmetic": (
        "self.last = 1 - loss.item() / 2 + abs(-hidden.mean().item())", "dict(last=model.last)",
    ),
    "returned": ("return loss, hidden.mean().item()", "dict(mean=found[1])"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGGED)
@pytest.mark.ranks(
    lambda name: (
        f"""
{MODEL}

class Net(Base):
    def note(self, hidden, logits, labels, loss):
        {LOGGED[name][0]}
        return loss

def kept(model, found):
    return {LOGGED[name][1]}

interact = [dict(partition_num=2, calibrate=False)]  # the largest of all rows
for plan in interact if "{name}" == "largest" else PLANS:
    compare(Net, batches(3), step, pyrannc.Config(**plan))
"""
    )
)
def test_a_number_that_forward_keeps_is_that_of_the_whole_batch(done, name):
    assert "changes attributes" not in done.stderr


@pytest.mark.ranks(
    f"""
{MODEL}
logging.basicConfig(format="logged %(message)s")

class Net(Base):
    def note(self, hidden, logits, labels, loss):
        print("loss", loss.item(), f"{{hidden.mean():.3f}}", end="!\\n", flush=True)
        logging.warning("%s of %.4f", "mean", hidden.mean().item())
        return loss

def kept(model, found):
    return dict()

shown = print
if pyrannc.get_rank() == 0:
    torch.manual_seed(0)
    plain = Net().double()
    for batch in batches(1):
        plain(*batch)
for plan in PLANS:
    torch.manual_seed(0)
    model = pyrannc.RaNNCModule(Net().double(), config=pyrannc.Config(**plan))
    for x, y in batches(1):
        rank = pyrannc.get_rank()
        model(x.tensor_split(2)[rank], y.tensor_split(2)[rank]).backward()
"""
)
def test_what_forward_prints_of_a_tensor_is_printed_once_in_each_call(done):
    printed = [line for line in done.stdout.splitlines() if line.startswith("loss")]
    logged = [line for line in done.stderr.splitlines() if "mean of" in line]
    assert len(printed) == len(logged) == 3, (printed, logged)
    numbers = [[float(text.rstrip("!")) for text in line.split()[1:]] for line in printed]
    assert (
        max(abs(a - b) for each in numbers for a, b in zip(each, numbers[0], strict=True)) < 1e-9
    ), numbers
    assert len(set(logged)) == 1, logged


REFUSED = {
    "branch": ("loss = loss * 2 if hidden.mean().item() > 0 else loss", "self.last = x.mean()"),
    "factor": ("loss = loss * hidden.mean().item()", "self.last = x.mean()"),
    "converted": ("self.last = float(loss.detach())", "self.last = x.mean()"),
    "operand": ("loss = loss + torch.full((2,), loss.item()).mean()", "self.last = x.mean()"),
    "running_sum": ("self.last += loss.item()", "sums over calls belong there"),
    "average": ("self.last = 0.9 * self.last + 0.1 * loss.item()", "averages"),
    "decision": (
        "loss = loss * 2 if self.last else loss; self.last = loss.item()", "call before it",
    ),
    "hidden_list": ("self.nested['loss'].append(loss.item())", "attributes, lists and dicts"),
    "text": ("self.last = f'{loss.item():.3f}'", "attributes, lists and dicts"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.ranks(
    lambda name: (
        f"""
{MODEL}

class Net(Base):
    def note(self, hidden, logits, labels, loss):
        {REFUSED[name][0]}
        return loss

model = pyrannc.RaNNCModule(Net())
x, y = batches(1)[0]
try:
    model(x.float(), y)
except pyrannc.RaNNCError as error:
    assert {REFUSED[name][1]!r} in str(error), str(error)
    assert "model.last.item()" in str(error), str(error)
    assert "LoggedNumber" not in str(error), str(error)
else:
    raise AssertionError("captured")
"""
    )
)
def test_a_number_that_python_needs_is_an_error_that_says_what_to_write(done, name):
    pass
