"""Steps of known models in groups, compared with one process: losses, gradients, parameters."""

import copy

import torch
from models import Entry, language_ids, llama
from sharded_models import OF_TORCH, OF_TRANSFORMERS

import pyrannc

# They compute parts of themselves in float32, whatever their weights are.
IN_FLOAT32 = {"gpt2", "neox", "bigcode", "llama", "phi3", "t5", "lora"}


def lora():
    import peft

    config = peft.LoraConfig(
        r=4, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "up_proj"],
        init_lora_weights=False,
    )  # fmt: skip
    return peft.get_peft_model(llama(), config)


MODELS = {
    **OF_TRANSFORMERS,
    "lora": Entry(lora, language_ids),
    "uneven_mlp": OF_TORCH["uneven_mlp"],
    "depthwise_cnn": OF_TORCH["depthwise_cnn"],
}


def loss_of(output):
    if isinstance(output, torch.Tensor):  # computed outside of the model
        return output.square().mean(), False
    return output["loss"], True


def adam(model):
    trained = [p for p in model.parameters() if p.requires_grad]
    # Else it makes the rounding of a loss in float32 as large as a step, where gradients are small.
    return torch.optim.Adam(trained, lr=0.003, eps=1e-3)


def own(value, rows):
    if not isinstance(value, torch.Tensor):
        return value
    begin = rows * pyrannc.get_rank()
    return value[begin : begin + rows]


def trains_alike(name, steps=5, rows=2, **settings):
    """``rows``: of each rank. What generates is evaluated, at two lengths, and generates, too."""
    size = pyrannc.get_world_size()
    entry = MODELS[name].in_float64()
    model, twin = entry.build(), entry.build()
    normed = any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in model.modules())
    if normed:  # of the whole batch
        settings |= {"pipeline_num": 1, "sync_batch_norm": True}
    optimizer, its = adam(model), adam(twin)
    before = copy.deepcopy(twin.state_dict())
    wrapped = pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(self_check=False, **settings))
    bound = 2e-5 if name in IN_FLOAT32 else 1e-9

    def near(what, mine, expected, scale):
        difference = float((mine.detach() - expected.detach()).abs().max())
        assert difference <= bound * scale, f"{name}: {what} is {difference / scale:.1e} away"

    for number in range(steps):
        args, kwargs = entry.inputs(rows * size, seed=number)
        optimizer.zero_grad(), its.zero_grad()
        mine = wrapped(
            *(own(each, rows) for each in args),
            **{key: own(each, rows) for key, each in kwargs.items()},
        )
        loss, inside = loss_of(mine)
        expected, _ = loss_of(twin(*args, **kwargs))
        loss.backward(), expected.backward()
        if inside:
            near("the loss", loss, expected, max(1.0, abs(expected.item())))
        gradients = {n: p.grad for n, p in twin.named_parameters() if p.grad is not None}
        largest = max(float(each.abs().max()) for each in gradients.values())
        held = dict(model.named_parameters())
        for path, gradient in gradients.items():
            if not hasattr(held[path], "place_elsewhere"):
                near(f"the gradient of {path}", pyrannc.full(held[path].grad), gradient, largest)
        optimizer.step(), its.step()
    found, expected = wrapped.state_dict(rank0_only=False), twin.state_dict()
    assert found.keys() == expected.keys()
    floating = [path for path, each in expected.items() if each.is_floating_point()]
    change = max(float((expected[path] - before[path]).abs().max()) for path in floating)
    for path in floating:
        near(path, found[path], expected[path], change)
    here = [p for p in model.parameters() if not hasattr(p, "place_elsewhere")]
    assert any(hasattr(p, "place_of_part") for p in here) or not here, "nothing is cut"
    if not hasattr(twin, "generate") or name in ("bert", "lora"):
        return
    wrapped.eval(), twin.eval()
    _, kwargs = entry.inputs(rows * size, seed=steps)
    with torch.no_grad():
        for length in (10, 7):
            short = {key: value[:, :length].contiguous() for key, value in kwargs.items()}
            mine = wrapped(**{key: own(value, rows) for key, value in short.items()})
            expected = twin(**short)["loss"]
            near(f"the loss of {length} tokens", mine["loss"], expected, abs(expected.item()))
        prompt = kwargs["input_ids"][:, :4]
        new = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
        found = wrapped.generate(input_ids=own(prompt, rows), **new)
        assert torch.equal(found, own(twin.generate(input_ids=prompt, **new), rows)), name
