"""A script with a LightningModule in which the one line was added."""

import lightning
import toy
from torch.utils.data import DataLoader, Subset

import pyrannc


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        model = toy.new_model()
        self.optimizer = toy.new_optimizer(model)
        self.model = pyrannc.RaNNCModule(model, self.optimizer)

    def training_step(self, batch, index):
        loss = self.model(**batch)["loss"]
        print(f"loss {loss.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self):
        return self.optimizer


rank, size = pyrannc.get_rank(), pyrannc.get_world_size()
rows = Subset(toy.Rows(), toy.rows_of(rank, size))
trainer = lightning.Trainer(
    accelerator="cpu", devices=1, max_epochs=1, gradient_clip_val=1.0, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Module(), DataLoader(rows, batch_size=toy.GLOBAL_BATCH // size))
