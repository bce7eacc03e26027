"""What all ranks must have in common before they plan together."""

import json
import os

import torch

from pyrannc import _C
from pyrannc.config import ITEMS
from pyrannc.errors import ConfigError, PlanError, RaNNCError, TraceError
from pyrannc.job.by_rank import by_rank

#: Settings of one process, or of which only one rank's matters.
OWN = {
    "comm_timeout_s",
    "deployment_file",
    "keep_freed_memory",
    "log_level",
    "profile_cache",
    "save_deployment",
    "self_check",
    "show_config_items",
}


def same_settings(config, others, world) -> None:
    """Raises ConfigError, on every rank, where what decides what the ranks do together differs.

    Args:
        others: More of it, by name, beside ``config``.
    """
    mine = {name: getattr(config, name) for name in ITEMS if name not in OWN} | others
    ranks = [json.loads(item) for item in world.all_gather(json.dumps(mine).encode())]
    differ = [name for name in mine if any(rank[name] != ranks[0][name] for rank in ranks)]
    if differ:
        texts = [", ".join(f"{name} = {rank[name]!r}" for name in differ) for rank in ranks]
        raise ConfigError(
            f"the ranks have different settings:{by_rank(texts)}\n"
            f"  Give every rank the same; only {', '.join(sorted(OWN))} may differ."
        )


def same_graph(captured, rows, world):
    """Checks that every rank captured the same graph. Returns ``rows`` of every rank."""
    mine = json.dumps(
        {
            "rows": rows,
            "fingerprint": captured.whole.fingerprint(),
            "grad": torch.is_grad_enabled(),
        }
    )
    all_ranks = [json.loads(item) for item in world.all_gather(mine.encode())]
    if len({item["fingerprint"] for item in all_ranks}) > 1:
        reference = _C.ir.Graph.from_json(
            world.broadcast(captured.whole.to_json().encode(), 0).decode()
        )
        difference = _C.ir.first_difference(reference, captured.whole)
        differs = [json.loads(item) for item in world.all_gather(json.dumps(difference).encode())]
        rank = next(rank for rank, text in enumerate(differs) if text)
        hint = ""
        if os.environ.get("PYTHONHASHSEED", "random") == "random":
            hint = (
                "\n  Is it the order of a set of strings, which each process chooses anew? Set "
                "PYTHONHASHSEED=0 for all ranks, as `rannc run` does."
            )
        raise TraceError(f"rank {rank} captured another graph than rank 0: {differs[rank]}{hint}")
    if len({item["grad"] for item in all_ranks}) > 1:
        calls = ", ".join(
            f"rank {rank} {'with' if item['grad'] else 'without'}"
            for rank, item in enumerate(all_ranks)
        )
        raise RaNNCError(f"the ranks make the first call with and without grad: {calls}")
    counts = [item["rows"] for item in all_ranks]
    if not any(counts):
        raise PlanError("the batch has no rows on any rank, so there is nothing to plan for")
    return counts


def hosts_of(world) -> list[str]:
    """The name of each rank's host. Collective."""
    return [item.decode() for item in world.all_gather(world.host.encode())]


def on_rank(root, world, work):
    """``work()`` of one rank, in JSON's types, on every rank; its error is raised on every rank."""
    message = b""
    if world.rank == root:
        try:
            message = json.dumps({"result": work()}).encode()
        except RaNNCError as error:
            message = json.dumps({"error": type(error).__name__, "text": str(error)}).encode()
    answer = json.loads(world.broadcast(message, root).decode())
    if "error" in answer:
        raise getattr(_C.util, answer["error"])(answer["text"])
    return answer["result"]
