"""The table of operators beside what torch says of its own: tags and schemas of this release."""

import pytest
import torch

from pyrannc import _C, operators
from pyrannc.operators import Trait

# Where the table says otherwise than torch, and why.
POINTWISE = {
    "random numbers have a tag of their own": (
        "bernoulli exponential native_dropout normal random uniform"
    ),
    "gives what it is given": "_conj _to_copy alias copy detach fill lift lift_fresh "
    "lift_fresh_copy zero",
    "looks the elements up in its other operand, whole": "bucketize searchsorted",
    "has no tag, though it is": "__iand__ __ior__ __ixor__ floor_divide hardswish polar",
    "of two tensors alone": "max min",
}
REDUCTIONS = {
    "has no tag, though it is": (
        "cosine_similarity histc kthvalue linalg_norm median mode nanmean nanmedian "
        "pairwise_distance"
    ),
}
VIEWS = {
    "rows move alike, in new memory": (
        "_unsafe_view narrow_copy unsafe_chunk unsafe_split unsafe_split_with_sizes view_copy"
    ),
    "lists of them": "broadcast_tensors",
    "gives what it is given": (
        "_conj alias conj contiguous detach imag lift_fresh pin_memory positive real "
        "resolve_conj resolve_neg to"
    ),
    "elements overlap": "as_strided unfold",
}
DRAWS = {
    "its kernel drops nothing; called so": "_native_multi_head_attention",
}
DRAWS_ELSEWHERE = {
    "what lstm, gru and rnn call, which graphs have": "_cudnn_rnn _lstm_mps miopen_rnn",
    "asks which kernel attention has": "_fused_sdp_choice",
    "of nested tensors": "_nested_tensor_softmax_with_shape",
}
OF_SCRIPTS = {"__matmul__", "cpu", "cuda"}  # of TorchScript alone


def listed(reasons):
    return {name for names in reasons.values() for name in names.split()}


OF_TENSORS = frozenset(torch._C._dispatch_get_all_op_names())


def overloads(name):
    """Those of an operator and of the one in place, without those that write into ``out``, and
    those of numbers alone."""
    packets = [getattr(torch.ops.aten, each, None) for each in (name, f"{name}_")]
    found = [getattr(each, o) for each in packets if each is not None for o in each.overloads()]
    return [
        each
        for each in found
        if each.name() in OF_TENSORS and not each._overloadname.endswith("out")
    ]


def is_made_of_others(name):
    return all(
        torch._C._dispatch_has_kernel_for_dispatch_key(each.name(), "CompositeImplicitAutograd")
        for each in overloads(name)
    )


def tagged(tag):
    return {name for name in _C.ir.operators() if any(tag in each.tags for each in overloads(name))}


def gives_views(name):
    return any(
        result.alias_info is not None and not result.alias_info.is_write
        for each in overloads(name)
        for result in each._schema.returns
    )


def test_the_table_has_operators_of_torch():
    assert {name for name in _C.ir.operators() if not overloads(name)} <= OF_SCRIPTS


@pytest.mark.parametrize(
    ("trait", "tag", "reasons"),
    [
        (Trait.pointwise, "pointwise", POINTWISE),
        (Trait.draws, "nondeterministic_seeded", DRAWS),
        (Trait.reduction, "reduction", REDUCTIONS),
    ],
)
def test_kinds_are_those_of_torchs_tags(trait, tag, reasons):
    if not hasattr(torch.Tag, tag):
        pytest.skip(f"this release has no tag {tag}")
    differ = operators.of(trait) ^ tagged(getattr(torch.Tag, tag))
    # Those have no tags of their own.
    differ = {name for name in differ if overloads(name) and not is_made_of_others(name)}
    assert differ <= listed(reasons)


def test_views_are_those_of_torchs_schemas():
    theirs = {name for name in _C.ir.operators() if gives_views(name)}
    assert operators.of(Trait.view) ^ theirs <= listed(VIEWS)


def test_whatever_draws_is_known_to():
    drawing = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch.Tag.nondeterministic_seeded in _tags(name)
    }
    assert "aten::bernoulli" in drawing
    missed = {name.partition(".")[0] for name in drawing if not _C.ir.may_draw(name)}
    assert missed <= {f"aten::{name}" for name in listed(DRAWS_ELSEWHERE)}


def _tags(name):
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default").tags


def test_what_a_capture_computes_does_not_draw():
    for trait in (Trait.known, Trait.mask, Trait.checked, Trait.unset):
        assert not operators.of(trait, Trait.draws)


def test_of_the_first_operand_of_these_only_sizes_count():
    named_so = {name for name in _C.ir.operators() if name.endswith("_like")}
    assert operators.of(Trait.like) >= named_so
    for name in operators.of(Trait.like):
        assert overloads(name)[0]._schema.arguments[0].name == "self"


def test_exceptions_are_of_the_table():
    for reasons in (POINTWISE, REDUCTIONS, VIEWS, DRAWS):
        assert listed(reasons) <= _C.ir.operators()
