"""Accelerate, Trainer and Lightning with a model in the host's memory, or without values, and
batches on a stand-in device: losses as on one process of the CPU, and nobody moves the whole.
"""

import tempfile
from pathlib import Path

import lightning.pytorch as pl
import standin
import torch
import transformers
from accelerate import PartialState
from lightning.pytorch.accelerators import Accelerator as Device
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset

import pyrannc
from pyrannc import launch
from pyrannc.state.released import is_released

standin.start(delay_us=20)
from pyrannc.integrations.accelerate import Accelerator  # noqa: E402
from pyrannc.integrations.lightning import RaNNCStrategy  # noqa: E402
from pyrannc.integrations.transformers import Trainer  # noqa: E402

pyrannc.init()
DEVICE, RANK, SIZE = torch.device("standin", 0), pyrannc.get_rank(), pyrannc.get_world_size()
CONFIG = pyrannc.Config(partition_num=SIZE, replica_nums=[1] * SIZE, calibrate=False)
WIDTH, STEPS, BATCH = 64, 4, 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))

    def forward(self, x, labels=None):
        for layer in self.layers:
            x = layer(x).tanh()
        return {"loss": (x - labels).square().mean()}

    def _apply(self, *_, **__):
        raise AssertionError("the whole model is moved")


class Rows(Dataset):
    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        return {name: torch.randn(WIDTH, generator=made) for name in ("x", "labels")}


def by_way_of_the_host(collective):
    """Gloo knows nothing of this device."""

    def call(written, *args, **kwargs):
        """What is written to is the first argument: a tensor, or a list of them."""
        several = isinstance(written, list)
        outputs = written if several else [written]
        found = [each.cpu() for each in outputs]
        args = [each.cpu() if isinstance(each, torch.Tensor) else each for each in args]
        collective(found if several else found[0], *args, **kwargs)
        for output, each in zip(outputs, found, strict=True):
            output.copy_(each)

    return call


def net(meta):
    torch.manual_seed(0)
    with torch.device("meta" if meta else "cpu"):
        return Net()


def expected():
    model, found = net(False), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for batch in DataLoader(Rows(), batch_size=BATCH):
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def with_accelerate(meta, settings):
    state = PartialState(cpu=True)
    before, state.device = state.device, DEVICE
    accelerator = Accelerator(config=CONFIG, settings=settings)
    model = net(meta)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(Rows(), batch_size=BATCH // SIZE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    found = []
    other = accelerator.prepare(net(False))
    try:
        other(**{name: torch.ones(2, WIDTH) for name in ("x", "labels")})
    except pyrannc.TraceError as error:
        assert "cpu and standin:0" in str(error), error
    else:
        raise AssertionError("a batch on the host would train there")
    for batch in loader:
        assert batch["x"].device.type == "standin"
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    state.device = before
    return found, model.module


class OnDevice(transformers.TrainingArguments):
    @property
    def device(self):
        assert super().device.type == "cpu"
        return DEVICE


def with_trainer(meta, settings):
    with tempfile.TemporaryDirectory() as folder:
        arguments = OnDevice(
            folder, per_device_train_batch_size=BATCH // SIZE, num_train_epochs=1, logging_steps=1,
            learning_rate=0.5, lr_scheduler_type="constant", optim="sgd", save_strategy="no",
            report_to=[], disable_tqdm=True, max_grad_norm=0, use_cpu=True,
            train_sampling_strategy="sequential",
        )  # fmt: skip
        model = net(meta)
        trainer = Trainer(model, arguments, train_dataset=Rows(),
                          rannc_config=CONFIG, rannc_settings=settings)  # fmt: skip
        trainer.train()
    return [each["loss"] for each in trainer.state.log_history if "loss" in each], model


class Standin(Device):
    def setup_device(self, device):
        standin.set_device(device.index)

    def teardown(self):
        pass

    @staticmethod
    def parse_devices(devices):
        return devices

    @staticmethod
    def get_parallel_devices(devices):
        return [DEVICE] * SIZE

    @staticmethod
    def auto_device_count():
        return SIZE

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return "standin"


class Loss(pl.LightningModule):
    def __init__(self, meta):
        super().__init__()
        self.net, self.found = net(meta), []
        self.register_buffer("factor", torch.ones(()))

    def training_step(self, batch, _):
        assert self.device == self.factor.device == batch["x"].device == DEVICE
        loss = self.net(**batch)["loss"] * self.factor
        self.found.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        self.log("val", self.net(**batch)["loss"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def with_lightning(meta, settings):
    module = Loss(meta)
    trainer = pl.Trainer(
        accelerator=Standin(), devices=SIZE, strategy=RaNNCStrategy(CONFIG, **settings),
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    loaders = [DataLoader(Rows(), batch_size=BATCH // SIZE) for _ in range(2)]
    trainer.fit(module, *loaders)
    return module.found, module.net.module


def main():
    folder = launch.world().broadcast(tempfile.mkdtemp().encode() if RANK == 0 else b"", 0).decode()
    weights = Path(folder) / "model.safetensors"
    if RANK == 0:
        save_file(net(False).state_dict(), weights)
    pyrannc.barrier()
    for name in "all_gather", "all_reduce":
        collective = getattr(torch.distributed, name)
        setattr(torch.distributed, name, by_way_of_the_host(collective))
    wanted = expected()
    for train in with_accelerate, with_trainer, with_lightning:
        for meta in False, True:
            found, model = train(meta, {"weights": weights} if meta else {})
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
            held = [each for each in model.parameters() if not is_released(each)]
            assert all(each.device == DEVICE for each in held), train
            counts = launch.world().all_gather(str(len(held)).encode())
            assert sum(map(int, counts)) == len(list(model.parameters())), (train, counts)
    print("done")


if __name__ == "__main__":
    main()
