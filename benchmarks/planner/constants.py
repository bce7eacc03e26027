"""What each number of the planner's search is worth: plans and planning time with it changed.

    python -m benchmarks.planner.constants --json build-bench/constants.json
    python -m benchmarks.planner.constants kMargin kWave --problems 300

In a copy of the sources (build-bench/constants) one number at a time is changed, the core is built
without torch, and `benchmarks/planner/answers.cpp` plans a fixed set of problems of both versions
of the files: small ones with tight memory and slow links, branched ones, networks of cells, and
transformers. Printed for each: how much longer the plans are than with the number as it is, on
average and at most, how many have no plan any more, and the processor's time of planning over that
with the number as it is. No torch, no device; one processor, an hour in all.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build-bench" / "constants"
COPIED = ("CMakeLists.txt", "src", "include", "tests", "third_party", "benchmarks")

#: name -> (file below src/partition, other values); a value is what stands behind the `=`, or for
#: several numbers of one declaration, the first of them.
NUMBERS = {
    "kMargin": ("search/search.h", ("0.05", "0.20")),
    "kWave": ("search/search.cpp", ("1", "16")),
    "kKeptShapes": ("search/search.cpp", ("8", "32")),
    "kRefinedShapes": ("search/search.cpp", ("4", "16")),
    "kLikelyCount": ("search/search.cpp", ("0.0", "1.0")),
    "kBeam": ("search/search.cpp", ("1", "4")),
    "kMostColumnChoices": ("search/search.cpp", ("4", "16")),
    "kMostPositions": ("search/search.cpp", ("32", "128")),
    "kMostLines": ("search/search.cpp", ("1", "2")),
    "kMostBorderWork": ("search/search.cpp", ("1e6", "4e6")),
    "kRefineWork": ("search/search.cpp", ("3'000'000", "12'000'000")),
    "kMostRefinements": ("search/search.cpp", ("2000", "8000")),
    "kAnnealed": ("search/search.cpp", ("1", "4")),
    "kMostAnnealed": ("search/search.cpp", ("1500", "6000")),
    "kUsualMicroBatches": ("search/search_at_resolution.cpp", ("1024", "16384")),
    "kZoomedShapes": ("search/search_at_resolution.cpp", ("1", "6")),
    "kMostSetBlocks": ("blocks/down_sets.h", ("64", "256")),
    "kMostMicroBatches": ("problem/search_space.cpp", ("int64_t{1} << 14",)),
    "kFewGroups": ("improve/refine.cpp", ("4", "16")),
    "kFewRanks": ("stages/stage_costs.h", ("16", "64")),
}


def declaration(name):
    """Of the number: its value is the second group."""
    return re.compile(rf"(\b{name}\s*=\s*)((?:int64_t\{{1\}} << )?[\d'.e]+)")


def build():
    subprocess.run(
        ["ninja", "-C", str(WORK / "build"), "-j1", "answers"],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def prepare():
    tree = WORK / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, tree / name)
    options = ["-G", "Ninja", "-DRANNC_TORCH=OFF", "-DRANNC_BENCHMARKS=ON"]
    subprocess.run(
        ["cmake", "-S", str(tree), "-B", str(WORK / "build"), *options],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    build()


def answers(problems):
    """name of a problem -> [time of its plan in ns or None, seconds of planning]"""
    command = [str(WORK / "build" / "benchmarks" / "answers"), str(problems)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compare(whole, changed):
    pairs = [(whole[name][0], changed[name][0]) for name in whole]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    longer = [100 * (b / a - 1) for a, b in both]
    return {
        "problems": len(both),
        "mean": sum(longer) / len(longer),
        "worst": max(longer),
        "best": min(longer),
        "by more than 1 %": sum(loss > 1 for loss in longer),
        "lost": sum(a is not None and b is None for a, b in pairs),
        "found": sum(a is None and b is not None for a, b in pairs),
        "time": sum(s for _, s in changed.values()) / sum(s for _, s in whole.values()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these numbers")
    parser.add_argument("--problems", type=int, default=200, help="of each small family")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NUMBERS):
        sys.exit(f"no numbers of this list: {', '.join(sorted(unknown))}")
    os.nice(10)
    prepare()
    whole = answers(arguments.problems)
    found = []
    print(
        f"{len(whole)} problems, {sum(s for _, s in whole.values()):.0f} s of planning", flush=True
    )
    for name in arguments.names or NUMBERS:
        file, values = NUMBERS[name]
        path = WORK / "tree" / "src" / "partition" / file
        text = path.read_text()
        match = declaration(name).search(text)
        for value in values:
            path.write_text(declaration(name).sub(rf"\g<1>{value}", text, count=1))
            build()
            row = {"name": name, "is": match[2], "instead": value}
            row |= compare(whole, answers(arguments.problems))
            found.append(row)
            print(
                f"{name:20} {row['is']:>16} -> {value:16} {row['mean']:+6.2f} % on average, "
                f"{row['best']:+6.2f} to {row['worst']:+6.2f} %, {row['by more than 1 %']} of "
                f"{row['problems']} longer by more than 1 %, {row['lost']} lost, {row['found']} "
                f"found, planning {row['time']:.2f} x",
                flush=True,
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(found, indent=1))
        path.write_text(text)


if __name__ == "__main__":
    main()
