"""Hugging Face's layout: ``from_pretrained`` reads the weights of a checkpoint."""

import copy
import dataclasses
import functools
import re
import sys
from pathlib import Path

from pyrannc import files


def write_config(model, folder: Path) -> None:
    """``config.json`` of a model of transformers; of others nothing."""
    config = getattr(model, "config", None)
    if hasattr(config, "to_json_string") and hasattr(config, "save_pretrained"):
        named = getattr(config, "architectures", None)
        config.architectures = [type(model).__name__]
        try:
            files.write_safely(folder / "config.json", config.to_json_string())
        finally:
            config.architectures = named


@dataclasses.dataclass(frozen=True)
class Source:
    """How tensors of a model come from those of files.

    Attributes:
        names: In the model.
        keys: In the files.
        convert: ``convert(read)`` gives the tensors by name; ``read(key)`` those of the files. None
            where the one is the other.
    """

    names: tuple
    keys: tuple
    convert: object = None


def sources(model, held, keys) -> list[Source]:
    """Where the tensors of ``model`` come from in files that have ``keys``; with the names and
    conversions that from_pretrained() knows of a model of transformers. Keys that are of no tensor
    of the model have a source, too, of a name that it has not.

    Args:
        held: The tensors of the model, as its state_dict() would name them were it alone.
    """
    if not is_pretrained(model):
        return [Source((key,), (key,)) for key in keys]
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    mapping = get_model_conversion_mapping(model)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    of_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    prefix = model.base_model_prefix
    found, collected = [], {}
    for key in sorted(keys, key=_by_numbers):
        name, pattern = rename_source_key(key, renamings, converters, prefix, held)
        if name not in held and key in held:
            name, pattern = rename_source_key(key, [], [], prefix, held)
        if pattern is None:
            found.append(Source((name,), (key,)))
        else:
            collected.setdefault(name, (of_pattern[pattern], []))[1].append((pattern, key))
    for first, (converter, parts) in collected.items():
        main, *_ = converter.target_patterns
        names = [first.replace(main, target, 1) for target in converter.target_patterns]
        convert = functools.partial(_convert, model, converter, first, parts)
        found.append(Source(tuple(names), tuple(key for _, key in parts), convert))
    return found


def is_pretrained(model) -> bool:
    """Whether it is a model of transformers."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def _convert(model, converter, first, parts, read):
    converter = copy.deepcopy(converter)
    for pattern, key in parts:
        converter.add_tensor(first, key, pattern, functools.partial(read, key))
    made = converter.convert(first, model=model, config=model.config)
    return {name: each[0] if isinstance(each, list) else each for name, each in made.items()}


def _by_numbers(key):
    """Experts in the order of their numbers, which that of their names is not."""
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in key.split(".")]


def may_be_left_out(model, name: str) -> bool:
    """Whether from_pretrained() says nothing of a tensor ``name`` that the model does not have."""
    patterns = [*(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())]
    patterns += [r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$"]  # which once were saved
    return any(re.search(pattern, name) for pattern in patterns)
