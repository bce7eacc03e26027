"""Scripts with the Trainer of transformers, and with Accelerate, in FOLDER: on one process theirs,
on several ranks those of pyrannc.integrations. Rank 0 prints by case what was logged, as JSON.
"""

import copy
import gc
import json
import os
import sys
from pathlib import Path

import torch
import transformers
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import Dataset

import pyrannc

SIZE = pyrannc.get_world_size()
PLAN = {"partition_num": SIZE, "replica_nums": [1] * SIZE}
if "IN_GROUPS" in os.environ:  # all ranks compute each layer together
    PLAN = {"tensor_parallel": SIZE, "partition_num": 1}
CONFIG = pyrannc.Config(**PLAN, calibrate=False)
if SIZE > 1:
    from pyrannc.integrations.accelerate import Accelerator
    from pyrannc.integrations.transformers import Seq2SeqTrainer, Trainer

    OURS, OF_ACCELERATE = {"rannc_config": CONFIG}, {"config": CONFIG}
else:
    from accelerate import Accelerator
    from transformers import Seq2SeqTrainer, Trainer

    OURS, OF_ACCELERATE = {}, {}


class Rows(Dataset):
    """Texts of which other numbers of tokens count."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        ids = torch.randint(0, 32, (8,), generator=torch.Generator().manual_seed(index))
        labels = ids.clone()
        labels[: index % 5] = -100
        return {"input_ids": ids, "labels": labels}


class Texts(Rows):
    """Of other lengths."""

    def __getitem__(self, index):
        row = super().__getitem__(index)
        return {name: values[: 3 + index * 5 % 6] for name, values in row.items()}


PAD = {"input_ids": 0, "labels": -100}


def padded(rows):
    """To the longest of a rank's."""
    return {
        name: nn.utils.rnn.pad_sequence([row[name] for row in rows], True, value)
        for name, value in PAD.items()
    }


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=16,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def lora(**more):
    import peft

    torch.manual_seed(1)
    return peft.get_peft_model(
        gpt2(), peft.LoraConfig(r=2, lora_dropout=0.0, task_type="CAUSAL_LM", **more)
    )


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=24,
        vocab_size=32, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def t5():
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, vocab_size=32, dropout_rate=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def vit():
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        image_size=8, patch_size=4, num_labels=3, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


class Images(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        return {"pixel_values": torch.randn(3, 8, 8, generator=made), "labels": index % 3}


def metrics_of(prediction):
    """What depends on each prediction, and on which rows they are of."""
    found, labels = map(torch.as_tensor, (prediction.predictions, prediction.label_ids))
    weights = torch.arange(1.0, 1 + len(labels))
    answers = found.argmax(-1) if found.is_floating_point() else found
    return {
        "answers": (answers.double().flatten(1).mean(1) if answers.dim() > 1 else answers)
        .mul(weights).sum().item(),
        "labels": labels.double().flatten(1).mean(1).mul(weights).sum().item()
        if labels.dim() > 1 else labels.mul(weights).sum().item(),
    }  # fmt: skip


def refused(folder):
    """Options that cannot work, by their name: what is told."""
    found = {}
    for name, value in (
        ("torch_compile", True), ("fsdp", "full_shard"), ("deepspeed", {"train_batch_size": 8}),
        ("fp16", True),
    ):  # fmt: skip
        try:
            Trainer(
                gpt2(),
                arguments(folder, eval_strategy="no", **{name: value}),
                train_dataset=Rows(),
                **OURS,
            )
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return {"log": [], "weights": {}, "errors": found}


def arguments(folder, **others):
    settings = {
        "per_device_train_batch_size": 8 // SIZE, "per_device_eval_batch_size": 8 // SIZE,
        "gradient_accumulation_steps": 2, "num_train_epochs": 2,
        "use_cpu": SIZE == 1 or "bf16" in others,  # by itself on ranks; transformers asks for bf16
        "logging_steps": 1, "report_to": [], "disable_tqdm": True, "max_grad_norm": 0.5,
        "learning_rate": 0.01, "train_sampling_strategy": "sequential", "eval_strategy": "epoch",
    }  # fmt: skip
    kind = (
        transformers.Seq2SeqTrainingArguments
        if "predict_with_generate" in others
        else transformers.TrainingArguments
    )
    return kind(output_dir=str(folder), **(settings | others))


def summed_loss(outputs, labels, num_items_in_batch=None):
    """Of what the model returns, outside of it."""
    losses = nn.functional.cross_entropy(
        outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
    )
    return losses / (num_items_in_batch or (labels[:, 1:] != -100).sum())


class MeanLoss(Trainer):
    """Takes the model's loss as it is: the mean over a batch."""

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def trained(
    folder, model, resume=None, rows=None, kind=Trainer, metrics=None, loss_function=None,
    collate=None, callbacks=None, **others,
):  # fmt: skip
    """What is logged while it trains, and the sizes of the weights that it saves."""
    rows = rows or Rows()
    ours = OURS | {"rannc_settings": {"pad": PAD}} if OURS and collate is padded else OURS
    trainer = kind(
        model, arguments(folder, **others), train_dataset=rows, eval_dataset=rows,
        compute_metrics=metrics, compute_loss_func=loss_function,
        data_collator=collate, callbacks=callbacks, **ours,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(str(folder / "final"))
    pyrannc.barrier()
    found = [
        {
            key: entry[key]
            for key in ("loss", "grad_norm", "eval_loss", "eval_answers", "eval_labels")
            if key in entry
        }
        for entry in trainer.state.log_history
    ]
    return {"log": [entry for entry in found if entry], "weights": weights(folder / "final")}


class Saves(transformers.TrainerCallback):
    """Saves the model that it is given after each epoch, and generates with it."""

    def __init__(self, folder):
        self.folder, self.generated = folder, []

    def on_epoch_end(self, args, state, control, model, **_):
        model.save_pretrained(self.folder / str(round(state.epoch)))
        model.eval()
        prompt = torch.tensor([[3, 4, 5]])
        found = model.generate(input_ids=prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)
        self.generated += found[0].tolist()


def saved(folder):
    """The model itself is saved and generates, in a callback and after train(), and a copy of it
    is one of its own."""
    found = {"log": [], "weights": {}}
    for name, model in ("gpt2", gpt2()), ("lora", lora()):
        callback = Saves(folder / name)
        trained(folder / name, model, save_strategy="no", callbacks=[callback])
        gc.collect()  # of the Trainer, nothing is left
        model.save_pretrained(folder / name / "3")
        pyrannc.barrier()
        found["log"] += [{"loss": each} for each in callback.generated]
        for epoch in "123":
            for key, value in weights(folder / name / epoch).items():
                found["weights"][f"{name}.{epoch}.{key}"] = value
    return found


def copied(folder):
    """A copy of a model that the Trainer has wrapped is one of its own."""
    trainer = Trainer(gpt2(), arguments(folder, save_strategy="no"), train_dataset=Rows(),
                      eval_dataset=Rows(), callbacks=[copies := Copies()], **OURS)  # fmt: skip
    trainer.train()
    copies.model.save_pretrained(folder / "copy")
    pyrannc.barrier()
    log = [{"loss": entry["loss"]} for entry in trainer.state.log_history if "loss" in entry]
    return {"log": log, "weights": weights(folder / "copy")}


class Copies(transformers.TrainerCallback):
    def on_train_begin(self, args, state, control, model, **_):
        self.model = copy.deepcopy(model)


def weights(folder):
    (path,) = folder.glob("*.safetensors")
    from safetensors.torch import load_file

    return {name: value.double().square().sum().item() for name, value in load_file(path).items()}


def accelerated(folder):
    """The loop of Accelerate's documentation, with its checkpoint in the middle."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **OF_ACCELERATE)
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=8 // SIZE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    log = []
    for epoch in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                norm = None
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), 0.5).item()
                optimizer.step()
                optimizer.zero_grad()
            rows = accelerator.gather_for_metrics(batch["input_ids"])
            entry = {"loss": loss.item(), "rows": rows[:, 0].tolist()}
            log.append(entry if norm is None else entry | {"grad_norm": norm})
        if epoch == 0:
            accelerator.save_state(str(folder))
    accelerator.load_state(str(folder))
    batch = next(iter(loader))
    log.append({"loss": model(**batch).loss.item(), "rows": []})
    state = accelerator.get_state_dict(model)
    found = {name: value.double().square().sum().item() for name, value in state.items()}
    return {"log": log, "weights": found}


def distilled(folder):
    """Two models in one prepare(), of which one learns from the other."""
    accelerator = Accelerator(cpu=True, **OF_ACCELERATE)
    teacher, student = gpt2(), gpt2()
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.mul_(0.5)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=8 // SIZE)
    teacher, student, optimizer, loader = accelerator.prepare(teacher, student, optimizer, loader)
    log = []
    for batch in loader:
        with torch.no_grad():
            wanted = teacher(input_ids=batch["input_ids"]).logits
        loss = nn.functional.mse_loss(student(input_ids=batch["input_ids"]).logits, wanted)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        log.append({"loss": accelerator.reduce(loss.detach(), "mean").item()})
    state = accelerator.get_state_dict(student)
    found = {name: value.double().square().sum().item() for name, value in state.items()}
    return {"log": log, "weights": found}


def embedded(folder):
    """Two models in one prepare(), and one optimizer over both."""
    accelerator = Accelerator(cpu=True, **OF_ACCELERATE)
    torch.manual_seed(0)
    embedding = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 16))
    model = gpt2()
    optimizer = torch.optim.AdamW([*embedding.parameters(), *model.parameters()], lr=0.01)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=8 // SIZE)
    embedding, model, optimizer, loader = accelerator.prepare(embedding, model, optimizer, loader)
    log = []
    for batch in loader:
        loss = model(inputs_embeds=embedding(batch["input_ids"]), labels=batch["labels"]).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        log.append({"loss": loss.item()})
    state = accelerator.get_state_dict(model) | accelerator.get_state_dict(embedding)
    return {"log": log, "weights": {n: v.double().square().sum().item() for n, v in state.items()}}


def averaged(folder):
    """A copy of a model in mixed precision, as for an average in the loop, computes by itself."""
    AcceleratorState._reset_state(True)  # of the precision of other cases
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", **OF_ACCELERATE)
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=8 // SIZE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    average, log = copy.deepcopy(model), []
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            output = average(**batch)
        assert output.logits.dtype == torch.float32
        log.append({"loss": accelerator.reduce(output.loss, "mean").item()})
    state = accelerator.get_state_dict(average)
    return {"log": log, "weights": {n: v.double().square().sum().item() for n, v in state.items()}}


def main(folder):
    cases = {
        "gpt2": lambda at: trained(at, gpt2(), save_strategy="epoch", load_best_model_at_end=True),
        "lora": lambda at: trained(at, lora(), save_strategy="no"),
        "bert": lambda at: trained(at, bert(), save_strategy="no"),
        "bf16": lambda at: trained(at, gpt2(), save_strategy="no", bf16=True),
        "smoothed": lambda at: trained(at, gpt2(), save_strategy="no", label_smoothing_factor=0.1),
        "smoothed_lora": lambda at: trained(
            at, lora(), save_strategy="no", label_smoothing_factor=0.1
        ),
        "loss_function": lambda at: trained(
            at, gpt2(), save_strategy="no", loss_function=summed_loss
        ),
        "padded": lambda at: trained(
            at,
            gpt2(),
            rows=Texts(),
            collate=padded,
            save_strategy="no",
            average_tokens_across_devices=False,
        ),
        "loss_of_class": lambda at: trained(at, gpt2(), save_strategy="no", kind=MeanLoss),
        "t5": lambda at: trained(
            at,
            t5(),
            kind=Seq2SeqTrainer,
            metrics=metrics_of,
            save_strategy="no",
            predict_with_generate=True,
            generation_max_length=6,
        ),
        "vit": lambda at: trained(
            at,
            vit(),
            rows=Images(),
            metrics=metrics_of,
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="eval_answers",
        ),
        "saved": saved,
        "copied": copied,
        "refused": refused,
        "accelerate": accelerated,
        "distilled": distilled,
        "embedded": embedded,
        "averaged": averaged,
        # From the checkpoint of one process, on any number of ranks.
        "resumed": lambda at: trained(
            at, gpt2(), str(folder.parent / "1" / "gpt2" / "checkpoint-2"), save_strategy="no"
        ),
    }
    for name in sys.argv[2:] or cases:
        work = cases[name]
        (folder / name).mkdir(parents=True, exist_ok=True)
        found = work(folder / name)
        if pyrannc.get_rank() == 0:
            (folder / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
