"""What only a job of several ranks can get wrong: disagreement."""

import json

import mpi
import pytest
import torch

import pyrannc


def run(code, ranks=2, env=None):
    return mpi.run(code, ranks, timeout=100, env=env)


# After a first call that was right: what each rank does, and what the error of every rank says.
DIFFERENT_CALLS = {
    "mode": (
        "model.train(rank == 0)(x, 1.0)",
        "the ranks do not do the same:\n"
        "  rank 0: forward pass 1 with grad, training mode: as the first one\n"
        "  rank 1: forward pass 1 with grad, eval mode: as the first one\n",
    ),
    "no grad": (
        "with torch.set_grad_enabled(rank == 0): model(x, 1.0)",
        "  rank 1: forward pass 1 without grad, training mode: as the first one\n",
    ),
    "new constant": (
        "model(x, 1.0 if rank == 0 else 2.0)",
        "  rank 1: forward pass 1 with grad, training mode: args[1] is 2.0, but was 1.0",
    ),
    "other new constants": (
        "model(x, 2.0 + rank)",
        "rank 1 captured another graph than rank 0: ",
    ),
    "shape": (
        "model(x.view(-1, 1, 4).expand(-1, 2 + rank, 4), 1.0)",
        "input x: float32[B, 3, 4] apart(0)",
    ),
    "backwards of other forwards": (
        "[model(x, 1.0).sum(), model(x, 1.0).sum()][rank].backward()",
        "  rank 0: backward of forward pass 1\n  rank 1: backward of forward pass 2\n",
    ),
    "backward and forward": (
        "loss = model(x, 1.0).sum(); loss.backward() if rank == 0 else model(x, 1.0)",
        "  rank 0: backward of forward pass 1\n  rank 1: forward pass 2 with grad, training mode",
    ),
    "no rows": ("model(x[:0], 1.0)", "the batch has no rows on any rank"),
}


@pytest.mark.ranks(
    f"""
    import json, sys, pyrannc, torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, scale):
            return self.head(torch.tanh(self.stem(x)) * scale)

    rank = pyrannc.get_rank()
    x = torch.randn(3 + rank, 4)
    for name, (code, _) in {DIFFERENT_CALLS!r}.items():
        model = pyrannc.RaNNCModule(Model(), config=pyrannc.Config(comm_timeout_s=30))
        model(x, 1.0).sum().backward()
        try:
            exec(code)
        except pyrannc.RaNNCError as error:
            sys.stdout.write(json.dumps([name, str(error)]) + "\\n")  # one write: whole lines
            sys.stdout.flush()
    """
)
def test_ranks_that_do_different_things_are_an_error_on_every_rank(done):
    errors = [json.loads(line) for line in done.stdout.splitlines()]
    for name, (_, message) in DIFFERENT_CALLS.items():
        texts = [text for case, text in errors if case == name]
        assert len(texts) == 2 and all(message in text for text in texts), (name, texts)


# By rank 1 alone; what the error of both ranks says of it. They waited for each other, or took each
# other's messages for something else: "KeyError: 'result'".
DIFFERENT_SETTINGS = {
    "calibrate": "settings['calibrate'] = False",
    "sync_params_on_init": "settings['sync_params_on_init'] = False",
    "deterministic_dropout": "settings['deterministic_dropout'] = True",
    "replica_nums": "settings['replica_nums'] = [1, 1]",
    "load_deployment": "arguments['load_deployment'] = 'plan.json'",
    "outputs": "arguments['outputs'] = 'all'",
    "outside_loss": "arguments['outside_loss'] = 'sum'",
    "optimizer": "optimizer = None",
    "model.training": "plain.eval()",
}


@pytest.mark.ranks(
    f"""
    import json, sys, pyrannc, torch

    rank = pyrannc.get_rank()
    for name, code in {DIFFERENT_SETTINGS!r}.items():
        plain = torch.nn.Linear(4, 2)
        optimizer = torch.optim.Adam(plain.parameters())
        settings, arguments = dict(comm_timeout_s=20), {{}}
        settings["log_level"] = ["warn", "error"][rank]  # this one may differ
        if rank == 1:
            exec(code)
        config = pyrannc.Config(**settings)
        try:
            pyrannc.RaNNCModule(plain, optimizer, config, **arguments)(torch.ones(2, 4))
            raise AssertionError(name)
        except pyrannc.RaNNCError as error:
            sys.stdout.write(json.dumps([name, str(error)]) + "\\n")
            sys.stdout.flush()
    """
)
def test_ranks_with_different_settings_are_an_error_on_every_rank(done):
    errors = [json.loads(line) for line in done.stdout.splitlines()]
    for name in DIFFERENT_SETTINGS:
        texts = [text for case, text in errors if case == name]
        assert len(texts) == 2, (name, texts)
        for text in texts:
            begins = "the ranks have different settings"
            if name == "model.training":
                begins = (
                    "some ranks make the first call of the model in training mode, and others in "
                    "eval mode"
                )
            assert text.startswith(f"{begins}:\n  rank 0: {name} = "), text
            assert f"\n  rank 1: {name} = " in text, text


# Two models of one kind, in an order that came from a set: each rank computed with the activations
# of the other model, and nobody noticed.
@pytest.mark.ranks(
    """
    import re, pyrannc, torch

    def wrapped():
        config = pyrannc.Config(comm_timeout_s=20, calibrate=False, partition_num=2)
        layers = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        return pyrannc.RaNNCModule(torch.nn.Sequential(*layers), config=config)

    models = wrapped(), wrapped()
    x = torch.ones(2, 4)
    for model in models:
        model(x)
    try:
        models[pyrannc.get_rank()](x)
        raise AssertionError("no error")
    except pyrannc.RaNNCError as error:
        pattern = r"rank \\d: RaNNCModule (\\d+), in the order of their first calls: "
        first, second = map(int, re.findall(pattern, str(error)))
        assert second == first + 1, error
    print("all right", flush=True)
    """
)
def test_ranks_that_call_two_models_in_different_orders_are_an_error(done):
    assert done.stdout.count("all right") == 2


# The planning of minutes was lost with the first, and the others said neither which file was meant
# nor, for one that is no text, anything on rank 1.
def test_a_deployment_file_that_cannot_be_written_or_read_is_an_error_that_names_it(tmp_path):
    rubbish = tmp_path / "rubbish.json"
    rubbish.write_bytes(bytes(range(256)))
    cut = tmp_path / "cut.json"
    cut.write_text('{"format": "rannc-plan", "vers')
    missing = tmp_path / "missing" / "plan.json"
    cases = [[str(missing), "save_deployment"], [str(tmp_path), "save_deployment"]]
    cases += [[str(rubbish), "load_deployment"], [str(cut), "load_deployment"]]
    done = run(
        f"""
        import json, sys, pyrannc, torch
        for path, setting in {cases!r}:
            plain = torch.nn.Linear(4, 2)
            config = pyrannc.Config(deployment_file=path, comm_timeout_s=20, **{{setting: True}})
            try:
                pyrannc.RaNNCModule(plain, config=config)(torch.ones(2, 4))
                raise AssertionError(path)
            except pyrannc.ConfigError as error:
                assert not any(parameter.is_meta for parameter in plain.parameters())
                sys.stdout.write(json.dumps([path, str(error)]) + "\\n")
                sys.stdout.flush()
        """
    )
    assert done.returncode == 0, done.stderr
    errors = [json.loads(line) for line in done.stdout.splitlines()]
    for path, setting in cases:
        texts = [text for case, text in errors if case == path]
        assert len(texts) == 2, (path, texts)
        assert all(f"{setting}: " in text and path in text for text in texts), texts
    assert sorted(tmp_path.iterdir()) == [cut, rubbish]


def test_a_rank_with_another_model_is_an_error_that_shows_the_difference():
    done = run(
        """
        import pyrannc, torch
        layer = [torch.nn.ReLU(), torch.nn.Tanh()][pyrannc.get_rank()]
        model = pyrannc.RaNNCModule(torch.nn.Sequential(torch.nn.Linear(4, 2), layer))
        model(torch.randn(3, 4))
        """
    )
    assert done.returncode != 0
    assert "rank 1 captured another graph than rank 0" in done.stderr
    assert "tanh" in done.stderr


def test_sets_of_strings_have_one_order_on_all_ranks_or_the_error_says_how():
    code = """
        import pyrannc, torch

        class Heads(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.heads = torch.nn.ModuleDict({name: torch.nn.Linear(4, 1) for name in NAMES})

            def forward(self, x):
                return sum(self.heads[name](x) for name in set(NAMES))

        NAMES = [f"head{number}" for number in range(20)]
        model = pyrannc.RaNNCModule(Heads())
        model(torch.randn(3, 4)).mean().backward()
        """
    done = run(code)
    assert done.returncode == 0, done.stderr
    done = run(code, env={"PYTHONHASHSEED": "random"})
    assert done.returncode != 0
    assert "Set PYTHONHASHSEED=0 for all ranks" in done.stderr


def test_import_starts_no_mpi_and_prints_nothing():
    done = run("import pyrannc; from pyrannc import RaNNCModule, _C", ranks=2)
    stderr = mpi.without_leaks_of_triton(done.stderr)
    assert (done.returncode, done.stdout, stderr) == (0, "", "")


def test_what_goes_wrong_on_one_rank_for_all_is_an_error_on_every_rank():
    """Whatever its class: the others would wait for it, and what they compute next for this."""
    code = """
import pyrannc
from pyrannc import launch
from pyrannc.ranks import on_rank

world, heard = launch.world(60.0), []
for fault in (pyrannc.ConfigError("wrong"), KeyError("boom")):
    try:
        on_rank(0, world, lambda fault=fault: (_ for _ in ()).throw(fault))
    except pyrannc.RaNNCError as error:
        heard.append(f"{type(error).__name__}: {error}")
assert heard == ["ConfigError: wrong", "RaNNCError: rank 0: KeyError: 'boom'"], heard
assert on_rank(1, world, lambda: world.rank) == 1
"""
    job = run(code)
    assert job.returncode == 0, job.stderr[-2000:]


# A host that was updated alone trained with the others without a word.
@pytest.mark.ranks(
    """
    import torch
    import pyrannc
    from pyrannc.job import agreement
    if rank == 1:
        agreement.__version__ = "0.7.9"
    model = pyrannc.RaNNCModule(torch.nn.Linear(4, 4))
    try:
        model(torch.ones(2, 4))
    except pyrannc.ConfigError as error:
        print(error)
    agreement.__version__ = pyrannc.__version__
    """,
    before="from pyrannc import launch\nrank = launch.get_rank()\n",
)
def test_other_versions_on_another_host_are_an_error_that_names_both(done):
    mine = f"pyrannc {pyrannc.__version__}, torch {torch.__version__} on "
    assert done.stdout.count("the ranks have different versions:\n") == 2
    assert f"rank 0: {mine}" in done.stdout
    assert f"rank 1: {mine.replace(pyrannc.__version__, '0.7.9')}" in done.stdout
