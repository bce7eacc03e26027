"""Plans and runs as pages to look at. Nothing here needs torch."""


def duration(ns) -> str:
    """For people: "22.8 s", "279 ms", "1.5 ms"."""
    if ns >= 1e10:
        return f"{ns / 1e9:.1f} s"
    return f"{ns / 1e6:.0f} ms" if ns >= 1e7 else f"{ns / 1e6:.3g} ms"


def size(count: float) -> str:
    """Bytes, in the largest unit of which there is at least one."""
    units = ["B", "KiB", "MiB", "GiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.{0 if units[0] == 'B' else 2}f} {units[0]}"
