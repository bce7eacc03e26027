"""The oracle of the whole: loss, gradients, buffers, outputs and parameters equal one process.

``make test`` runs a selection that covers every model, plan, micro-batch count and
an uneven batch; ``make test-all`` runs one in eight of all combinations, which are 15,500, drawn
with RANNC_TEST_SEED (0 by default); RANNC_TEST_EVERY=1 in the environment runs every one, which
takes most of a day. All cases of a group share one start of four ranks.

The planner cuts small models where that is fastest, so that a stage may be left with a reshape and
no parameter. Plans like ``2+2~7`` have their borders at places that are drawn with seed 7 instead;
RANNC_TEST_SEED=N in the environment draws others.
"""

import itertools
import json
import os
import random

import mpi
import nccl
import pytest
import standin

SCRIPT = mpi.JOBS / "equality.py"
FIRST_SEED = int(os.environ.get("RANNC_TEST_SEED", "0"))
EVERY = int(os.environ.get("RANNC_TEST_EVERY", "8"))
PLANS = ["4", "2+2", "1+3", "3+1", "2+1+1", "1+1+1+1"]
OWN = [
    "mlp",
    "residual_cnn",
    "unet",
    "encoder",
    "encoder_sequence_first",
    "lstm",
    "lstm_sequence_first",
    "tied_lm",
    "several_inputs",
    "in_place",
    "script_loop",
    "dict_output",
    "dataclass_output",
    "kwargs",
    "no_grad",
    "custom_function",
    "frozen",
    "stray_tensor",
    "buffers",
    "loss",
    "experts",
    "filled",
    "transformer",
]
TRANSFORMERS = ["bert", "gpt2", "t5", "llama", "vit", "resnet"]
LOSSES = [
    "several_terms",
    "weights_and_smoothing",
    "at_least_one",
    "sample_weights",
    "ignored",
    "standardised",
    "masked_mean",
    "selected_labels",
    "selected_errors",
    "class_weights",
    "label_smoothing",
    "likelihood",
    "total",
    "averaged_by_hand",
]
LANGUAGE_LOSSES = ["pretraining_bert", "padded_gpt2", "choosing_bert", "masked_bert"]
DROPOUTS = [
    "dropout_encoder",
    "dropout_attention",
    "dropout_kinds",
    "dropout_language",
    "dropout_bert",
    "dropout_gpt2",
    "dropout_t5",
]
# BatchNorm of a share with one row per channel is undefined, so these get larger batches.
NORMALISED = {"residual_cnn", "unet", "resnet", "dropout_kinds"}
# Micro-batches and rows of each rank. Four ranks have never 8 rows, an unbatched input's width.
SIZES = [(1, 3), (2, 6), (4, 4), (2, 3), (4, 5)]


# These return their loss, so that all three schedules train them; the others know fill-drain only.
WITH_LOSS = {"kwargs", "loss", "experts", "tied_lm", *TRANSFORMERS, *DROPOUTS[3:]}
# Four stages on two groups of ranks; micro-batches are whole rounds of the groups.
INTERLEAVED_PLANS, INTERLEAVED_SIZES = ["2x(2+2)", "2x(1+3)"], [(2, 6), (4, 5)]


def case(
    model,
    plan,
    micro_batches,
    rows,
    dtype="float64",
    optimizer="sgd",
    recompute="auto",
    schedule="auto",
):
    rows = rows + 4 if model in NORMALISED else rows
    name = f"{model}/{plan}/m{micro_batches}/b{rows}/{dtype}/{optimizer}"
    if schedule != "auto":
        return f"{name}/{recompute}/{schedule}"
    return name if recompute == "auto" else f"{name}/{recompute}"


def drawn(plans, first=FIRST_SEED):
    """The plans again and again, each time with other borders."""
    for seed, plan in enumerate(itertools.cycle(plans), start=first):
        yield plan if plan in ("4", "auto") else f"{plan}~{seed}"


def selection(models):
    """Every model under a forced plan, and every second one under the automatic; plans and sizes
    rotate.

    Of the forced ones three in five have drawn borders, the others those of the planner.
    """
    plans, sizes = itertools.cycle(PLANS), itertools.cycle(SIZES)
    borders = itertools.cycle(["drawn", "drawn", "planned", "drawn", "planned"])
    seeds = itertools.count(FIRST_SEED)
    settings = itertools.cycle(
        [("float64", "adamw", "auto"), ("float64", "sgd", "always"), ("float32", "sgd", "auto")]
    )
    for number, model in enumerate(models):
        if number % 2 == 0:
            yield case(model, "auto", 1, 4, "float32", "sgd")
        plan = next(plans)
        if next(borders) == "drawn" and plan != "4":
            plan = f"{plan}~{next(seeds)}"
        yield case(model, plan, *next(sizes), *next(settings))
    # A model with a loss has run under 1F1B above, unless the planner has chosen otherwise.
    others = itertools.cycle(
        [
            ("2x(2+2)", 4, 5, "auto", "interleaved"),
            ("2+2", 4, 5, "mixed", "gpipe"),
            ("1+1+1+1", 4, 5, "mixed", "1f1b"),
            ("2x(1+3)", 2, 6, "mixed", "interleaved"),
            ("1+3", 2, 3, "always", "gpipe"),
            ("2+1+1", 4, 4, "never", "1f1b"),
        ]
    )
    for model in sorted(WITH_LOSS & set(models)):
        plan, micro_batches, rows, recompute, schedule = next(others)
        yield case(model, plan, micro_batches, rows, "float64", "sgd", recompute, schedule)


# Rows of each rank, step by step: ranks without rows, a last batch of fewer rows than
# micro-batches, and batches larger than the first. No 8 here either, for a rank or all together.
UNEVEN = ["7.1.5.6_0.2.5.2_2.0.1.0", "0.9.4.5_9.7.6.6_2.3.1.1"]
UNEVEN_NORMALISED = "7.5.9.6_4.6.9.5_0.11.7.9"


def uneven(models, plans, ways=("",)):
    """Every model once with changing batches; plans, sizes, micro-batch counts and ``ways`` to run,
    which are ends of names, rotate."""
    plans = drawn(plans)
    sizes, counts, ways = map(itertools.cycle, (UNEVEN, [3, 2, 4], ways))
    for model in models:
        rows, count = next(sizes), next(counts)
        if model in NORMALISED:
            rows, count = UNEVEN_NORMALISED, 2
        elif model in LOSSES:  # of three rows, all labels may be ignored
            rows = UNEVEN[1]
        yield f"{model}/{next(plans)}/m{count}/b{rows}/float64/sgd{next(ways)}"


def full_matrix(models):
    settings = [
        ("float64", "adamw", "auto"), ("float32", "sgd", "auto"), ("float64", "sgd", "never"),
        ("float64", "sgd", "always"),
    ]  # fmt: skip
    for model, plan, size in itertools.product(models, ["auto", *PLANS], SIZES):
        for setting in settings:
            yield case(model, plan, *size, *setting)
    for model in models:
        if model in WITH_LOSS:
            yield from schedules(model, itertools.repeat(SIZES))
        elif model in LOSSES + LANGUAGE_LOSSES:  # these are alike, so sizes take turns
            yield from schedules(model, ([size] for size in itertools.cycle(SIZES)))
        else:
            for plan, size in itertools.product(PLANS[1:], SIZES):
                yield case(model, plan, *size, "float64", "sgd", "mixed")
    plans = drawn(PLANS[1:])
    for model, size, recompute in itertools.product(models, SIZES, ["never", "mixed"]):
        for _ in PLANS[1:]:
            yield case(model, next(plans), *size, "float64", "sgd", recompute)
        if model in WITH_LOSS and size in INTERLEAVED_SIZES:
            for plan in INTERLEAVED_PLANS:
                seeded = f"{plan}~{FIRST_SEED + size[0]}"
                yield case(model, seeded, *size, "float64", "sgd", recompute, "interleaved")
    ways = [
        "/never/gpipe", "/always/auto", "/mixed/auto", "/mixed/gpipe", "/never/auto",
        "/always/gpipe",
    ]  # fmt: skip
    for plan in ["auto", *PLANS]:
        yield from uneven([model for model in models for _ in ways], [plan], ways)
        for model in NORMALISED & {*models}:
            for recompute in ["never", "always", "mixed"]:
                rows = f"b{UNEVEN_NORMALISED}/float64/sgd"
                yield f"{model}/{plan}/m1/{rows}/{recompute}/auto/sync"
    for model in models:
        if model in WITH_LOSS:
            for plan, rows in itertools.product(INTERLEAVED_PLANS, UNEVEN):
                yield f"{model}/{plan}/m4/b{rows}/float64/sgd/mixed/interleaved"


def schedules(model, sizes):
    """A model that returns its loss under every plan, schedule and recompute, in the next sizes."""
    for recompute in ["never", "always", "mixed"]:
        for plan, schedule in itertools.product(PLANS, ["1f1b", "gpipe"]):
            for size in next(sizes):
                yield case(model, plan, *size, "float64", "sgd", recompute, schedule)
        for plan, size in itertools.product(INTERLEAVED_PLANS, INTERLEAVED_SIZES):
            yield case(model, plan, *size, "float64", "sgd", recompute, "interleaved")


def losses(models):
    """Each model once: plans, schedules, sizes and recompute rotate. (test_losses.py has all, in
    parts.)"""
    plans = [
        ("2+2", "1f1b"), ("2+1+1", "gpipe"), ("2x(2+2)", "interleaved"), ("1+3", "auto"),
        ("4", "auto"), ("1+1+1+1", "1f1b"), ("auto", "auto"),
    ]  # fmt: skip
    recomputes = ["auto", "mixed", "always", "never"]
    for model, (plan, schedule), size, recompute in zip(
        models, *map(itertools.cycle, (plans, SIZES[1:], recomputes)), strict=False
    ):
        yield f"{case(model, plan, *size)}/{recompute}/{schedule}"


def synchronised():
    """Batch normalisation by the whole batch, which is one micro-batch. Rows: even ones, one row in
    each share, ranks without rows."""
    few, changing = "1.1.1.1_2.0.1.1_0.3.0.2", "3.1.4.2_0.2.5.2_1.6.0.4"
    yield from (
        f"{name}/sync"
        for name in [
            f"flat_norms/4/m1/b{few}/float64/sgd/auto/auto",
            f"flat_norms/2+2/m1/b{changing}/float64/sgd/always/auto",
            f"flat_norms/1+3/m1/b{few}/float64/adamw/mixed/gpipe",
            f"flat_norms/3+1/m1/b{changing}/float64/sgd/never/auto",
            "flat_norms/auto/m1/b3/float32/sgd/auto/auto",
            f"losing_norms/4/m1/b{changing}/float64/sgd/always/1f1b",
            f"losing_norms/2+2/m1/b{few}/float64/sgd/never/1f1b",
            f"losing_norms/1+3/m1/b{changing}/float64/adamw/auto/gpipe",
            f"losing_norms/3+1/m1/b{few}/float64/sgd/always/1f1b",
            "losing_norms/2+1+1/m1/b3/float32/sgd/auto/1f1b",
            f"volume_norms/4/m1/b{few}/float64/sgd/auto/auto",
            f"volume_norms/2+2/m1/b{changing}/float64/sgd/mixed/auto",
            f"residual_cnn/1+3/m1/b{changing}/float64/sgd/always/auto",
            "residual_cnn/4/m1/b3/float32/sgd/auto/auto",
        ]
    )


def instances():
    """Running statistics of instances: of the whole batch, in one update, whatever the plan."""
    yield from [
        f"instance_norms/1+1+1+1/m4/b{UNEVEN[0]}/float64/sgd/mixed",
        f"instance_norms/2+2~{FIRST_SEED}/m3/b{UNEVEN[1]}/float64/sgd",
    ]


def dropouts():
    """In and around attention, beside batch normalisation, on a value without rows."""
    yield from [
        f"dropout_encoder/1+3/m3/b{UNEVEN[0]}/float64/sgd/mixed",
        "dropout_attention/1+1+1+1/m4/b4/float64/sgd/mixed",
        "dropout_kinds/2+1+1/m2/b10/float64/sgd/mixed",
        f"dropout_kinds/3+1/m1/b{UNEVEN[1]}/float64/sgd/always/auto/sync",
        "dropout_language/2x(2+2)/m4/b5/float64/sgd/mixed/interleaved",
        f"dropout_language/3+1/m4/b{UNEVEN[0]}/float64/adamw/never/1f1b",
        "dropout_bert/2+2/m2/b3/float32/sgd/always/gpipe",
        "dropout_t5/2x(1+3)/m2/b6/float64/sgd/always/interleaved",
    ]


def on_a_device():
    """A covering selection for a device that works late, in memory of its own: models, schedules,
    recompute, uneven batches, statistics of the whole batch, told random numbers."""
    yield from [
        "mlp/2+2~7/m2/b6/float64/sgd",
        "residual_cnn/auto/m1/b8/float32/sgd",
        "unet/2+1+1/m2/b10/float64/sgd",
        "gpt2/1+1+1+1/m4/b4/float64/sgd/mixed/1f1b",
        "loss/1+3/m2/b3/float64/sgd/always/gpipe",
        "tied_lm/2x(2+2)/m4/b5/float64/adamw/auto/interleaved",
        f"tied_lm/2+1+1/m3/b{UNEVEN[0]}/float64/sgd",
        "bert/2+2~5/m2/b6/float64/sgd/mixed",
        "t5/1+3/m2/b3/float64/sgd",
        "padded_gpt2/2+2/m2/b6/float64/sgd/mixed/1f1b",
        "dropout_language/3+1/m4/b4/float64/sgd/never/1f1b",
        "flat_norms/2+2/m1/b3/float64/sgd/auto/auto/sync",
    ]


def over_nccl():
    """Another covering selection: schedules, replicas, recompute, uneven batches, tied weights,
    running statistics and those of the whole batch."""
    yield from [
        "loss/1+3/m2/b3/float64/sgd/always/gpipe",
        "gpt2/1+1+1+1/m4/b4/float64/sgd/mixed/1f1b",
        "tied_lm/2x(2+2)/m4/b5/float64/adamw/auto/interleaved",
        f"tied_lm/2+1+1/m3/b{UNEVEN[0]}/float64/sgd",
        "unet/2+1+1/m2/b10/float64/sgd",
        "flat_norms/2+2/m1/b3/float64/sgd/auto/auto/sync",
    ]


def on_fewer_devices(stages):
    """On one or two devices: what has no neighbours, or one."""
    yield from [
        f"gpt2/{stages}/m2/b4/float64/sgd/mixed/1f1b",
        f"tied_lm/{stages}/m2/b4/float64/adamw/always/gpipe",
        f"dropout_language/{stages}/m2/b4/float64/sgd/never",
    ]


GROUPS = {
    "own": [*selection(OWN), *uneven(OWN, [*PLANS, "auto"]), *instances()],
    "transformers": [
        *selection(TRANSFORMERS),
        *uneven(["bert", "t5", "resnet"], PLANS[1:]),
        f"gpt2/2x(2+2)/m4/b{UNEVEN[0]}/float64/sgd/auto/interleaved",
        "mixtral/auto/m1/b4/float32/sgd",
        "mixtral/2+2/m4/b5/float32/adamw",
        f"mixtral/1+3/m3/b{UNEVEN[0]}/float32/sgd/mixed/gpipe",
    ],
    "losses": [
        *losses(LOSSES[:7] + LANGUAGE_LOSSES[:3]),
        *uneven([*LOSSES[:2], LANGUAGE_LOSSES[0]], PLANS[3:]),
    ],
    "synchronised": [*synchronised()],
    "dropouts": [*dropouts()],
    "standin": [*on_a_device()],
    "nccl": [*over_nccl()],
    "one device": [*on_fewer_devices("1")],
    "two devices": [*on_fewer_devices("1+1")],
}
RANKS = {"one device": 1, "two devices": 2}  # else four
# Where the wrapped models of a group are, and how their messages travel.
ON_A_DEVICE = {
    "standin": {"TEST_DEVICE": "standin"},
    "one device": {"TEST_DEVICE": "standin"},
    "two devices": {"TEST_DEVICE": "standin"},
    "nccl": {
        "TEST_DEVICE": "standin",
        "RANNC_DEVICE_TRANSPORT": "nccl",
        "RANNC_NCCL_LIBRARY": str(nccl.FILE),
    },
}
_reports = {}


def report_of(group, names, timeout):
    """Runs a group once; afterwards the reports of its cases, by name."""
    if group not in _reports:
        where = ON_A_DEVICE.get(group, {"TEST_DEVICE": "cpu"})
        done = mpi.run([str(SCRIPT), *names], RANKS.get(group, 4), timeout, env=where)
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"case"')]
        _reports[group] = {entry["case"]: entry for entry in map(json.loads, lines)}
        _reports[group]["end"] = (done.stdout + done.stderr)[-3000:]
    return _reports[group]


# Of models with fewer than four; a whole LSTM is one operator.
PIECES_WITH_PARAMETERS = {"lstm": 2, "lstm_sequence_first": 2, "stray_tensor": 2}


def check(group, name, names, timeout):
    report = report_of(group, names, timeout)
    assert name in report, (
        f"the ranks ended before this case; the end of their output:\n{report['end']}"
    )
    assert report[name]["failures"] == [], report[name]["plan"]
    # As small as a bias, but every stage has something to train, where the model has so many pieces
    # with parameters that no border cuts.
    model, stages = name.split("/")[0], name.split("/")[1].split("~")[0].count("+") + 1
    if "~" in name and stages <= PIECES_WITH_PARAMETERS.get(model, 4):
        assert report[name]["plan"]["smallest_share"] > 0, report[name]["plan"]


@pytest.mark.parametrize("name", GROUPS["own"])
def test_own_models_equal_one_process(name):
    check("own", name, GROUPS["own"], timeout=400)


@pytest.mark.parametrize("name", GROUPS["transformers"])
def test_transformers_models_equal_one_process(name):
    check("transformers", name, GROUPS["transformers"], timeout=400)


@pytest.mark.parametrize("name", GROUPS["losses"])
def test_losses_equal_one_process(name):
    check("losses", name, GROUPS["losses"], timeout=400)


@pytest.mark.parametrize("name", GROUPS["synchronised"])
def test_batch_normalisation_of_the_whole_batch_equals_one_process(name):
    check("synchronised", name, GROUPS["synchronised"], timeout=200)


@pytest.mark.parametrize("name", GROUPS["dropouts"])
def test_dropout_equals_one_process_with_its_masks(name):
    check("dropouts", name, GROUPS["dropouts"], timeout=200)


@pytest.mark.skipif(not standin.built(), reason="the stand-in device was not built")
@pytest.mark.parametrize("name", GROUPS["standin"])
def test_models_on_a_stand_in_device_equal_one_process(name):
    check("standin", name, GROUPS["standin"], timeout=800)


@pytest.mark.skipif(not standin.built(), reason="the stand-in device was not built")
@pytest.mark.parametrize("group", RANKS)
def test_models_on_one_and_two_stand_in_devices_equal_one_process(group):
    for name in GROUPS[group]:
        check(group, name, GROUPS[group], timeout=800)


@pytest.mark.skipif(not nccl.FILE.exists(), reason="the stand-in NCCL was not built")
@pytest.mark.parametrize("name", GROUPS["nccl"])
def test_models_over_the_stand_in_nccl_equal_one_process(name):
    check("nccl", name, GROUPS["nccl"], timeout=800)


@pytest.mark.all
@pytest.mark.skipif(not nccl.FILE.exists(), reason="the stand-in NCCL was not built")
def test_the_selection_for_a_device_over_the_stand_in_nccl():
    names = list(on_a_device())
    ON_A_DEVICE["all nccl"] = ON_A_DEVICE["nccl"]
    report = report_of("all nccl", names, timeout=1600)
    wrong = {name: report.get(name, {}).get("failures", "not run") for name in names}
    assert not any(wrong.values()), wrong


@pytest.mark.all
@pytest.mark.parametrize("model", OWN + TRANSFORMERS + LOSSES + LANGUAGE_LOSSES + DROPOUTS)
def test_combinations_equal_one_process(model):
    everything = list(full_matrix([model]))
    draw = random.Random(f"{FIRST_SEED} {model}")
    names = draw.sample(everything, -(-len(everything) // EVERY))
    report = report_of(f"all {model}", names, timeout=3600)
    missing = [name for name in names if name not in report]
    wrong = {name: report[name]["failures"] for name in names if name in report}
    assert not missing and not any(wrong.values()), (missing, {k: v for k, v in wrong.items() if v})
