"""Writes docs/tuning.md: the numbers that somebody chose, from the comments beside them.

A number has a licence where the comment above it says what it is for and has these two lines::

    /// tuned by: the command that set it, or "no measurement is known".
    /// without it: what is lost.

In Python the comment begins with ``#:``. A licence holds for the numbers below it, up to the next
blank line.
"""

import ast
import dataclasses
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tuning.md"
MODULES = ("partition", "predict", "plan", "cost", "comm", "runtime", "profile", "ops")

# Numbers that nobody tunes, by what they are.
NOT_TUNED = {
    "units and numbers of mathematics": (
        "kNsPerSecond kTera kGiga kGibi kTo32 kAlpha kLineBytes _ALIGNMENT_BYTES GIB kNsPerHour"
        " kWholeShare kAlignment"
    ),
    "numbers that stand for something else (none, unknown, the last, never)": (
        "kInfinity kNever kNone kUnknown kNoStage kNowhere kUnseen kNoSample kUser kLastStage"
        " kUnknownFlight kFree kNotTimed kCloned kFirst kNothing kNotYet kNoBackward kNoStep"
        " kAbsent kForetold kNoPart kNoSegment kRunsOnce kKept _NOT_SET"
    ),
    "rounding that a comparison allows": (
        "kRounding kRoundedDown kRoundOff kAgreement kMore TOLERANCE FILL"
    ),
    "limits of what files and arguments may say": (
        "kMaxRows kMaxStages kMaxRanks kMaxFileBytes kLeastBandwidth kLongest kLongestTime kNewest"
        " kLeastSpeed"
        " kMostOutputs MOST_COUNT MOST_GIB"
    ),
    "tags of messages, and what MPI allows": (
        "kTagsOfCall kCallsApart kTagsOfReduction kFirstTag kHashes kCalls kFirstCollectiveTag"
        " kPieceBytes kNeeded _GET_ADDRESS _CALLS _AUDIT _PREEMPTED _PORTS"
        " GET_ADDRESS GET_MASK GET_FLAGS GET_MTU UP LOOPBACK PIECE"
    ),
    "places and counts of arguments": (
        "kWeight kBias kRunningMean kRunningVar kTensors kMomentum kEps"
    ),
    "numbers of formats and exit codes": (
        "_METHOD _FORMATS VERSION INDEX_FORMAT _BAD_INPUT _DOES_NOT_FIT"
    ),
    "what NCCL knows numbers by": "kUniqueIdBytes kNoColor kOldestVersion kProbeBytes ORDERS_EACH",
    "what is shown, and how": (
        "kShown _SHOWN_NAMES MOST_LINES LINE_S _WIDTH kPageWidth kMostLines kRanksWidth"
        " kModules kMostReasons kFactors kWidestReplicas kMostAlternatives kIndent WIDTH"
        " MOST_STAGES MOST_PLAIN QUIET_S CLOCK_S"
    ),
    "values that captures and checks feed in": (
        "_ROWS _SAMPLED_ROWS _LOOKED_AT _AT_ROWS _TRACES _HARMLESS _RUNS"
    ),
    "how long a hang may last": "TIMEOUT_S DEADLINE_S PACKAGES_S",
}
NAMES_NOT_TUNED = {name for names in NOT_TUNED.values() for name in names.split()}


@dataclasses.dataclass
class Number:
    """A constant with its licence; `tuned_by` is empty where it has none."""

    name: str
    value: str
    file: str
    purpose: str = ""
    tuned_by: str = ""
    without_it: str = ""


def sources() -> list[Path]:
    cpp = [
        path
        for root in ("src", "include/rannc")
        for module in MODULES
        for path in (ROOT / root / module).rglob("*")
        if path.suffix in (".h", ".cpp")
    ]
    return sorted(cpp) + sorted((ROOT / "pyrannc").rglob("*.py"))


def licence(lines: list[str], above: int) -> dict[str, str]:
    """What the comment says that stands over the line with this index, with the numbers between."""
    at = above - 1
    while at >= 0 and lines[at].strip() and not re.match(r"\s*(//|#)", lines[at]):
        at -= 1
    comment = []
    while at >= 0 and (found := re.match(r"\s*(?:///?|#:?)\s?(.*)", lines[at])):
        comment.insert(0, found[1])
        at -= 1
    parts = re.split(r"(?:^|\s)(tuned by|without it):\s+", " ".join(comment))
    if parts[1::2] != ["tuned by", "without it"]:
        return {}
    return {"purpose": parts[0], "tuned_by": parts[2], "without_it": parts[4]}


def cpp_numbers(text: str, file: str) -> list[Number]:
    lines, numbers = text.split("\n"), []
    statement = (
        r"^[ ]*(?:inline |static )*constexpr\s+([\w:]+(?:<[^;=]*?>)?)\s+(k[A-Z][^;()]*?[={][^;]*);"
    )
    for found in re.finditer(statement, text, re.MULTILINE):
        numeric = r"(u?int\d*(_t)?|size_t|double|float|bool|auto|std::array\b.*)"
        if not re.fullmatch(numeric, found[1]):
            continue
        known = licence(lines, text.count("\n", 0, found.start()))
        declared = re.split(r",\s*(?=k[A-Z]\w*\s*[={])", found[2])
        for one in declared:
            name, value = re.match(r"(k\w+)\s*=?\s*(.*)", one, re.DOTALL).groups()
            is_number = re.search(r"(?<![A-Za-z_])\d|numeric_limits|_MAX|~", value)
            if is_number and not re.search(r'"|DType|Schedule', value):
                numbers.append(Number(name, " ".join(value.split()), file, **known))
    return numbers


def is_numeric(node: ast.expr) -> bool:
    """Whether an expression is made of numbers alone (names of enumerators count as none)."""
    leaves = [leaf for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)]
    if isinstance(node, ast.Dict):
        return all(is_numeric(value) for value in node.values)
    numbers = [leaf for leaf in leaves if isinstance(leaf.value, int | float)]
    return bool(leaves) and len(numbers) == len(leaves)


def python_numbers(text: str, file: str) -> list[Number]:
    lines, numbers = text.split("\n"), []
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple):
            values = getattr(value, "elts", [])
            pairs = list(zip(target.elts, values, strict=False))
        for name, one in pairs:
            named = isinstance(name, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name.id)
            if named and is_numeric(one):
                known = licence(lines, node.lineno - 1)
                numbers.append(Number(name.id, ast.get_source_segment(text, one), file, **known))
    return numbers


def numbers() -> list[Number]:
    found = []
    for path in sources():
        read = python_numbers if path.suffix == ".py" else cpp_numbers
        found += read(path.read_text(), str(path.relative_to(ROOT)))
    return found


def entry(group: list[Number]) -> str:
    """One licence with all numbers that it is for."""
    first = group[0]
    head = ", ".join(f"`{number.name}` = {number.value}" for number in group)
    lines = [f"- {head} ({first.file}). {first.purpose}"]
    lines += [f"  *Tuned by:* {first.tuned_by}", f"  *Without it:* {first.without_it}"]
    return "\n".join(
        textwrap.fill(
            line, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for line in lines
    )


def page() -> str:
    """The text of docs/tuning.md."""
    groups: dict[tuple, list[Number]] = {}
    for number in numbers():
        if number.tuned_by:
            key = (number.file, number.purpose, number.tuned_by)
            groups.setdefault(key, []).append(number)
    tuned = sum(len(group) for group in groups.values())
    unknown = sum(group[0].tuned_by.startswith("no measurement") for group in groups.values())
    intro = (
        "This page is made from the comments in the sources by `make tuning`; a test compares. It "
        f"has the {tuned} numbers of the planner, the predictions and the runtime that could be "
        f"others, under {len(groups)} licences: what they are for, what they were tuned by, and "
        f"what is lost without them. For {unknown} of the licences no measurement is known. What "
        "each part of the planner's search gains is measured by `benchmarks/planner/ablations.cpp`."
    )
    text = f"# Numbers that somebody chose\n\n{textwrap.fill(intro, 120)}\n"
    of_room: dict[str, list[str]] = {}
    for (file, *_), group in groups.items():
        parts = file.removeprefix("include/rannc/").removeprefix("src/").split("/")
        room = "/".join(parts[:2]) if parts[0] == "pyrannc" else parts[0]
        of_room.setdefault(room, []).append(entry(group))
    for room in sorted(of_room, key=lambda room: (room.startswith("pyrannc"), room)):
        text += f"\n## {room}\n\n" + "\n".join(of_room[room]) + "\n"
    text += "\n## Numbers that nobody tunes\n\n"
    for kind in NOT_TUNED:
        text += textwrap.fill(f"- {kind}", 120, subsequent_indent="  ") + "\n"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
