"""Ranks that scale a loss differently get an error, where their gradients would be of no one loss.

Under 1F1B ``loss.backward()`` sends nothing, so what came in is compared with the ranks' next call.
"""

import json

import mpi
import pytest

# After a backward that was right: what each rank does, and what the error of every rank says.
STAGES = {"two replicas": [2], "two stages": [1, 1]}
DIFFERENT = {
    "scaled": (
        "(loss * (1 + rank)).backward(); model(x)",
        "the ranks scale output['loss'] of forward pass 1 differently; the gradients that its "
        "backward got are\n  rank 0: 1.0\n  rank 1: 2.0\n",
    ),
    "retained": (
        "loss.backward(retain_graph=True); (loss * (1 + rank)).backward(); model(x)",
        "\n  rank 0: 1.0\n  rank 1: 1.0, 2.0\n",
    ),
    "at a later call": (
        "other = model(x)['loss']; other.backward(); (loss / (2 - rank)).backward(); model(x)",
        "of forward pass 1 differently; the gradients that its backward got are\n"
        "  rank 0: 0.5\n  rank 1: 1.0\n",
    ),
    "not a number": (
        "(loss * (float('nan') if rank else 1.0)).backward(); model(x)",
        "\n  rank 0: 1.0\n  rank 1: nan\n",
    ),
    "before the state is read": (
        "(loss * (1 + rank)).backward(); model.state_dict()",
        "\n  rank 0: 1.0\n  rank 1: 2.0\n",
    ),
    "before the norm": (
        "(loss * (1 + rank)).backward(); model.clip_grad_norm(1.0)",
        "\n  rank 0: 1.0\n  rank 1: 2.0\n",
    ),
    "before what is kept is summed": (
        "with model.no_sync(): other = model(x)['loss']\n"
        "(other * (1 + rank)).backward(); model.allreduce_grads()",
        "\n  rank 0: 1.0\n  rank 1: 2.0\n",
    ),
    "state of one rank": (
        "model.state_dict() if rank == 0 else model(x)",
        "the ranks do not do the same:\n"
        "  rank 0: state_dict()\n  rank 1: forward pass 2 with grad, training mode",
    ),
}
MISSING = "rank or loss.backward(); model(x)"  # of two replicas that is wrong
ALIKE = {
    "nothing": "model(x)",
    "the same": "(loss * 0.3).backward(); model(x)",
    "the last bits": "(loss * (0.3 + 1e-8 * rank)).backward(); model(x)",
    "no numbers": "(loss * float('nan')).backward(); model(x)",
    "one parameter after the other": "[torch.autograd.grad(loss, p, retain_graph=True) "
    "for p in model.parameters(from_global=False)]; model(x)",
}


@pytest.fixture(scope="module", params=["1f1b", "gpipe"])
def texts(request):
    """What each rank's error said, by stages and case; None for no error."""
    done = mpi.run(
        f"""
        import json, pyrannc, torch
        from two_layers import TwoLayers

        rank = pyrannc.get_rank()
        x = torch.randn(3 + rank, 4, dtype=torch.float64)
        for stages, replicas in {STAGES!r}.items():
            for name, code in { ({n: c for n, (c, _) in DIFFERENT.items()} | ALIKE)!r}.items():
                if {request.param!r} == "gpipe" and "p in model" in code:
                    continue  # ranks hold different numbers of parameters
                config = pyrannc.Config(
                    partition_num=len(replicas), replica_nums=replicas, pipeline_num=2,
                    schedule={request.param!r}, comm_timeout_s=30, calibrate=False,
                )
                model = pyrannc.RaNNCModule(TwoLayers().double(), config=config)
                model(x)["loss"].backward()
                own = list(model.parameters(from_global=False))
                before = [parameter.grad.clone() for parameter in own]
                loss = model(x)["loss"]
                text, touched = None, False
                try:
                    exec(code)
                except pyrannc.RaNNCError as error:
                    text = str(error)
                after = [parameter.grad for parameter in model.parameters(from_global=False)]
                touched = not all(map(torch.equal, before, after))
                line = json.dumps([stages, name, rank, text, touched])
                print(line + "\\n", end="", flush=True)
            if {request.param!r} == "1f1b":
                model = pyrannc.RaNNCModule(TwoLayers().double(), config=config)
                loss = model(x)["loss"]
                text = None
                try:
                    exec({MISSING!r})
                except pyrannc.RaNNCError as error:
                    text = str(error)
                line = json.dumps([stages, "missing", rank, text, None])
                print(line + "\\n", end="", flush=True)
        """,
        2,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for line in filter(None, done.stdout.splitlines()):
        stages, name, rank, text, touched = json.loads(line)
        found[stages, name, rank] = text, touched
    return request.param, found


@pytest.mark.parametrize("stages", STAGES)
def test_ranks_that_scale_a_loss_differently_are_an_error_on_every_rank(stages, texts):
    schedule, found = texts
    for name, (_, message) in DIFFERENT.items():
        for rank in range(2):
            text, touched = found[stages, name, rank]
            if name == "retained" and schedule == "gpipe":  # compared with each of the two
                message = "\n  rank 0: 1.0\n  rank 1: 2.0\n"
            assert text and message in text, (name, rank, text)
            if schedule == "gpipe" and name == "scaled":
                assert not touched  # compared before anything is sent


@pytest.mark.parametrize("stages", STAGES)
def test_equal_scales_are_none_and_the_last_bits_do_not_count(stages, texts):
    schedule, found = texts
    for name in ALIKE:
        for rank in range(2):
            if (stages, name, rank) in found or schedule == "1f1b":
                assert found[stages, name, rank][0] is None, (name, rank)


def test_a_backward_of_some_replicas_is_an_error_and_of_some_stages_is_not(texts):
    schedule, found = texts
    if schedule == "gpipe":
        return  # the others get an error at once, since backward communicates
    for rank in range(2):
        assert "rank 0: 1.0\n  rank 1: none" in found["two replicas", "missing", rank][0]
        assert found["two stages", "missing", rank][0] is None
