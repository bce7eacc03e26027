"""Architectures of transformers, unmodified, with random weights in tiny shapes."""

import random
import zlib

import torch
import transformers
from transformers import CONFIG_MAPPING

#: By how a model is called: its auto class, and the architectures; `:ctc` tells two kinds apart.
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
    "transcription": ("AutoModelForCTC", """
        wav2vec2:ctc hubert:ctc wavlm:ctc unispeech-sat:ctc sew:ctc data2vec-audio:ctc
        """),
    "video": ("AutoModelForVideoClassification", "videomae timesformer vivit"),
    "vision-language": ("AutoModelForImageTextToText", "llava vipllava internvl paligemma"),
    # Their losses match boxes on the host, so they are computed outside of the model.
    "detection": ("AutoModelForObjectDetection", "detr conditional_detr table-transformer yolos"),
}  # fmt: skip

#: Kinds whose models do not return their loss.
LOSS_OUTSIDE = ("detection",)

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
    "num_experts_per_tok": 2, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_frames": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
    "encoder_sparse_step": 2, "decoder_sparse_step": 2, "ctc_zero_infinity": True,
    "use_cache": False, "layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
    "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "apply_spec_augment": False,
    "router_jitter_noise": 0.0,
}  # fmt: skip
_WITH_CONVOLUTIONS = (
    "wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio",
    "wav2vec2-conformer",
)  # fmt: skip
_SMALL_CONVOLUTIONS = {
    "conv_dim": [32, 32, 32], "conv_kernel": [10, 3, 2], "conv_stride": [5, 4, 4],
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_SMALL_BACKBONE = {
    "use_timm_backbone": False, "backbone": None, "num_queries": 5,
    "backbone_config": {
        "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1], "layer_type": "basic", "out_features": ["stage4"],
    },
}  # fmt: skip
#: The same for one architecture alone.
OF_ONE = {
    **dict.fromkeys(("detr", "conditional_detr", "table-transformer"), _SMALL_BACKBONE),
    "yolos": {"image_size": [64, 64], "num_detection_tokens": 5},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 16, "chunk_size": 4},
    "deepseek_v3": {
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "q_lora_rank": 16,
        "kv_lora_rank": 16, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
    },
    "esm": {"vocab_size": 100, "pad_token_id": 0, "mask_token_id": 4, "token_dropout": False},
    "xmod": {"default_language": "en_XX"},
    "reformer": {
        "axial_pos_embds": False, "attention_head_size": 8, "attn_layers": ["local", "lsh"],
        "is_decoder": False, "lsh_attn_chunk_length": 4, "local_attn_chunk_length": 4,
        "num_buckets": 4, "num_hashes": 1, "hash_seed": 0,
    },
    "fsmt": {"src_vocab_size": 100, "tgt_vocab_size": 100},
    "led": {"attention_window": [4, 4], "max_encoder_position_embeddings": 64},
    "longformer": {"attention_window": [4, 4]},
    "convnext": {"patch_size": 2, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32]},
    "convnextv2": {"patch_size": 2, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32]},
    "resnet": {"depths": [1, 1, 2, 1], "hidden_sizes": [16, 16, 32, 32], "embedding_size": 16},
    "regnet": {
        "depths": [1, 1, 2, 1], "hidden_sizes": [16, 16, 32, 32], "embedding_size": 16,
        "groups_width": 8,
    },
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "swin": {"patch_size": 2, "window_size": 2, "embed_dim": 12, "depths": [1, 1, 2, 1],
             "num_heads": [1, 2, 2, 4]},
    "swinv2": {"patch_size": 2, "window_size": 2, "embed_dim": 12, "depths": [1, 1, 2, 1],
               "num_heads": [1, 2, 2, 4]},
    "poolformer": {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32]},
    "pvt": {
        "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32],
        "num_attention_heads": [1, 2, 2, 4],
    },
    "pvt_v2": {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 40, 64]},
    "cvt": {"depth": [1, 1, 1], "embed_dim": [8, 16, 32], "num_heads": [1, 2, 4]},
    "focalnet": {"patch_size": 2, "embed_dim": 16, "depths": [1, 1, 2, 1]},
    "bit": {"depths": [1, 1, 1, 1], "hidden_sizes": [32, 32, 64, 64], "embedding_size": 32,
            "num_groups": 8},
    "segformer": {"hidden_sizes": [8, 16, 40, 64], "depths": [1, 1, 1, 1]},
    "swiftformer": {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 32, 64]},
    "hiera": {"patch_size": [4, 4], "embed_dim": 8, "depths": [1, 1, 1, 1],
              "num_heads": [1, 2, 2, 4], "patch_stride": [2, 2], "patch_padding": [1, 1]},
    "llava": {"image_token_id": 99, "vision_feature_layer": -1},
    "vipllava": {"image_token_id": 99, "vision_feature_layers": [-1, -2]},
    "internvl": {"image_token_id": 99},
    "paligemma": {"image_token_id": 99, "projection_dim": 32},
    "funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1},
    "efficientnet": {"hidden_dim": 320, "width_coefficient": 0.25, "depth_coefficient": 0.25},
    **dict.fromkeys(_WITH_CONVOLUTIONS, _SMALL_CONVOLUTIONS),
}  # fmt: skip


def model_of(kind: str, name: str) -> torch.nn.Module:
    """A tiny one without dropout; the same each time."""
    name = name.partition(":")[0]
    plain = CONFIG_MAPPING[name]()
    parts = {
        part: {"model_type": of_part.model_type} | _tiny(of_part)
        for part in ("text_config", "vision_config")
        if kind == "vision-language" and (of_part := getattr(plain, part))
    }
    sizes = _tiny(plain)
    if kind == "encoder-decoder":
        sizes["decoder_start_token_id"] = 0
    torch.manual_seed(zlib.crc32(name.encode()))
    random.seed(0)
    config = CONFIG_MAPPING[name](**sizes | parts | OF_ONE.get(name, {}))
    return getattr(transformers, KINDS[kind][0]).from_config(config).train()


def _tiny(plain) -> dict:
    """What of TINY a configuration has, and no dropout."""
    known = plain.to_dict()
    sizes = {key: value for key, value in TINY.items() if isinstance(known.get(key), int | float)}
    sizes |= {key: TINY[key] for key in ("pad_token_id", "use_cache") if key in known}
    return sizes | {
        key: 0.0 for key, value in known.items() if "drop" in key and isinstance(value, float)
    }


def call_of(kind: str, model, rows: int, seed: int = 0) -> dict:
    """The arguments of a call with labels."""
    generator = torch.Generator().manual_seed(100 * seed + rows)
    if kind == "vision":
        side = getattr(model.config, "image_size", 32)
        side = side if isinstance(side, int) else side[0]
        pixels = torch.randn(rows, 3, side, side, generator=generator)
        return {"pixel_values": pixels, "labels": torch.randint(0, 2, (rows,), generator=generator)}
    if kind == "video":
        size = (rows, model.config.num_frames, 3, 32, 32)
        labels = torch.randint(0, 2, (rows,), generator=generator)
        return {"pixel_values": torch.randn(size, generator=generator), "labels": labels}
    if kind == "speech":
        labels = torch.randint(0, 2, (rows,), generator=generator)
        name = model.main_input_name
        if name == "input_values" and model.config.model_type != "audio-spectrogram-transformer":
            return {name: torch.randn(rows, 2000, generator=generator), "labels": labels}
        length = getattr(model.config, "max_length", 100) or 100
        return {name: torch.randn(rows, length, 128, generator=generator), "labels": labels}
    if kind == "transcription":
        values = torch.randn(rows, 2000, generator=generator)
        labels = torch.randint(1, 100, (rows, 8), generator=generator)
        ends = torch.randint(3, 9, (rows, 1), generator=generator)
        return {"input_values": values, "labels": labels.where(torch.arange(8) < ends, -100)}
    if kind == "vision-language":
        images = torch.randn(rows, 3, 32, 32, generator=generator)
        with torch.no_grad():
            features = model.get_image_features(
                pixel_values=images[:1].to(model.device)
            ).pooler_output
        places = torch.full((rows, len(torch.cat(list(features)))), model.config.image_token_id)
        ids = torch.randint(3, 99, (rows, 12), generator=generator)
        ids = torch.cat([places, ids], 1)
        call = {"input_ids": ids, "pixel_values": images, "labels": ids.clone()}
        if model.config.model_type == "paligemma":  # as its processor does for training
            answers = torch.arange(ids.shape[1]) >= places.shape[1] + 4
            call["token_type_ids"] = answers.long().expand(rows, -1).clone()
        return call
    if kind == "detection":
        images = {"pixel_values": torch.randn(rows, 3, 64, 64, generator=generator)}
        if model.config.model_type == "yolos":
            return images
        return images | {"pixel_mask": torch.ones(rows, 64, 64, dtype=torch.long)}
    ids = torch.randint(3, 100, (rows, 12), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}


def loss_of(kind: str, outputs) -> torch.Tensor:
    """Of the model's outputs; of boxes and classes something that looks at all of them."""
    if kind not in LOSS_OUTSIDE:
        return outputs.loss
    return outputs.logits.square().mean() + outputs.pred_boxes.square().mean()


def kind_of(name: str) -> str:
    return next(kind for kind, (_, listed) in KINDS.items() if name in listed.split())


def names() -> list[tuple[str, str]]:
    """Pairs of a kind and an architecture that the installed transformers has."""
    return [
        (kind, name)
        for kind, (_, listed) in KINDS.items()
        for name in listed.split()
        if name.partition(":")[0] in CONFIG_MAPPING
    ]
