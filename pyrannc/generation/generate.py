"""generate() through the pipeline, called on every rank, each with its own prompts."""

import contextlib
import functools
import inspect
import struct
import time

import torch
from torch.nn.functional import pad

from pyrannc import log
from pyrannc.capture import random_states
from pyrannc.errors import RaNNCError, TraceError
from pyrannc.generation import kept_keys
from pyrannc.generation.whole_draws import WholeDraws
from pyrannc.ranks import any_of
from pyrannc.state.summon import refuse_in_forward

#: The shortest length to which sequences are padded; longer ones to powers of two.
#: tuned by: the count of captures: four fewer for a generation that begins with a token.
#: without it: short prompts are captured once for each of the lengths 1, 2, 4, 8 and 16.
_SHORTEST = 16
#: What ranks tell each other before a step: rows, steps, and tokens that were seen before.
_SHAPE = struct.Struct("3q")
_ELSEWHERE = (
    "\n  With enough memory on each rank: `with model.summon(): model.module.generate(...)`, on "
    "each rank by itself."
)


def for_all_ranks(module, name: str, found):
    """What ``module.name`` is, of a RaNNCModule, where its model has ``found``: the method
    ``generate()`` runs its forward passes through the pipeline. Every rank calls it."""
    deployment = module._deployment
    if name != "generate" or deployment is None or deployment.world.size == 1:
        return found

    @functools.wraps(found)
    def generate(*args, **kwargs):
        refuse_in_forward(module, "generate()")
        deployment.call_agreement.other("generate()")
        with deployment.audits.paused():
            return through_pipeline(*args, **kwargs)

    def through_pipeline(*args, **kwargs):
        language = _language_model(module.module)
        if deployment.task.config.tensor_parallel > 1 or deployment.owners.shared():
            return _by_itself(module, found, args, kwargs)
        if language is None:  # a loop of the user's own
            with _forward_replaced(found.__self__, module):
                return found(*args, **kwargs)
        if language.config.is_encoder_decoder:
            return _by_itself(module, found, args, kwargs)
        if _can_keep_keys(language, kwargs):
            try:
                return Generation(module, language, keeps=True).run(found, args, kwargs)
            except TraceError as error:
                log.info("generate", f"without a cache, as with one it cannot be captured: {error}")
        return Generation(module, language, keeps=False).run(found, args, kwargs)

    return generate


def _by_itself(module, generate, args, kwargs):
    """``generate()`` of a model with an encoder, which calls parts of the model, as the pipeline
    cannot: every rank has the whole meanwhile."""
    deployment = module._deployment
    if deployment.world.rank == 0 and not deployment.has_generated_whole:
        size = sum(each.nbytes for each in module.module.parameters())
        log.warn(
            "generate",
            "generate() of a model with an encoder, or under tensor_parallel, runs on each rank by "
            f"itself, which has the whole model meanwhile ({size / 2**30:.2f} GiB)",
        )
    deployment.has_generated_whole = True
    with module.summon():
        return generate(*args, **kwargs)


def _language_model(model):
    """The module whose generate() is transformers' own: the model, or one in it (PEFT's)."""
    for module in model.modules():
        if any(kind.__name__ == "GenerationMixin" for kind in type(module).__mro__):
            return module
    return None


def _can_keep_keys(language, kwargs) -> bool:
    """Whether each token attends to all before it, and rows keep their places."""

    def chosen(name):
        configs = (kwargs.get("generation_config"), language.generation_config)
        given = [kwargs.get(name), *(getattr(each, name, None) for each in configs)]
        return next((each for each in given if each is not None), None)

    plain = ("past_key_values", "cache", "cache_implementation", "assistant_model",
             "custom_generate", "prompt_lookup_num_tokens", "prefill_chunk_size",
             "penalty_alpha")  # fmt: skip
    config = language.config.get_text_config(decoder=True)
    slides = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        chosen("use_cache") is not False
        and (chosen("num_beams") or 1) == 1
        and not any(map(chosen, plain))
        and not slides
        and kinds == {"full_attention"}
        and getattr(config, "_attn_implementation", None) in ("eager", "sdpa")
        and "position_ids" in inspect.signature(language.forward).parameters
        and not getattr(language, "_is_stateful", False)
    )


class Generation:
    """One call of generate().

    Args:
        module: The RaNNCModule.
        language: The part of its model whose generate() runs.
        keeps: Keys and values are kept from step to step; else each step computes all tokens anew.
    """

    def __init__(self, module, language, keeps: bool):
        self._module, self._language, self._keeps = module, language, keeps
        self._world, self._number = module._deployment.world, module._deployment.number
        # transformers renames it model by model, since 5.24.
        renamed = "cache" in inspect.signature(language.forward).parameters
        self._cache_name = "cache" if renamed else "past_key_values"
        self._all_rows = None  # [rank]
        self._seen = 0  # tokens of each sequence that went through the model
        self._steps = 0
        self._is_done = False
        self._draws = WholeDraws()

    def run(self, generate, args, kwargs):
        cache = kept_keys.cache_class()(self._number) if self._keeps else None
        chosen = {self._cache_name: cache} if self._keeps else {"use_cache": False}
        if self._keeps:
            kept_keys.begin(self._number)
        begin = time.perf_counter()
        try:
            with (
                _forward_replaced(self._language, self._step),
                _replaced(self._language, "_has_unfinished_sequences", self._anybody_goes_on),
                self._draws.instead_of_own(),
            ):
                return generate(*args, **(kwargs | chosen | {"synced_gpus": True}))
        finally:
            kept_keys.end(self._number)
            self._report(time.perf_counter() - begin)

    def _report(self, seconds):
        if self._world.rank == 0 and self._all_rows:
            tokens = self._steps * sum(self._all_rows)
            log.info(
                "generate",
                f"{self._steps} tokens for each of {sum(self._all_rows)} rows in {seconds:.2f} s: "
                f"{tokens / seconds:.1f} tokens/s",
            )

    def _anybody_goes_on(self, this_peer_finished, synced_gpus=True, device=None) -> bool:
        """In place of transformers' question, which asks torch.distributed."""
        self._is_done = this_peer_finished
        return any_of(self._world, not this_peer_finished)

    def _step(self, *args, **kwargs):
        """A forward pass of the language model, as its generate() calls it."""
        ids = kwargs.get("input_ids")
        if args or ids is None or kwargs.get("inputs_embeds") is not None:
            raise RaNNCError(f"generate() through the pipeline begins with input_ids.{_ELSEWHERE}")
        mine = _SHAPE.pack(*ids.shape, self._seen)
        shapes = [_SHAPE.unpack(each) for each in self._world.all_gather(mine)]
        if self._all_rows is None:
            self._all_rows = [rows for rows, _, _ in shapes]
            self._draws.of(self._all_rows, self._world.rank)
        steps = _padded(max(steps for _, steps, _ in shapes), self._language)
        with self._own_draws_kept():
            outputs = self._run_step(kwargs, steps, shapes)
        count = ids.shape[1]
        outputs["logits"] = outputs["logits"][:, :count]
        self._seen += count
        self._steps += 1
        if self._is_done:
            self._draws.skip()
        return outputs

    def _own_draws_kept(self):
        """Without dropout a step draws nothing, but the pipeline takes a seed for what may draw."""
        drops = self._module.module.training
        return contextlib.nullcontext() if drops else random_states.kept()

    def _run_step(self, kwargs, steps, shapes):
        if self._keeps:
            length = _padded(max(steps + seen for _, steps, seen in shapes), self._language)
            if all(steps == 1 for _, steps, _ in shapes):
                steps = 1
            return self._with_kept_keys(kwargs, steps, length)
        return self._from_the_beginning(kwargs, steps)

    def _from_the_beginning(self, kwargs, length):
        arguments = self._arguments(kwargs, length)
        mask = _mask(kwargs, 0)
        arguments["attention_mask"] = pad(mask, (0, length - mask.shape[1]))
        return self._module(**arguments, use_cache=False)

    def _with_kept_keys(self, kwargs, steps, length):
        arguments = self._arguments(kwargs, steps)
        rows = kwargs["input_ids"].shape[0]
        first = sum(self._all_rows[: self._world.rank])
        arguments[self._cache_name] = kept_keys.cache_class()(
            self._number,
            length,
            rows=torch.arange(first, first + rows),
            positions=torch.full((rows,), self._seen),
        )
        mask = _mask(kwargs, self._seen).bool()
        mask = pad(mask, (0, length - mask.shape[1]))[:, None, None, :]
        now = self._seen + torch.arange(steps)
        allowed = mask & (torch.arange(length) <= now[:, None])
        dtype = self._language.dtype
        arguments["attention_mask"] = torch.zeros(allowed.shape, dtype=dtype).masked_fill(
            ~allowed, torch.finfo(dtype).min
        )
        return self._module(**arguments, use_cache=True)

    def _arguments(self, kwargs, steps):
        """The others of the call, with as many steps of each sequence."""
        given = dict(kwargs)
        for name in ("attention_mask", self._cache_name, "use_cache", "logits_to_keep"):
            given.pop(name, None)
        missing = steps - kwargs["input_ids"].shape[1]
        for name in ("input_ids", "position_ids", "token_type_ids"):
            if given.get(name) is not None:
                given[name] = pad(given[name], (0, missing))
        return given


def _mask(kwargs, seen):
    """The attention mask ``[rows, seen + steps]``; transformers drops one that leaves out nothing,
    and lengthens that of a rank which is done."""
    rows, steps = kwargs["input_ids"].shape
    mask = kwargs.get("attention_mask")
    if mask is None:
        return torch.ones(rows, seen + steps, dtype=torch.long)
    return mask[:, : seen + steps]


def _padded(length: int, language) -> int:
    """The power of two to which sequences are padded, unless the model has fewer positions."""
    whole = max(_SHORTEST, 1 << (length - 1).bit_length())
    config = language.config.get_text_config(decoder=True)
    most = getattr(config, "max_position_embeddings", None) or whole
    return max(length, min(whole, most))


@contextlib.contextmanager
def _forward_replaced(module, forward):
    """Inside, ``module`` runs ``forward`` where it is called, but its own within that."""
    own = module.forward

    @functools.wraps(own)
    def outer(*args, **kwargs):
        del module.forward
        try:
            return forward(*args, **kwargs)
        finally:
            module.forward = outer

    with _replaced(module, "forward", outer):
        yield


@contextlib.contextmanager
def _replaced(module, name, value):
    absent = object()
    before = vars(module).get(name, absent)
    setattr(module, name, value)
    try:
        yield
    finally:
        if before is absent:
            delattr(module, name)
        else:
            setattr(module, name, before)
