"""Models that return their loss, in one process: which schedule they get, and what comes back."""

import copy
import json
import pickle

import pytest
import torch
from models import TRANSFORMERS
from torch import nn

from pyrannc import Config, ConfigError, PlanError, RaNNCError, RaNNCModule


class Classifier(nn.Module):
    """``returned`` picks what comes back, by name."""

    def __init__(self, *returned, reduction="mean"):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.returned, self.reduction = returned, reduction

    def forward(self, x, labels):
        logits = self.body(x)
        loss = nn.functional.cross_entropy(logits, labels, reduction=self.reduction)
        found = {
            "loss": loss,
            "logits": logits,
            "right": (logits.argmax(1) == labels).sum(),
            "logged": loss.detach(),
            "penalty": logits.square().mean(),
            "per_class": logits.sum(0),
        }
        return {name: found[name] for name in self.returned}


def batch(rows=6):
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows))
    return x, torch.arange(rows) % 4


def wrap(model, outputs="loss", **config):
    return RaNNCModule(model, config=Config(self_check=False, **config), outputs=outputs)


def schedule_of(model, **config):
    wrapped = wrap(model, **config)
    wrapped(*batch())
    return wrapped.plan.schedule


@pytest.mark.parametrize("returned", [["loss"], ["loss", "logits"], ["right", "loss", "logged"]])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_model_that_returns_its_loss_trains_under_1f1b(returned, reduction):
    assert schedule_of(Classifier(*returned, reduction=reduction)) == "1f1b"


@pytest.mark.parametrize("returned", [["logits"], ["loss", "penalty"], ["logged"], ["per_class"]])
def test_other_models_train_by_fill_drain(returned):
    assert schedule_of(Classifier(*returned)) == "gpipe"
    with pytest.raises(ConfigError, match=r"schedule = '1f1b' .*returns its loss"):
        schedule_of(Classifier(*returned), schedule="1f1b")


@pytest.mark.parametrize("name", ["gpipe", "fill_drain"])
def test_fill_drain_can_be_asked_for(name):
    assert schedule_of(Classifier("loss"), schedule=name) == "gpipe"


def test_an_unknown_schedule_or_output_is_an_error():
    with pytest.raises(ConfigError, match="schedule = 'zigzag'"):
        Config(schedule="zigzag")
    with pytest.raises(ConfigError, match="outputs = 'some'"):
        RaNNCModule(Classifier("loss"), outputs="some")


def test_a_model_met_in_eval_mode_keeps_its_backward_there():
    wrapped = wrap(Classifier("loss").eval())
    wrapped(*batch())["loss"].backward()
    assert wrapped.plan.schedule == "gpipe"


def test_numbers_without_a_gradient_come_with_the_loss():
    plain = Classifier("loss", "right", "logged", "logits", "per_class")
    twin = copy.deepcopy(plain)
    wrapped = wrap(plain, pipeline_num=2)
    ours, theirs = wrapped(*batch()), twin(*batch())
    for name in ("loss", "right", "logged"):
        torch.testing.assert_close(ours[name], theirs[name])
    assert not ours["logged"].requires_grad
    for name in ("logits", "per_class"):
        with pytest.raises(RaNNCError, match=rf"output\['{name}'\] was not sent.*'1f1b'"):
            ours[name].sum()
    assert copy.deepcopy(ours["logits"]) is not None
    assert "was not sent" in repr(pickle.loads(pickle.dumps(ours["logits"])))
    with torch.no_grad():
        torch.testing.assert_close(wrapped(*batch())["logits"], theirs["logits"])


def test_all_outputs_arrive_when_asked_for_and_have_no_gradient():
    plain = Classifier("loss", "logits", "per_class")
    twin = copy.deepcopy(plain)
    wrapped = wrap(plain, outputs="all", pipeline_num=3)
    ours, theirs = wrapped(*batch()), twin(*batch())
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor)
    with pytest.raises(RaNNCError, match=r"schedule='gpipe'"):
        (ours["loss"] + ours["logits"].mean()).backward()
    with pytest.raises(RaNNCError, match=r"schedule='gpipe'"):
        wrapped(*batch())["per_class"].sum().backward()
    wrapped(*batch())["loss"].backward()
    theirs["loss"].backward()
    for (name, ours), theirs in zip(wrapped.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)


def test_a_gradient_is_given_away_and_not_copied():
    wrapped = wrap(Classifier("loss"))
    wrapped(*batch())["loss"].backward()  # deploys
    wrapped.zero_grad()
    weight = wrapped.model.body[0].weight
    seen = []
    handle = weight.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
    wrapped(*batch())["loss"].backward()
    handle.remove()
    assert weight.grad.data_ptr() == seen[0]


def test_a_plan_from_a_file_keeps_its_schedule_and_is_checked(tmp_path):
    wrapped = wrap(Classifier("loss", "logits"), pipeline_num=2)
    wrapped(*batch())
    path = tmp_path / "plan.json"
    wrapped.save_deployment(path)

    def load(model, **config):
        loaded = RaNNCModule(model, config=Config(**config), load_deployment=path)
        return loaded, loaded(*batch())

    loaded, outputs = load(Classifier("loss", "logits"))
    assert loaded.plan.schedule == "1f1b"
    assert "was not sent" in repr(outputs["logits"])
    with pytest.raises(ConfigError, match=r"schedule = 'gpipe', but .*plan\.json has '1f1b'"):
        load(Classifier("loss", "logits"), schedule="gpipe")
    # A plan by hand, for a model that has no loss.
    content = json.loads(path.read_text())
    content.pop("notes")
    other = RaNNCModule(Classifier("logits"), config=Config(self_check=False))
    other(*batch())
    other.save_deployment(path)
    by_hand = json.loads(path.read_text()) | {"schedule": "1f1b"}
    path.write_text(json.dumps(by_hand))
    with pytest.raises(PlanError, match=r"plan\.json has schedule '1f1b'.*returns its loss"):
        load(Classifier("logits"))


def test_rows_that_interact_keep_fill_drain(capfd):
    class Contrast(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(8, 4)

        def forward(self, x, labels):
            y = self.body(x)
            return ((y @ y.T) * labels).mean()

    wrapped = wrap(Contrast())
    wrapped(*batch()).backward()
    assert (wrapped.plan.schedule, wrapped.plan.micro_batches) == ("gpipe", 1)
    assert "rows interact" in capfd.readouterr().err


def test_a_hugging_face_output_is_built_with_placeholders():
    pytest.importorskip("transformers")
    entry = TRANSFORMERS["bert"]
    args, kwargs = entry.inputs(4)
    wrapped = RaNNCModule(entry.build(), config=Config(pipeline_num=2))
    output = wrapped(*args, **kwargs)
    expected = entry.build()(*args, **kwargs)
    assert type(output) is type(expected)
    assert output.loss is output["loss"] is output[0]
    torch.testing.assert_close(output.loss, expected.loss)
    output.loss.backward()
    with pytest.raises(RaNNCError, match=r"output\['logits'\] was not sent"):
        output.logits.argmax(-1)
    assert "logits" in str(output)
    torch.testing.assert_close(wrapped.eval()(*args, **kwargs).logits, expected.logits)
