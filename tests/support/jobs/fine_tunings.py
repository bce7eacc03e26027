"""GPT-2 fine-tuned by a trainer of TRL's, KIND, in FOLDER: on one process theirs, on several
ranks through pyrannc.integrations. Rank 0 writes what was logged and saved to FOLDER/found.json.
"""

import json
import re
import sys
from pathlib import Path

import torch
import transformers
import trl
from datasets import Dataset
from trainers import SIZE, gpt2, lora, weights

import pyrannc

WORDS = {"<pad>": 0, "<eos>": 1, **{f"w{number}": number for number in range(2, 32)}}


def texts(lengths) -> list:
    made = torch.Generator().manual_seed(0)
    return [
        " ".join(f"w{number}" for number in torch.randint(2, 32, (length,), generator=made))
        for length in lengths
    ]


def answers():
    """Prompts of other lengths, of which the answers alone count."""
    found = zip(texts([2, 3, 4, 3] * 8), texts([5, 4, 4, 2] * 8), strict=True)
    return [{"prompt": prompt, "completion": f" {answer}"} for prompt, answer in found]


def preferences():
    answers = texts([4] * 64)
    found = zip(texts([3] * 32), answers[:32], answers[32:], strict=True)
    return [
        {"prompt": prompt, "chosen": f" {one}", "rejected": f" {other}"}
        for prompt, one, other in found
    ]


def scoring():
    config = gpt2().config
    config.num_labels, config.pad_token_id = 1, 0
    torch.manual_seed(0)
    return transformers.GPT2ForSequenceClassification(config)


def adapted():
    """With adapters that say something: without them the model is another one."""
    return lora(init_lora_weights=False)


# The model, the rows, other arguments; what follows a dash is not of the trainer's name.
KINDS = {
    "SFT": (gpt2, answers, dict),
    "DPO": (gpt2, preferences, lambda: {"ref_model": gpt2()}),
    "DPO-LoRA": (adapted, preferences, dict),  # the reference is the model without adapters
    "Reward": (scoring, preferences, dict),
}


def trainer_of(kind):
    found = getattr(trl, f"{kind}Trainer")
    if SIZE == 1:
        return found, {}
    from pyrannc.integrations.transformers import with_rannc

    # Their losses are computed from other outputs than the model's loss.
    config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], schedule="gpipe", calibrate=False)
    return with_rannc(found), {"rannc_config": config}


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel(WORDS, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>"
    )


def log(trainer) -> list:
    """What was logged but the time that it took; at the end this is all."""
    found = [
        {name: value for name, value in entry.items() if not re.search("time|second", name)}
        for entry in trainer.state.log_history
    ]
    return found[:-1]


def main(kind, folder):
    model, rows, others = KINDS[kind]
    kind = kind.split("-")[0]
    settings = getattr(trl, f"{kind}Config")(
        output_dir=str(folder), per_device_train_batch_size=8 // SIZE,
        per_device_eval_batch_size=8 // SIZE, gradient_accumulation_steps=2, num_train_epochs=2,
        use_cpu=True, logging_steps=1, report_to=[], disable_tqdm=True, max_grad_norm=0.5,
        learning_rate=0.1, train_sampling_strategy="sequential", eval_strategy="epoch",
        save_strategy="no", bf16=False,
        optim="sgd",  # Adam makes steps of what is left of gradients that cancel out
    )  # fmt: skip
    trainer, ours = trainer_of(kind)
    rows = Dataset.from_list(rows())
    trainer = trainer(
        model(), args=settings, train_dataset=rows, eval_dataset=rows,
        processing_class=tokenizer(), **others(), **ours,
    )  # fmt: skip
    trainer.train()
    trainer.save_model(str(folder / "final"))
    pyrannc.barrier()
    if pyrannc.get_rank() == 0:
        found = {"log": log(trainer), "weights": weights(folder / "final")}
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
