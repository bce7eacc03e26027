"""LightningModules in FOLDER: on one process as they are, on several ranks with RaNNCStrategy.
Rank 0 writes by case what was logged, as JSON.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import lightning.pytorch as pl
import torch
import toy
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    Callback,
    EarlyStopping,
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchmetrics import MeanAbsoluteError

import pyrannc
from pyrannc import Config, ConfigError, RaNNCError

SIZE = pyrannc.get_world_size()
PLAN = {"partition_num": SIZE, "replica_nums": [1] * SIZE}
if "IN_GROUPS" in os.environ:  # all ranks compute each layer together
    PLAN = {"tensor_parallel": SIZE, "partition_num": 1}
CONFIG = Config(**PLAN, calibrate=False)


class Loss(pl.LightningModule):
    """Logs its losses, and the norm of the gradients."""

    def training_step(self, batch, index):
        loss = nn.functional.mse_loss(self.predicted(batch["x"]), batch["labels"])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        loss = nn.functional.mse_loss(self.predicted(batch["x"]), batch["labels"])
        self.log("val_loss", loss, batch_size=len(batch["x"]))

    def predict_step(self, batch, index):
        return self.predicted(batch["x"])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        self.log("grad_norm", nn.utils.get_total_norm([p.grad for p in self.parameters()
                                                       if p.grad is not None]))  # fmt: skip
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)


class WithChild(Loss):
    """One module has all parameters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def predicted(self, x):
        return self.net(x)


class WithForward(Loss):
    """Several do, and forward() calls them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.scale = nn.Linear(6, 16), nn.Linear(16, 1), nn.Linear(1, 1)

    def forward(self, x):
        return self.scale(self.second(torch.tanh(self.first(x))))

    def predicted(self, x):
        return self(x)


class Log(Callback):
    def __init__(self):
        self.entries = []

    def on_train_batch_end(self, trainer, *_):
        self._add(trainer)

    def on_validation_end(self, trainer, *_):
        self._add(trainer)

    def _add(self, trainer):
        self.entries.append({name: value.item() for name, value in trainer.logged_metrics.items()})


def trainer(folder, *callbacks, config=CONFIG, modules=(), **others):
    if SIZE > 1:
        from pyrannc.integrations.lightning import RaNNCStrategy

        others["strategy"] = RaNNCStrategy(config, modules=modules)
    settings = {
        "accelerator": "cpu", "devices": 1, "max_epochs": 3, "gradient_clip_val": 0.5,
        "enable_progress_bar": False, "enable_model_summary": False, "logger": False,
        "accumulate_grad_batches": 2, "log_every_n_steps": 1, "default_root_dir": str(folder),
    }  # fmt: skip
    return pl.Trainer(callbacks=list(callbacks), **settings | others)


def loaders():
    """The rows of a step are those of the global batch, and those of validation others."""
    made = [DataLoader(toy.Rows(), batch_size=toy.GLOBAL_BATCH // SIZE) for _ in range(2)]
    made[1].dataset.x.neg_()
    return made


def trained(folder, kind, resume=None, **others):
    log = Log()
    saved = ModelCheckpoint(str(folder), "best", monitor="val_loss")
    stopping = EarlyStopping("val_loss", min_delta=0.2, patience=1)
    fit = trainer(folder, log, saved, stopping, **others)
    fit.fit(kind(), *loaders(), ckpt_path=resume)
    epochs = fit.current_epoch
    tested = fit.validate(dataloaders=loaders()[1], ckpt_path="best", verbose=False)
    pyrannc.barrier()
    state = torch.load(folder / "best.ckpt", weights_only=False)
    sums = {name: each.double().square().sum().item() for name, each in state["state_dict"].items()}
    moments = [each["exp_avg"].double().square().sum().item()
               for each in state["optimizer_states"][0]["state"].values()]  # fmt: skip
    return {"log": [*log.entries, *tested], "weights": sums, "moments": moments, "epochs": epochs}


def twice(folder):
    """The same Trainer goes on with another fit()."""
    module, fit = WithChild(), trainer(folder, max_epochs=1)
    losses = []
    for epochs in (1, 2):
        fit.fit_loop.max_epochs = epochs
        fit.fit(module, *loaders())
        losses.append(fit.logged_metrics["val_loss"].item())
    return {"log": [{"loss": each} for each in losses], "weights": {}}


def another(folder):
    """Another Trainer goes on with what a first one has trained, and others validate it."""
    losses = []
    for kind in (WithChild, WithForward):
        module = kind()
        for _ in range(2):
            fit = trainer(folder, max_epochs=1, num_sanity_val_steps=0)
            fit.fit(module, *loaders())
            losses.append(fit.logged_metrics["val_loss"].item())
        found = trainer(folder).validate(module, loaders()[1], verbose=False)
        losses.append(found[0]["val_loss"])
    return {"log": [{"loss": each} for each in losses], "weights": {}}


class WithBackbone(Loss):
    """Its first layers are frozen until a callback adds them to the optimizer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.backbone(x)))

    def predicted(self, x):
        return self(x)

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.02)


def tuned(folder):
    """A callback that unfreezes layers, and writes which parameters the optimizer has."""
    log = Log()
    fit = trainer(folder, log, BackboneFinetuning(1, lambda _: 1.5, 0.01), num_sanity_val_steps=0)
    fit.fit(WithBackbone(), *loaders())
    fit.save_checkpoint(folder / "tuned.ckpt")
    pyrannc.barrier()
    saved = torch.load(folder / "tuned.ckpt", weights_only=False)
    ((_, tuning),) = (each for each in saved["callbacks"].items() if "Finetuning" in each[0])
    groups = tuning["internal_optimizer_metadata"][0]
    log.entries.append({name: n for n, group in enumerate(groups) for name in group["params"]})
    sums = {name: each.double().square().sum().item() for name, each in saved["state_dict"].items()}
    return {"log": log.entries, "weights": sums}


class Adversaries(pl.LightningModule):
    """A generator, its discriminator, and what neither of them trains."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        self.discriminator = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        self.teacher = nn.Linear(1, 1).requires_grad_(False)
        self.automatic_optimization = False

    def training_step(self, batch, index):
        first, second = self.optimizers()
        x, real = batch["x"], self.teacher(batch["labels"])
        losses = {}
        for name, optimizer in (("generator", first), ("discriminator", second)):
            self.toggle_optimizer(optimizer)
            made = self.generator(x)
            if name == "generator":
                loss = self.discriminator(made).square().mean() + (made - real).abs().mean()
            else:
                loss = (self.discriminator(real) - 1).square().mean()
                loss = loss + self.discriminator(made.detach()).square().mean()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, 0.5, "norm")
            optimizer.step()
            optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)
            losses[name] = loss.detach()
        self.log_dict(losses)

    def configure_optimizers(self):
        children = (self.generator, self.discriminator)
        return [torch.optim.SGD(each.parameters(), 0.05) for each in children], []


def adversaries(folder):
    """With manual optimization, two optimizers and two wrapped children."""
    log = Log()
    fit = trainer(
        folder, log, modules=["generator", "discriminator"], gradient_clip_val=None,
        accumulate_grad_batches=1, max_epochs=2,
    )  # fmt: skip
    fit.fit(Adversaries(), loaders()[0])
    fit.save_checkpoint(folder / "gan.ckpt")
    pyrannc.barrier()
    state = torch.load(folder / "gan.ckpt", weights_only=False)["state_dict"]
    sums = {name: each.double().square().sum().item() for name, each in state.items()}
    return {"log": log.entries, "weights": sums}


def averaged(folder):
    """Callbacks that average the weights, of copies that they have made before."""
    found = {"log": [], "weights": {}}
    for number, (kind, average) in enumerate(
        (
            (WithChild, StochasticWeightAveraging(0.01, 1)),
            (WithForward, StochasticWeightAveraging(0.01, 1)),
            (WithChild, EMAWeightAveraging(decay=0.7)),
        )
    ):
        log = Log()
        fit = trainer(folder, log, average, max_epochs=3, num_sanity_val_steps=0)
        fit.fit(kind(), *loaders())
        path = folder / f"{number}.ckpt"
        fit.save_checkpoint(path)
        pyrannc.barrier()
        state = torch.load(path, weights_only=False)["state_dict"]
        found["log"] += log.entries
        for name, value in state.items():
            found["weights"][f"{number}.{name}"] = value.double().square().sum().item()
    return found


class Seen(Callback):
    """Logs by itself, what depends on the rows."""

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.log("seen", batch["labels"].mean())

    def on_validation_batch_end(self, trainer, module, outputs, batch, index):
        self.log("validated", batch["x"].mean(), batch_size=len(batch["x"]))


class Measured(WithChild):
    """Logs a metric of each step."""

    def __init__(self):
        super().__init__()
        self.distance = MeanAbsoluteError()

    def training_step(self, batch, index):
        self.distance(batch["x"][:, :1], batch["labels"])
        self.log("distance", self.distance, on_step=True, on_epoch=True)
        return super().training_step(batch, index)


def validated(folder):
    """Before any fit(), and after it; a callback logs, too."""
    module, fit = Measured(), trainer(folder, Seen(), max_epochs=1)
    log = fit.validate(module, loaders()[1], verbose=False)
    fit.fit(module, *loaders())
    log.append({name: value.item() for name, value in fit.callback_metrics.items()})
    return {"log": log + fit.validate(module, loaders()[1], verbose=False), "weights": {}}


class Annealed(WithForward):
    """forward() reads what the Trainer counts, and what hooks set, also anew."""

    beta = 1.0

    def forward(self, x):
        weight = self.beta + self.current_epoch + self.trainer.current_epoch
        return super().forward(x) * weight * (self.later if self.current_epoch else 1.0)

    def on_train_epoch_start(self):
        self.beta = 1.0 + self.current_epoch / 2
        self.later = 0.5


def annealed(folder):
    """Had what the module held when fit() began."""
    log = Log()
    fit = trainer(folder, log, max_epochs=2, num_sanity_val_steps=0)
    fit.fit(Annealed(), loaders()[0])
    return {"log": log.entries, "weights": {}}


class Outside(WithForward):
    def predicted(self, x):
        return self.scale(self.first(x).mean(1, keepdim=True))


class Both(WithForward):
    def predicted(self, x):
        return self(x) * self.scale.weight


class Taught(WithForward):
    """A child beside forward() is called, which some rank has released."""

    def predicted(self, x):
        self.first(x), self.scale(x[:, :1])
        return self(x)


class Several(WithForward):
    forward = pl.LightningModule.forward


def refused(folder):
    """What cannot work is told."""
    found = {}
    for name, module, others in (
        ("outside", Outside(), {}),
        ("both", Both(), {}),
        ("several", Several(), {}),
        ("batchnorm", WithChild(), {"sync_batchnorm": True}),
    ):
        try:
            # All ranks hold all, and come to the same error.
            config = Config(replica_nums=[SIZE], calibrate=False)
            trainer(folder, config=config, **others).fit(module, *loaders())
        except (ConfigError, RaNNCError) as error:
            found[name] = str(error)
    try:
        trainer(folder).fit(Taught(), loaders()[0])
    except RaNNCError as error:
        found["taught"] = str(error)
    try:
        trainer(folder, modules="nett").fit(WithChild(), loaders()[0])
    except ConfigError as error:
        found["no child"] = str(error)
    module, fit = WithChild(), trainer(folder, max_epochs=1)
    fit.fit(module, *loaders())
    try:
        fit.predict(module, DataLoader(Subset(toy.Rows(), range(17)), batch_size=8))
    except RaNNCError as error:
        found["predict"] = str(error)
    return {"log": [], "errors": found}


CASES = {
    "child": lambda at: trained(at, WithChild),
    "forward": lambda at: trained(at, WithForward, num_sanity_val_steps=0),
    "bf16": lambda at: trained(at, WithChild, precision="bf16-mixed"),
    # From the checkpoint of one process, on any number of ranks.
    "resumed": lambda at: trained(
        at, WithChild, str(at.parent.parent / "1" / "child" / "best.ckpt"), max_epochs=6
    ),
    "twice": twice,
    "another": another,
    "adversaries": adversaries,
    "averaged": averaged,
    "validated": validated,
    "tuned": tuned,
    "annealed": annealed,
    "refused": refused,
}


def main(folder):
    for name in sys.argv[2:] or CASES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        found = CASES[name](folder / name) if SIZE > 1 or name != "refused" else {"log": []}
        if pyrannc.get_rank() == 0:
            (folder / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
