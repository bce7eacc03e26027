"""A model of transformers by its configuration alone, with the inputs of one call."""

import inspect
import os

import torch

from pyrannc.errors import ConfigError

# The end of a class's name and the shape of its labels, from (batch, length).
_LABELS = {
    "ForCausalLM": lambda batch, length: (batch, length),
    "LMHeadModel": lambda batch, length: (batch, length),
    "ForMaskedLM": lambda batch, length: (batch, length),
    "ForPreTraining": lambda batch, length: (batch, length),
    "ForConditionalGeneration": lambda batch, length: (batch, length),
    "ForTokenClassification": lambda batch, length: (batch, length),
    "ForSequenceClassification": lambda batch, length: (batch,),
    "ForImageClassification": lambda batch, length: (batch,),
}


def build_of(path, batch=8, length=512, dtype=torch.float32):
    """A function for :func:`graph_profile`: the model of a configuration, with loss.

    Args:
        path: A ``config.json`` of transformers, or a folder with one. Nothing is downloaded.
        batch: Rows of the call.
        length: Tokens of a row; of images their size is the configuration's.
        dtype: Of the weights.

    Raises:
        ConfigError: There is no such file, or its class is none of those with known inputs.
    """
    config, kind = _class_of(path)
    ending = next((end for end in _LABELS if kind.__name__.endswith(end)), None)
    takes = inspect.signature(kind.forward).parameters
    first = next((name for name in ("input_ids", "pixel_values") if name in takes), None)
    if ending is None or first is None or "labels" not in takes:
        raise ConfigError(
            f"'{path}' is of {kind.__name__}, whose inputs are not known here.\n  Known: language "
            "models and classifiers, by names that end in " + ", ".join(sorted(_LABELS)) + ".\n"
            "  Write a function that returns (model, inputs): rannc capture FILE:FUNCTION"
        )
    longest = getattr(config, "max_position_embeddings", None)
    if first == "input_ids" and longest and length > longest:
        raise ConfigError(
            f"--length {length} is longer than the {longest} positions of '{path}' "
            "(max_position_embeddings)"
        )

    def build():
        if hasattr(config, "use_cache"):
            config.use_cache = False  # training has none
        model = kind(config).to(dtype).train()
        inputs = {"labels": torch.zeros(_LABELS[ending](batch, length), dtype=torch.int64)}
        if first == "input_ids":
            inputs[first] = torch.zeros((batch, length), dtype=torch.int64)
        else:
            size = config.image_size
            height, width = size if isinstance(size, (list, tuple)) else (size, size)
            inputs[first] = torch.zeros((batch, config.num_channels, height, width), dtype=dtype)
        return model, inputs

    return build


def _class_of(path):
    """The configuration and the class that it names."""
    try:
        import transformers
    except ImportError:
        raise ConfigError("--hf needs transformers: pip install transformers") from None
    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise ConfigError(f"there is no configuration '{file}'")
    try:
        config = transformers.AutoConfig.from_pretrained(file, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"'{file}' is no configuration of transformers: {error}") from None
    names = config.architectures or []
    if len(names) != 1 or not hasattr(transformers, names[0]):
        raise ConfigError(
            f"'{file}' has to name one class of transformers as architectures, as "
            f'["LlamaForCausalLM"]; it names {names or "none"}'
        )
    return config, getattr(transformers, names[0])
