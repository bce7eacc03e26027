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
    if found.get("audits"):
        spent = found["audit_ns"] / 1e9
        lines.append(
            f"{found['audits']} audits of the captured graph took {spent:.2f} s, beside these steps"
        )
    lines.append(f"{'could be':>76}")
    lines.append("stages       ranks            memory      predicted  compute  wait    hidden")
    lines.append("-----------  ------------  ---------  -------------  -------  ----  --------")
    same = {}  # numbers of stages by what is said of them: those of one rank share a line
    for index, stage in enumerate(found["stages"]):
        mine = [found["ranks"][rank] for rank in stage["ranks"]]
        compute, idle, hidden = (
            sum(rank[kind] for rank in mine) / len(mine)
            for kind in ("compute", "idle", "could_be_hidden")
        )
        ranks = ", ".join(map(str, stage["ranks"]))
        expected = stage["predicted_peak_bytes"]
        said = (
            f"{_cut(ranks, 12):12}  {_mib(stage['peak_bytes']):>9}  "
            f"{_mib(expected) + _off(expected, stage['peak_bytes']) if expected else '-':>13}  "
            f"{compute:7.0%}  {idle:4.0%}  {hidden:8.0%}"
        )
        same.setdefault(said, []).append(str(index))
    shown = list(same.items())[:MOST_LINES]
    lines += [f"{_cut(', '.join(numbers), 11):11}  {said}" for said, numbers in shown]
    if left := sum(map(len, same.values())) - sum(len(numbers) for _, numbers in shown):
        lines.append(f"and {left} more stages; model.metrics() has them")
    at = [int(number) for _, numbers in shown for number in numbers]
    predicted, measured = (
        {index: found["stages"][index][key] for index in sorted(at)}
        for key in ("predicted_process_bytes", "process_bytes")
    )
    lines += textwrap.wrap(resident_memory.compare(predicted, measured), WIDTH)
    return "\n".join(lines)


def _cut(text, width) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _work(found) -> str:
    rate, share = found["flops_per_s"], found["flops_share"]
    size, unit = (1e12, "T") if rate >= 1e12 else (1e9, "G") if rate >= 1e9 else (1e6, "M")
    of_all = "" if share is None else f", {share:.0%} of the devices' peak"
    return f"{rate / size:.3g} {unit}FLOP/s in matrix products on all ranks{of_all}"


def _mib(count) -> str:
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.1f} GiB"


def _off(predicted, measured) -> str:
    return f" ({(predicted - measured) / measured:+.0%})" if measured else ""
