"""Plans and runs as pages to look at. Nothing here needs torch."""


def duration(ns) -> str:
    """For people: "22.8 s", "279 ms", "1.5 ms"."""
    if ns >= 1e10:
        return f"{ns / 1e9:.1f} s"
    return f"{ns / 1e6:.0f} ms" if ns >= 1e7 else f"{ns / 1e6:.3g} ms"
