"""Architectures of transformers, unmodified, with random weights in tiny shapes."""

import random
import zlib

import torch
import transformers
from transformers import CONFIG_MAPPING

#: By how a model is called: its auto class, and the architectures.
KINDS = {
    "decoder": ("AutoModelForCausalLM", """
        gpt2 gpt_neo gpt_neox gptj opt bloom llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi
        phi3 falcon mpt codegen olmo olmo2 stablelm starcoder2 cohere cohere2 granite mixtral
        qwen2_moe olmoe persimmon nemotron biogpt xglm ctrl helium glm smollm3 openai-gpt mamba
        mamba2 rwkv gpt_bigcode granitemoe glm4 arcee seed_oss exaone4 deepseek_v3 falcon_mamba
        recurrent_gemma jamba bitnet ernie4_5 qwen3_moe phimoe minimax dbrx lfm2 apertus
        """),
    "encoder": ("AutoModelForMaskedLM", """
        bert roberta albert distilbert electra deberta deberta-v2 camembert xlm-roberta mpnet
        convbert funnel mobilebert nystromformer rembert roformer squeezebert xlm flaubert ernie esm
        fnet ibert megatron-bert mra yoso longformer big_bird reformer modernbert data2vec-text
        layoutlm perceiver tapas roberta-prelayernorm xlm-roberta-xl xmod eurobert
        """),
    "encoder-decoder": ("AutoModelForSeq2SeqLM", """
        t5 mt5 umt5 bart mbart pegasus pegasus_x marian blenderbot blenderbot-small led longt5
        m2m_100 plbart prophetnet fsmt bigbird_pegasus switch_transformers nllb-moe mvp
        """),
    "vision": ("AutoModelForImageClassification", """
        vit deit beit swin swinv2 convnext convnextv2 resnet regnet mobilenet_v1 mobilenet_v2
        mobilevit mobilevitv2 poolformer pvt pvt_v2 levit cvt dinov2 efficientnet focalnet bit
        segformer vit_msn ijepa hiera swiftformer data2vec-vision dinov2_with_registers textnet
        """),
    "speech": ("AutoModelForAudioClassification", """
        wav2vec2 hubert wavlm audio-spectrogram-transformer unispeech unispeech-sat sew sew-d
        data2vec-audio wav2vec2-bert wav2vec2-conformer whisper
        """),
}  # fmt: skip

#: What a configuration gets where it has a number of this name.
_WIDTHS = "hidden_size d_model n_embd dim hidden_dim embedding_size emb_dim input_embedding_size"
_INNER_WIDTHS = (
    "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff n_inner feed_forward_size dff "
    "moe_intermediate_size shared_expert_intermediate_size ffn_hidden_size"
)
_LAYERS = (
    "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers "
    "num_encoder_layers num_decoder_layers num_blocks"
)
_HEADS = (
    "num_attention_heads n_head n_heads num_heads encoder_attention_heads "
    "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads"
)
TINY = {
    **dict.fromkeys(_WIDTHS.split(), 32), **dict.fromkeys(_INNER_WIDTHS.split(), 64),
    **dict.fromkeys(_LAYERS.split(), 2), **dict.fromkeys(_HEADS.split(), 4),
    "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "vocab_size": 100, "image_size": 32,
    "patch_size": 8, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "use_cache": False, "layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
    "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "apply_spec_augment": False,
    "router_jitter_noise": 0.0,
}  # fmt: skip
#: The same for one architecture alone.
OF_ONE = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "convnext": {"patch_size": 2},
    "convnextv2": {"patch_size": 2},
    "swin": {"patch_size": 2, "window_size": 2},
    "swinv2": {"patch_size": 2, "window_size": 2},
}


def model_of(kind: str, name: str) -> torch.nn.Module:
    """A tiny one without dropout; the same each time."""
    plain = CONFIG_MAPPING[name]()
    known = plain.to_dict()
    sizes = {key: value for key, value in TINY.items() if isinstance(known.get(key), int | float)}
    sizes |= {key: TINY[key] for key in ("pad_token_id", "use_cache") if key in known}
    if kind == "encoder-decoder":
        sizes["decoder_start_token_id"] = 0
    dropouts = {
        key: 0.0 for key, value in known.items() if "drop" in key and isinstance(value, float)
    }
    torch.manual_seed(zlib.crc32(name.encode()))
    random.seed(0)
    config = CONFIG_MAPPING[name](**sizes | dropouts | OF_ONE.get(name, {}))
    return getattr(transformers, KINDS[kind][0]).from_config(config).train()


def call_of(kind: str, model, rows: int) -> dict:
    """The arguments of a call with labels."""
    generator = torch.Generator().manual_seed(rows)
    if kind == "vision":
        side = getattr(model.config, "image_size", 32)
        side = side if isinstance(side, int) else side[0]
        pixels = torch.randn(rows, 3, side, side, generator=generator)
        return {"pixel_values": pixels, "labels": torch.randint(0, 2, (rows,), generator=generator)}
    if kind == "speech":
        labels = torch.randint(0, 2, (rows,), generator=generator)
        name = model.main_input_name
        if name == "input_values" and model.config.model_type != "audio-spectrogram-transformer":
            return {name: torch.randn(rows, 2000, generator=generator), "labels": labels}
        length = getattr(model.config, "max_length", 100) or 100
        return {name: torch.randn(rows, length, 128, generator=generator), "labels": labels}
    ids = torch.randint(3, 100, (rows, 12), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}


def names() -> list[tuple[str, str]]:
    """Pairs of a kind and an architecture that the installed transformers has."""
    return [
        (kind, name)
        for kind, (_, listed) in KINDS.items()
        for name in listed.split()
        if name in CONFIG_MAPPING
    ]
