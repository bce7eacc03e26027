"""What all ranks must have in common before they plan together."""

import os

import torch

from pyrannc import __version__
from pyrannc.config import ITEMS
from pyrannc.errors import ConfigError, PlanError, RaNNCError, TraceError
from pyrannc.job.by_rank import by_rank
from pyrannc.ranks import first_fault, gathered, of_rank

#: Settings of one process, or of which only one rank's matters.
OWN = {
    "comm_timeout_s",
    "deployment_file",
    "display_act_value",
    "display_comm_value",
    "dump_graph_prefix",
    "graph_profile_file",
    "keep_freed_memory",
    "log_level",
    "nccl_library",
    "profile_cache",
    "profiling",
    "save_deployment",
    "self_check",
    "show_config_items",
}

MODE = "model.training"  #: Beside the settings: the mode of the first call.


def same_versions(world) -> None:
    """Raises ConfigError, on every rank, where ranks have other versions of pyrannc or torch, as
    after an update of one host alone: they might compute, or send, something else. Collective."""
    mine = f"pyrannc {__version__}, torch {torch.__version__}"
    told = gathered(world, (world.host, mine))
    if len({versions for _, versions in told}) > 1:
        texts = [f"{versions} on {host}" for host, versions in told]
        raise ConfigError(
            f"the ranks have different versions:{by_rank(texts)}\n  Install the same on every host."
        )


def same_settings(config, others, world) -> None:
    """Raises ConfigError, on every rank, where what decides what the ranks do together differs.

    Args:
        others: More of it, by name, beside ``config``.
    """
    mine = {name: getattr(config, name) for name in ITEMS if name not in OWN} | others
    ranks = gathered(world, mine)
    differ = [name for name in mine if any(rank[name] != ranks[0][name] for rank in ranks)]
    if differ:
        texts = [", ".join(f"{name} = {rank[name]!r}" for name in differ) for rank in ranks]
        if differ == [MODE]:
            raise ConfigError(
                "some ranks make the first call of the model in training mode, and others in eval "
                f"mode:{by_rank(texts)}\n  A call is of all ranks together: let every rank "
                "evaluate, without `if rank == 0:` around it."
            )
        raise ConfigError(
            f"the ranks have different settings:{by_rank(texts)}\n"
            f"  Give every rank the same; only {', '.join(sorted(OWN))} may differ."
        )


def sizes_of_all(said, sizes, rows, fault, world) -> tuple:
    """What each rank says of its arguments before the first capture: lists of sizes and of rows.
    Collective.

    Args:
        said: What is padded, and how, in JSON's types.
        sizes: Of this rank's arguments.
        rows: Of this rank's batch, or None.
        fault: What is wrong with ``said``, or nothing.

    Raises:
        ConfigError: The ranks say different things, or something is wrong with it; on every rank.
    """
    ranks = gathered(world, {"said": said, "sizes": sizes, "rows": rows, "fault": fault})
    said = [rank["said"] for rank in ranks]
    texts = [f"pad = {dict(pad)}, pad_side = {side!r}, pad_to = {to}" for side, pad, to in said]
    if len(set(texts)) > 1:
        raise ConfigError(
            f"the ranks pad differently:{by_rank(texts)}\n  Give every rank the same."
        )
    faults = [rank["fault"] for rank in ranks]
    if any(faults):
        raise ConfigError(faults[0] if all(faults) else f"the ranks differ:{by_rank(faults)}")
    return [rank["sizes"] for rank in ranks], [rank["rows"] for rank in ranks]


def same_graph(captured, rows, world):
    """Lets every rank have the graph that rank 0 has captured, with objects of its own in it.

    Collective. Where a model goes through a set of strings, each process does so in another order,
    which is another graph of the same operators. Returns ``captured`` with rank 0's graph, and
    ``rows`` of every rank.

    Raises:
        TraceError: The graphs of two ranks differ in more than the order and the names of nodes; on
            every rank.
    """
    reference = captured.reference()
    mine = {
        "rows": rows,
        "fingerprint": reference.fingerprint(),
        "grad": torch.is_grad_enabled(),
        "sizes": captured.sizes(),
    }
    all_ranks = gathered(world, mine)
    same = [item["fingerprint"] == all_ranks[0]["fingerprint"] for item in all_ranks]
    if not all(same):
        sizes = [item["sizes"] for item in all_ranks]
        captured = _with_rank_0s_graph(captured, reference, same, _longer(sizes), world)
    if len({item["grad"] for item in all_ranks}) > 1:
        calls = ", ".join(
            f"rank {rank} {'with' if item['grad'] else 'without'}"
            for rank, item in enumerate(all_ranks)
        )
        raise RaNNCError(f"the ranks make the first call with and without grad: {calls}")
    counts = [item["rows"] for item in all_ranks]
    if not any(counts):
        raise PlanError("the batch has no rows on any rank, so there is nothing to plan for")
    return captured, counts


def _longer(ranks) -> str:
    """What to do where an argument is longer on some ranks, if one is; ``ranks``: their sizes."""
    for rank, sizes in enumerate(ranks):
        for path, mine in sizes.items():
            other = ranks[0].get(path, mine)
            if other != mine and len(other) == len(mine):
                return (
                    f"\n  {path} has sizes {_shown(mine)} on rank {rank} and {_shown(other)} on "
                    "rank 0: RaNNCModule(..., pad={'name of the argument': 0}) pads each argument "
                    "that it names to the longest of all ranks; outputs have that length, too, and "
                    "pyrannc.padded(targets) gives it to targets of the loop."
                )
    return ""


def _shown(sizes) -> str:
    return f"[{', '.join('rows' if size is None else str(size) for size in sizes)}]"


def _with_rank_0s_graph(captured, reference, same, longer, world):
    """``same``: for each rank whether its graph is that of rank 0 already; ``longer``: a hint."""
    message = of_rank(0, world, reference.to_bytes() if world.rank == 0 else None)
    difference = ""
    if not same[world.rank]:
        try:
            captured = captured.following(type(reference).from_bytes(message))
        except TraceError as error:
            difference = str(error)
    if wrong := first_fault(world, difference):
        (rank, text), hint = wrong, longer
        if not hint and os.environ.get("PYTHONHASHSEED", "random") == "random":
            hint = (
                "\n  Is it the order of a set of strings, which each process chooses anew? Set "
                "PYTHONHASHSEED=0 for all ranks, as `rannc run` does."
            )
        raise TraceError(f"rank {rank} captured another graph than rank 0: {text}{hint}")
    return captured


def hosts_of(world) -> list[str]:
    """The name of each rank's host. Collective."""
    return gathered(world, world.host)
