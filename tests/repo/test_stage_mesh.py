"""The mesh of a stage alone says which rank is which replica, and how many replicas there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Code that counts the ranks of a stage, takes one by number, or asks for the number of one.
PATTERNS = [
    re.compile(r"\bstages?(\[[^;]*\])?(\.|->)ranks(\.size\(\)|\[|\.front\(\)|\.at\()"),
    re.compile(r"\bstage_ranks\[[^;]*?\](\.size\(\)|\[|\.front\(\)|\.at\()"),
    re.compile(r"\blayout_?\.ranks\([^;]*\)(\.size\(\)|\[|\.front\(\)|\.at\()"),
    re.compile(r"\bsize\([^;]*\.ranks\("),
    re.compile(r"- (\w+(\.|->))*ranks\.begin\(\)"),
    re.compile(r"\b\w+ = [^;=]*\bstage_ranks\["),
]
# By file: why it may.
ALLOWED = {
    "src/plan/verify/program.cpp": "proves programs without the code that made them",
    "src/plan/verify/orders.cpp": "proves programs without the code that made them",
    "src/plan/verify/communications.cpp": "proves programs without the code that made them",
    "src/plan/simulate_in_order.cpp": "the ranks that meet in a communication of a stage",
    "src/runtime/stage/sync_batch_norm.cpp": "the ranks of one meeting, those with rows",
}


def lines_that_take_ranks_for_replicas(text: str) -> list[str]:
    code = re.sub(r"//.*", "", text)
    statements = re.split(r"(?<=[;{}])", " ".join(code.split()))
    return [one.strip() for one in statements if any(p.search(one) for p in PATTERNS)]


def sources():
    for top in ("src", "include"):
        for path in (ROOT / top).rglob("*"):
            # `comm` knows no stages.
            if path.suffix in {".h", ".cpp"} and "comm" not in path.parts:
                yield path


def test_nobody_else_takes_the_ranks_of_a_stage_for_its_replicas():
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sources()
        if (lines := lines_that_take_ranks_for_replicas(path.read_text()))
    }
    others = {name: lines for name, lines in found.items() if name not in ALLOWED}
    assert not others, f"ask plan::mesh_of() or Program::mesh(): {others}"
    assert set(ALLOWED) <= set(found), "an entry that is no longer needed"


@pytest.mark.parametrize(
    "line",
    [
        "const auto replicas = static_cast<int>(stage.ranks.size());",
        "if (program.stage_ranks[static_cast<size_t>(stage)].size() < 2) continue;",
        "send_to(program.stage_ranks[stage][replica]);",
        "local.replica = static_cast<int>(place - stage.ranks.begin());",
        "const std::vector<Rank>& ranks = program_.stage_ranks[stage];",
        "rows /= size(draft.ranks(s));",
        "plan.stages[s].ranks[replica];",
    ],
)
def test_the_search_finds(line):
    assert lines_that_take_ranks_for_replicas(line)


@pytest.mark.parametrize(
    "line",
    [
        "for (Rank rank : program.stage_ranks[stage]) job.stages_on[rank].push_back(stage);",
        "number_ranges(stage.ranks);",
        "if (reduction.ranks.size() < 2) continue;",
        "const int replicas = program.mesh(stage).replicas();",
    ],
)
def test_the_search_leaves_alone(line):
    assert not lines_that_take_ranks_for_replicas(line)
