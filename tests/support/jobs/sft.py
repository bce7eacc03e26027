"""A fine-tuning of GPT-2 with TRL's SFTTrainer, with FOLDER: on one process theirs, on several
ranks through pyrannc.integrations. Rank 0 writes what was logged and saved into FOLDER/found.json.
"""

import json
import re
import sys
from pathlib import Path

import torch
import trl
from datasets import Dataset
from trainers import SIZE, gpt2, weights

import pyrannc

if SIZE > 1:
    from pyrannc.integrations.transformers import with_rannc

    SFTTrainer = with_rannc(trl.SFTTrainer)
    # SFTTrainer computes the loss of each token outside of the model.
    config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], schedule="gpipe", calibrate=False)
    OURS = {"rannc_config": config}
else:
    SFTTrainer, OURS = trl.SFTTrainer, {}


def rows() -> Dataset:
    """Texts of other lengths, tokenized, of which the answers alone count."""
    made = torch.Generator().manual_seed(0)
    found = []
    for number in range(32):
        length = 5 + number % 4
        ids = torch.randint(1, 32, (length,), generator=made).tolist()
        found.append({"input_ids": ids, "completion_mask": [0, 0] + [1] * (length - 2)})
    return Dataset.from_list(found)


def main(folder):
    settings = trl.SFTConfig(
        output_dir=str(folder), per_device_train_batch_size=8 // SIZE,
        per_device_eval_batch_size=8 // SIZE, gradient_accumulation_steps=2, num_train_epochs=2,
        use_cpu=True, logging_steps=1, report_to=[], disable_tqdm=True, max_grad_norm=0.5,
        learning_rate=0.01, train_sampling_strategy="sequential", eval_strategy="epoch",
        save_strategy="no", bf16=False,
    )  # fmt: skip
    trainer = SFTTrainer(
        gpt2(), settings, train_dataset=rows(), eval_dataset=rows(), processing_class=tokenizer(),
        **OURS,
    )  # fmt: skip
    trainer.train()
    trainer.save_model(str(folder / "final"))
    pyrannc.barrier()
    if pyrannc.get_rank() == 0:
        found = {"log": log(trainer), "weights": weights(folder / "final")}
        (folder / "found.json").write_text(json.dumps(found))


def log(trainer) -> list:
    """What was logged but the time that it took; at the end this is all."""
    found = [
        {name: value for name, value in entry.items() if not re.search("runtime|second", name)}
        for entry in trainer.state.log_history
    ]
    return found[:-1]


def tokenizer():
    """Of 32 words, of which the first pads."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, **{f"w{number}": number for number in range(1, 32)}}
    model = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="w1")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
