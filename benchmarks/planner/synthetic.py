"""Layer graphs with the numbers of real ones, for comparisons without captured graphs."""

ROWS = [1, 2, 4, 8]
FLOPS_PER_NS = 312e12 * 0.5 / 1e9  # half of an A100's bf16 peak
BYTES_PER_NS = 1.2e12 / 1e9
LAUNCH_NS = 8000
ITEM = 2  # bytes of a number


class Builder:
    def __init__(self, name):
        self.graph = {
            "format": "rannc-graph-profile",
            "version": 1,
            "name": name,
            "dtype": "bfloat16",
            "rows": ROWS,
            "inputs": [{"name": "x", "bytes_per_row": 8192}],
            "params": [],
            "nodes": [],
        }

    def param(self, name, count):
        self.graph["params"].append({"id": name, "bytes": ITEM * count})
        return name

    def node(self, name, inputs, out, flops=0.0, params=(), moved=None, saved=None):
        """`out` and `saved` in numbers per row, `flops` per row."""
        weights = {p["id"]: p["bytes"] for p in self.graph["params"]}
        read = sum(weights[p] for p in params)
        moved = 2 * out if moved is None else moved
        forward = [
            LAUNCH_NS + max(b * flops / FLOPS_PER_NS, (b * moved * ITEM + read) / BYTES_PER_NS)
            for b in ROWS
        ]
        saved = out if saved is None else saved
        self.graph["nodes"].append(
            {
                "name": name,
                "op": "op",
                "inputs": list(inputs),
                "params": list(params),
                "outputs": [{"bytes_per_row": ITEM * out}],
                "forward_ns": forward,
                "backward_ns": [2 * t for t in forward],
                "saved_bytes": [ITEM * saved * b for b in ROWS],
                "workspace_bytes": [ITEM * out * b for b in ROWS],
            }
        )
        return name

    def linear(self, name, source, tokens, inside, outside, saved=None):
        weight = self.param(f"{name}.weight", inside * outside)
        flops = 2.0 * tokens * inside * outside
        return self.node(name, [source], tokens * outside, flops, [weight], saved=saved)

    def attention(self, name, source, tokens, hidden, memory=None):
        qkv = self.linear(f"{name}.qkv", source, tokens, hidden, 3 * hidden)
        sources = [qkv] + ([memory] if memory else [])
        core = self.node(f"{name}.core", sources, tokens * hidden, 4.0 * tokens * tokens * hidden)
        proj = self.linear(f"{name}.proj", core, tokens, hidden, hidden)
        return self.node(f"{name}.add", [source, proj], tokens * hidden, saved=0)

    def mlp(self, name, source, tokens, hidden, experts=1):
        up = self.linear(f"{name}.up", source, tokens, hidden, 4 * hidden)
        act = self.node(f"{name}.act", [up], 4 * tokens * hidden)
        down = self.linear(f"{name}.down", act, tokens, 4 * hidden, hidden)
        if experts > 1:  # each token uses one; the others are only held
            self.graph["params"][-1]["bytes"] *= experts
            self.graph["params"][-2]["bytes"] *= experts
        return self.node(f"{name}.add", [source, down], tokens * hidden, saved=0)


def gpt(name, layers, hidden, tokens=1024, vocabulary=50304, tied=True, experts=1):
    b = Builder(name)
    table = b.param("embed.weight", vocabulary * hidden)
    at = b.node("embed", ["x"], tokens * hidden, params=[table], saved=tokens)
    for k in range(layers):
        at = b.attention(f"layers.{k}.attention", at, tokens, hidden)
        at = b.mlp(f"layers.{k}.mlp", at, tokens, hidden, experts if k % 2 else 1)
    weight = table if tied else b.param("head.weight", vocabulary * hidden)
    flops = 2.0 * tokens * hidden * vocabulary
    at = b.node("head", [at], tokens * vocabulary, flops, [weight])
    b.node("loss", [at], 1, moved=2 * tokens * vocabulary)
    return b.graph


def encoder_decoder(layers=12, hidden=1024, tokens=512, vocabulary=32128):
    b = Builder("encoder-decoder, tied")
    table = b.param("shared.weight", vocabulary * hidden)
    at = b.node("encoder.embed", ["x"], tokens * hidden, params=[table], saved=tokens)
    for k in range(layers):
        at = b.attention(f"encoder.block.{k}.attention", at, tokens, hidden)
        at = b.mlp(f"encoder.block.{k}.mlp", at, tokens, hidden)
    memory = at
    at = b.node("decoder.embed", ["x"], tokens * hidden, params=[table], saved=tokens)
    for k in range(layers):
        at = b.attention(f"decoder.block.{k}.attention", at, tokens, hidden)
        at = b.attention(f"decoder.block.{k}.cross", at, tokens, hidden, memory)
        at = b.mlp(f"decoder.block.{k}.mlp", at, tokens, hidden)
    at = b.node("head", [at], tokens * vocabulary, 2.0 * tokens * hidden * vocabulary, [table])
    b.node("loss", [at], 1, moved=2 * tokens * vocabulary)
    return b.graph


def unet(levels=5, width=64, side=256, blocks=2):
    """Long skips: every level's output is needed when the way up passes it."""
    b = Builder("U-Net")
    at, skips, channels, k = "x", [], 4, 0

    def conv(source, side, inside, outside):
        nonlocal k
        weight = b.param(f"blocks.{k}.weight", 9 * inside * outside)
        flops = 2.0 * 9 * inside * outside * side * side
        sources = source if isinstance(source, list) else [source]
        k += 1
        return b.node(f"blocks.{k - 1}.conv", sources, outside * side * side, flops, [weight])

    for level in range(levels):
        outside = width * 2**level
        for _ in range(blocks):
            at = conv(at, side >> level, channels, outside)
            channels = outside
        skips.append(at)
    for level in reversed(range(levels - 1)):
        outside = width * 2**level
        at = conv([at, skips[level]], side >> level, channels + outside, outside)
        channels = outside
        for _ in range(blocks - 1):
            at = conv(at, side >> level, channels, outside)
    b.node("loss", [at], 1)
    return b.graph


def resnet(depths=(3, 8, 36, 3), width=256, side=56):
    """Early layers are all activations, late ones all parameters."""
    b = Builder("ResNet, wide")
    at = b.node("stem", ["x"], width * side * side, 2.0 * 49 * 3 * width * side * side * 4)
    for group, depth in enumerate(depths):
        channels, s = width * 2**group, side >> group
        for k in range(depth):
            name = f"layer{group + 1}.{k}"
            weight = b.param(f"{name}.weight", 17 * channels * channels // 16 * 4)
            flops = 2.0 * s * s * 17 * channels * channels / 4
            body = b.node(
                f"{name}.body", [at], channels * s * s, flops, [weight], saved=3 * channels * s * s
            )
            at = b.node(f"{name}.add", [at, body], channels * s * s, saved=channels * s * s)
    at = b.linear("fc", at, 1, width * 8, 1000)
    b.node("loss", [at], 1)
    return b.graph


def graphs():
    return {
        graph["name"]: graph
        for graph in (
            gpt("GPT 24 x 2048", 24, 2048),
            gpt("GPT 12 x 1024, heavy head", 12, 1024, vocabulary=256000, tied=False),
            gpt("GPT 48 x 5120", 48, 5120, tokens=2048),
            gpt("GPT 16 x 1024, 16 experts", 16, 1024, experts=16),
            encoder_decoder(),
            unet(),
            resnet(),
        )
    }
