"""A script with the Trainer of transformers in which the one line was added."""

import sys

import toy
from transformers import Trainer, TrainingArguments

import pyrannc

model = toy.new_model()
optimizer = toy.new_optimizer(model)
model = pyrannc.RaNNCModule(model, optimizer)
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    per_device_train_batch_size=toy.GLOBAL_BATCH // pyrannc.get_world_size(),
    max_steps=toy.STEPS,
    use_cpu=True,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    lr_scheduler_type="constant",
    max_grad_norm=1.0,
    train_sampling_strategy="sequential",
)
trainer = Trainer(model, arguments, train_dataset=toy.Rows(), optimizers=(optimizer, None))
trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(f"loss {entry['loss']:.6f}", flush=True)
