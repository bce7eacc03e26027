"""What the first steps took, beside what was predicted, on a screen of 80 columns."""

import textwrap

from pyrannc.report import resident_memory
from pyrannc.report.time_shares import MOST_LINES

WIDTH = 80


def text(found) -> str:
    """A record as ``metrics.record`` returns it, as a few lines."""
    step, predicted = found["step_ns"] / 1e6, found["predicted_step_ns"] / 1e6
    lines = [
        f"after {found['steps']} steps: {step:.1f} ms a step, predicted {predicted:.1f} ms"
        f"{_off(predicted, step)}; {found['rows_per_s']:.4g} rows/s",
        _work(found),
    ]
    if found["predicted_at_speed_ns"]:
        now = found["predicted_at_speed_ns"] / 1e6
        lines.append(f"at the speed that the ranks compute with now: {now:.1f} ms{_off(now, step)}")
    lines.append("stage  ranks          memory    predicted      compute  wait  could be hidden")
    lines.append("-----  ------------  ---------  -------------  -------  ----  ---------------")
    stages = found["stages"]
    for index, stage in enumerate(stages[:MOST_LINES]):
        mine = [found["ranks"][rank] for rank in stage["ranks"]]
        compute, idle, hidden = (
            sum(rank[kind] for rank in mine) / len(mine)
            for kind in ("compute", "idle", "could_be_hidden")
        )
        ranks = ", ".join(map(str, stage["ranks"]))
        expected = stage["predicted_peak_bytes"]
        lines.append(
            f"{index:5}  {ranks if len(ranks) <= 12 else ranks[:9] + '...':12}  "
            f"{_mib(stage['peak_bytes']):>9}  "
            f"{_mib(expected) + _off(expected, stage['peak_bytes']) if expected else '-':>13}  "
            f"{compute:7.0%}  {idle:4.0%}  {hidden:15.0%}"
        )
    if len(stages) > MOST_LINES:
        lines.append(f"and {len(stages) - MOST_LINES} more stages; model.metrics() has them")
    predicted, measured = (
        [stage[key] for stage in stages[:MOST_LINES]]
        for key in ("predicted_process_bytes", "process_bytes")
    )
    lines += textwrap.wrap(resident_memory.compare(predicted, measured), WIDTH)
    return "\n".join(lines)


def _work(found) -> str:
    rate, share = found["flops_per_s"], found["flops_share"]
    size, unit = (1e12, "T") if rate >= 1e12 else (1e9, "G") if rate >= 1e9 else (1e6, "M")
    of_all = "" if share is None else f", {share:.0%} of the devices' peak"
    return f"{rate / size:.3g} {unit}FLOP/s in matrix products on all ranks{of_all}"


def _mib(count) -> str:
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.1f} GiB"


def _off(predicted, measured) -> str:
    return f" ({(predicted - measured) / measured:+.0%})" if measured else ""
