"""What training would take on other numbers of devices, with other batches and memory."""

import html
import itertools
import json
import tomllib

from pyrannc import planner
from pyrannc.planner import PlannerInputError
from pyrannc.show import duration
from pyrannc.show.page import read, write_page

#: A doubling of devices is worth it while it makes a step at least so much faster.
#: tuned by: a convention for the mark in a table; nothing is decided by it.
#: without it: no number of devices would be marked, and the table has to be read.
WORTH = 1.5


def clusters(path, devices=None, memory_gb=None) -> dict:
    """Clusters of so many devices each, made of the hosts of a cluster file; by their number.

    Args:
        path: ``cluster.toml``: the largest cluster that there could be.
        devices: Numbers of devices. Default: powers of two, and all of them.
        memory_gb: GB (1e9 bytes) of a device instead of the file's.

    Raises:
        PlannerInputError: The file is no cluster, or a number cannot be made of its hosts.
    """
    whole, hosts, each = _described(path)
    most = hosts * each
    wanted = devices or sorted({*(2**k for k in range(most.bit_length()) if 2**k <= most), most})
    found = {}
    for count in wanted:
        if count > most or (count > each and count % each):
            raise PlannerInputError(
                f"{count} devices cannot be made of {path}, which has {hosts} hosts of {each}: "
                f"take up to {each}, or multiples of it up to {most}"
            )
        sizes = {"hosts": max(1, count // each), "devices_per_host": min(count, each)}
        found[count] = whole | sizes
        if memory_gb:
            found[count]["device_memory_bytes"] = memory_gb * 1e9
    return found


def _described(path):
    """A cluster file, and its two numbers."""
    try:
        whole = tomllib.loads(read(path))
        hosts, each = whole["hosts"], whole["devices_per_host"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise PlannerInputError(f"{path}: is no cluster: {error}") from None
    if not (isinstance(hosts, int) and isinstance(each, int) and hosts > 0 < each):
        raise PlannerInputError(
            f"{path}: hosts and devices_per_host are numbers above 0; found {hosts!r} and {each!r}"
        )
    if "host_of_rank" in whole:
        raise PlannerInputError(
            f"{path}: host_of_rank is of one number of devices; advise takes equal hosts"
        )
    return whole, hosts, each


def price_in(cluster) -> float:
    """Of a device for an hour, as a cluster file of version 2 says it; 0 where it does not."""
    return _described(cluster)[0].get("price_per_device_hour", 0)


def request(path) -> dict:
    """A plan request from a file, as far as JSON goes: the planner looks at what is in it."""
    content = read(path)
    try:
        found = json.loads(content)
    except ValueError as error:
        raise PlannerInputError(f"{path}: is no plan request: {error}") from None
    if not isinstance(found, dict) or found.get("format") != "rannc-plan-request":
        raise PlannerInputError(f"{path}: is no plan request ('format' is not its own)")
    return found


def table(
    graphs, cluster, batches, request=None, devices=None, memory=(None,), recompute=("auto",),
    progress=lambda share: None,
):  # fmt: skip
    """A dict for each case, in the order in which they were asked for.

    Args:
        graphs: Paths of graph-profiles by the name of their precision.
        cluster: Path of the largest cluster.
        batches: Rows of global batches.
        request: A plan request as a dict, of which the batch and recompute are replaced.
        devices, memory: See :func:`clusters`; with the default the fewest devices that hold the
            model are found between powers of two, too.
        recompute: ``auto``, ``never``, ``always``.
        progress: Hears how far this is, from 0 to 1.

    Returns:
        ``devices``, ``batch``, ``memory_gb``, ``recompute``, ``precision``, ``feasible``; of what
        fits ``iteration_ns``, ``rows_per_s``, ``device_s_per_row`` and ``peak_bytes``; of the rest
        ``reason``. ``knee`` marks, for each curve over devices, the last one that is worth it.
    """
    request = {"format": "rannc-plan-request", "version": 1} | (request or {})
    rows = []
    curves = list(itertools.product(graphs.items(), batches, memory, recompute))
    counts = clusters(cluster, devices)
    # To find the fewest devices is some cases more.
    cases = len(counts) + (0 if devices else len(counts) // 2)
    for number, ((precision, graph), batch, gb, how) in enumerate(curves):
        done = 0
        wanted = request | {"global_batch": batch, "recompute": how}
        asked = {"batch": batch, "memory_gb": gb, "recompute": how, "precision": precision}

        def case(count, graph=graph, gb=gb, wanted=wanted, asked=asked, number=number):
            nonlocal done
            plan = planner.plan(
                graph, clusters(cluster, [count], gb)[count], wanted,
                progress=lambda share: progress(
                    (number + min(1, (done + share) / cases)) / len(curves)
                ),
            )  # fmt: skip
            done += 1
            outcome = _outcome(plan, count, wanted["global_batch"])
            return {"devices": count} | asked | {"feasible": plan["feasible"]} | outcome

        curve = [case(count) for count in counts]
        if not devices:
            curve = _with_fewest(curve, cluster, case)
        knee = _knee(curve)
        rows += [each | {"knee": each["devices"] == knee} for each in curve]
    return rows


def _with_fewest(curve, cluster, case):
    """The curve, and the case of the fewest devices that hold the model where these lie between two
    of its own."""
    fits = [each["devices"] for each in curve if each["feasible"]]
    if not fits:
        return curve
    each = _described(cluster)[2]
    # Up to one host any number, beyond it whole hosts; of two cases one holds it, and one does not.
    least = max((one["devices"] for one in curve if one["devices"] < fits[0]), default=0)
    between = [count for count in range(least + 1, fits[0]) if count <= each or count % each == 0]
    found = None
    while between:
        middle = len(between) // 2
        tried = case(between[middle])
        if tried["feasible"]:
            found, between = tried, between[:middle]
        else:
            between = between[middle + 1 :]
    return sorted([*curve, *([found] if found else [])], key=lambda one: one["devices"])


def _outcome(plan, devices, batch):
    if not plan["feasible"]:
        return {"reason": plan["reason"].splitlines()[0]}
    seconds = plan["iteration_ns"] / 1e9
    return {
        "iteration_ns": plan["iteration_ns"],
        "rows_per_s": batch / seconds,
        "device_s_per_row": devices * seconds / batch,
        "peak_bytes": max(stage["predicted"]["peak_bytes"] for stage in plan["stages"]),
        "stages": len(plan["stages"]),
    }


def _knee(curve):
    """The last number of devices up to which each step was worth what WORTH asks of a doubling."""
    fits = [case for case in curve if case["feasible"]]
    best = fits[0]["devices"] if fits else None
    for before, after in itertools.pairwise(fits):
        more = after["devices"] / before["devices"]
        gain = before["iteration_ns"] / after["iteration_ns"]
        if gain < WORTH ** (more - 1 if more < 2 else more / 2):
            break
        best = after["devices"]
    return best


_COLUMNS = (
    ("batch", lambda case: f"{case['batch']}"),
    ("memory", lambda case: f"{case['memory_gb']:g} GB" if case["memory_gb"] else "-"),
    ("recompute", lambda case: case["recompute"]),
    ("precision", lambda case: case["precision"]),
)


def _says_something(column, rows):
    """Whether its cases differ, or are none that go without saying."""
    found = {column[1](case) for case in rows}
    return len(found) > 1 or not found <= {"-", "auto", "as given"}


def _rate(number):
    return f"{number:.0f}" if number >= 1000 else f"{number:.4g}"


def _fewest(rows):
    """In words, of all curves."""
    found = {}
    for case in rows:
        if case["feasible"]:
            curve = tuple(of(case) for _, of in _COLUMNS)
            found[curve] = min(case["devices"], found.get(curve, case["devices"]))
    least, most = min(found.values()), max(found.values())
    return f"{least}" if least == most else f"{least}, or up to {most} in other lines of the table"


def text(rows, price=None) -> str:
    """The table, for 80 columns unless memory, recompute and precision all differ; ``price``: of a
    device for an hour."""
    unit = "cost of 1e6 rows" if price else "device-s per row"
    columns = [each for each in _COLUMNS if _says_something(each, rows)]
    heads = [
        "devices",
        *(f"{name:>9}" for name, _ in columns),
        "stages",
        "     step",
        "  rows/s",
        unit,
    ]
    lines = ["  ".join(heads), "  ".join("-" * len(head) for head in heads)]
    for case in rows:
        line = f"{case['devices']:7}  " + "".join(f"{of(case):>9}  " for _, of in columns)
        if case["feasible"]:
            line += (
                f"{case['stages']:6}  {duration(case['iteration_ns']):>9}  "
                f"{_rate(case['rows_per_s']):>8}  {cost_of(case, price):<{len(unit)}.4g}"
                f"{'  <- knee' if case['knee'] else ''}"
            )
        else:
            line += "does not fit"
        lines.append(line.rstrip())
    if not any(case["feasible"] for case in rows):
        return "\n".join([*lines, "", f"Nothing fits: {rows[-1]['reason']}"]) + "\n"
    last = (
        f"The fewest devices that hold it are {_fewest(rows)}. The knee is the last number up "
        f"to which each doubling makes a step at least {WORTH} times as fast."
    )
    return "\n".join([*lines, "", *_wrapped(last)]) + "\n"


def cost_of(case, price):
    """Of a million rows where there is a price of a device-hour, else device-seconds of a row."""
    return case["device_s_per_row"] * (price / 3600 * 1e6 if price else 1)


def _wrapped(sentence, width=80):
    import textwrap

    return textwrap.wrap(sentence, width)


def write_chart(path, rows, price=None) -> None:
    """A page with the same table, and a picture of rows per second over devices."""
    curves = {}
    for case in rows:
        if case["feasible"]:
            key = ", ".join(
                part
                for part in (
                    f"{case['batch']} rows",
                    f"{case['memory_gb']:g} GB" if case["memory_gb"] else "",
                    case["recompute"] if case["recompute"] != "auto" else "",
                    case["precision"],
                )
                if part
            )
            curves.setdefault(key, []).append(case)
    write_page(
        path,
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        "<title>What if</title><style>body{font:14px system-ui;margin:24px;max-width:900px}"
        "@media (prefers-color-scheme: dark){body{background:#12151b;color:#e6eaf1}}"
        "pre{overflow-x:auto}svg text{fill:currentColor;font-size:11px}</style>"
        f"<h1>Speed over devices</h1>{_picture(curves)}"
        f"<pre>{html.escape(text(rows, price))}</pre></html>\n",
    )


def _picture(curves):
    """Both axes logarithmic, so that what scales perfectly is a straight line."""
    import math

    cases = [case for curve in curves.values() for case in curve]
    if not cases:
        return "<p>Nothing fits.</p>"
    span = {}
    for key in ("devices", "rows_per_s"):
        values = [math.log2(case[key]) for case in cases]
        span[key] = min(values) - 0.2, max(values) + 0.2

    def at(case):
        x, y = (
            (math.log2(case[key]) - span[key][0]) / (span[key][1] - span[key][0])
            for key in ("devices", "rows_per_s")
        )
        return 60 + 620 * x, 300 - 270 * y

    parts = []
    for index, (name, curve) in enumerate(curves.items()):
        color = f"hsl({(index * 137.508 + 210) % 360:.0f} 60% 50%)"
        points = [at(case) for case in curve]
        parts.append(
            f'<polyline fill="none" stroke="{color}" stroke-width="2" points="'
            + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            + '"/>'
        )
        for (x, y), case in zip(points, curve, strict=True):
            radius = 6 if case["knee"] else 3
            label = html.escape(f"{case['devices']} devices: {case['rows_per_s']:.4g} rows/s")
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}">'
                f"<title>{label}</title></circle>"
            )
        parts.append(
            f'<text x="700" y="{40 + 16 * index}" style="fill: {color}">{html.escape(name)}</text>'
        )
    for count in sorted({case["devices"] for case in cases}):
        x = at({"devices": count, "rows_per_s": 1})[0]
        parts.append(f'<text x="{x:.0f}" y="320" text-anchor="middle">{count}</text>')
    slow, fast = min(c["rows_per_s"] for c in cases), max(c["rows_per_s"] for c in cases)
    for rate in (slow, fast):
        y = at({"devices": 1, "rows_per_s": rate})[1]
        parts.append(f'<text x="55" y="{y:.0f}" text-anchor="end">{rate:.3g}</text>')
    return (
        '<svg viewBox="0 0 900 340" role="img" aria-label="rows per second over devices">'
        '<text x="60" y="338">devices; a large dot is the knee</text>'
        '<text x="5" y="14">rows/s</text>' + "".join(parts) + "</svg>"
    )


def as_json(rows, price=None) -> str:
    """The rows, with ``price_per_row`` where a device-hour has a price."""
    priced = {"price_per_row": lambda case: cost_of(case, price) / 1e6} if price else {}
    found = [
        case | {name: of(case) for name, of in priced.items() if case["feasible"]} for case in rows
    ]
    return json.dumps(found, indent=1) + "\n"
