"""A plan in a notebook: its strip of stages and a small table."""

from html import escape

MOST_STAGES = 64


def html(plan) -> str:
    """The plan as HTML that needs no script; what ``_repr_html_`` of a plan gives."""
    from pyrannc import _C

    heading = f"<p><b>{escape(_C.plan.headline(plan))}</b></p>"
    stages = plan.stages
    if not stages or any(stage.predicted is None for stage in stages):
        return f"<div>{heading}</div>"
    busy = [stage.predicted.forward_ns + stage.predicted.backward_ns for stage in stages]
    peaks = plan.step.peak_bytes or [stage.predicted.peak_bytes for stage in stages]
    shown = range(min(len(stages), MOST_STAGES))
    bar = "".join(
        f'<i title="stage {s}" style="flex:{max(busy[s], 1)} 1 0;background:{_color(s)};'
        'min-width:3px;font-style:normal;text-align:center;overflow:hidden">'
        f"{s}</i>"
        for s in shown
    )
    rows = "".join(
        f"<tr><td>{s}</td><td>{len(stages[s].ranks)}</td><td>{busy[s] / 1e6:.3g}</td>"
        f"<td>{peaks[s] / 2**20:.1f}</td><td>{'yes' if stages[s].recompute else 'no'}</td></tr>"
        for s in shown
    )
    more = f"<p>and {len(stages) - MOST_STAGES} more</p>" if len(stages) > MOST_STAGES else ""
    return (
        f'<div style="max-width:640px">{heading}'
        f'<div style="display:flex;gap:2px;height:24px;color:#111">{bar}</div>'
        "<table><thead><tr><th>stage</th><th>replicas</th><th>ms of a micro-batch</th>"
        f"<th>peak MiB</th><th>recompute</th></tr></thead><tbody>{rows}</tbody></table>{more}</div>"
    )


def _color(stage):
    return f"hsl({(stage * 137.508 + 210) % 360:.0f} 58% 66%)"
