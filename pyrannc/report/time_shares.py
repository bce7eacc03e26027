"""What the ranks do during a step: shares of its time, from the executors' own timelines."""

# As _C.runtime.Times names them; what is left of a step is the optimizer and Python.
KINDS = ("compute", "send", "receive", "reduce", "idle")
# Where there are more ranks, only the first of each stage is shown.
MOST_LINES = 8


def spent(executor) -> dict:
    """Nanoseconds of all training calls so far, by kind."""
    return {kind: getattr(executor.times, f"{kind}_ns") for kind in KINDS}


def in_words(steps) -> str:
    """What the training steps of a plan took on this rank; ``steps``: TrainingSteps."""
    seconds, before = steps.seconds, steps.spent_before
    parts = ", ".join(
        f"{kind} {(ns - before.get(kind, 0)) / 1e9:.3f} s" for kind, ns in steps.spent().items()
    )
    return f"profiling: {steps.count} training steps as planned took {seconds:.3f} s: {parts}"


def between(before, after, seconds) -> dict:
    """Shares of ``seconds``, by kind, and ``rest``."""
    if seconds <= 0:
        return dict.fromkeys((*KINDS, "rest"), 0.0)
    shares = {kind: (after[kind] - before[kind]) / (1e9 * seconds) for kind in KINDS}
    return shares | {"rest": max(1 - sum(shares.values()), 0.0)}


def hidden(plan, shares) -> list[float]:
    """For each rank the share of a step spent on communication that could have been hidden: beyond
    the bubble, in which it would wait for others to compute even if messages took no time.

    Args:
        plan: ``_C.plan.Plan``, which says what the bubble is.
        shares: Of each rank, as :func:`between` returns them.
    """
    bubbles = plan.step.bubble_ns or [0] * len(shares)
    step = plan.step.ns or 1
    return [
        max(rank["send"] + rank["receive"] + rank["reduce"] + rank["idle"] - bubble / step, 0.0)
        for rank, bubble in zip(shares, bubbles, strict=True)
    ]


def show(plan, shares, now) -> str:
    """A table of 80 columns with a line for each rank that is worth one: of its time, the share of
    each kind of work, the idle share that the plan foretold and that its prediction at the speed of
    these steps has, and what :func:`hidden` says.

    Args:
        now: What ``speed.Speed.during`` says of these steps, or None.
    """
    shown = range(len(shares))
    if len(shares) > MOST_LINES:
        shown = sorted({stage.ranks[0] for stage in plan.stages})
    could_be_hidden = hidden(plan, shares)
    widths = [max(len(kind), 5) for kind in (*KINDS, "rest")]
    heads = [f"{kind:>{width}}" for kind, width in zip((*KINDS, "rest"), widths, strict=True)]
    lines = [
        f"{'':{6 + sum(widths) + 2 * len(heads) - 2}}  idle as  at this  could be",
        "rank  " + "  ".join([*heads, "planned", "  speed", "  hidden"]),
    ]
    for rank in shown:
        planned = plan.step.idle_ns and plan.step.ns and plan.step.idle_ns[rank] / plan.step.ns
        lines.append(
            f"{rank:4}  "
            + "  ".join(
                f"{shares[rank][kind]:{width}.1%}"
                for kind, width in zip((*KINDS, "rest"), widths, strict=True)
            )
            + (f"  {planned:7.1%}" if planned else f"  {'-':>7}")
            + (f"  {now.idle_ns[rank] / now.ns:7.1%}" if now else f"  {'-':>7}")
            + f"  {could_be_hidden[rank]:8.1%}"
        )
    return "\n".join(lines)
