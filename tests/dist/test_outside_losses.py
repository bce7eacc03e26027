"""What several ranks do with losses, beyond the equality suite: choices and warnings."""

import pytest


def all_right(done):
    assert done.stdout.count("all right") == 2


@pytest.mark.ranks(
    """
    import pyrannc, torch
    from torch import nn
    x = torch.arange(24.0).reshape(6, 4) / 10
    mine = x[3 * pyrannc.get_rank() :][:3]
    for outside_loss in ("mean", "sum"):
        torch.manual_seed(1)
        plain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], pipeline_num=3)
        model = pyrannc.RaNNCModule(plain, config=config, outside_loss=outside_loss)
        twin = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        twin.load_state_dict(plain.state_dict())
        getattr(model(mine.double()).square(), outside_loss)().backward()
        getattr(twin(x.double()).square(), outside_loss)().backward()
        for name, parameter in model.named_parameters(from_global=False):
            torch.testing.assert_close(parameter.grad, twin.get_parameter(name).grad)
    try:
        pyrannc.RaNNCModule(plain, outside_loss="median")
    except pyrannc.ConfigError as error:
        assert "'median'" in str(error)
        print("all right", flush=True)
    """
)
def test_losses_of_the_ranks_are_averaged_by_rows_or_added(done):
    all_right(done)


@pytest.mark.ranks(
    """
    import pyrannc, torch
    from torch import nn

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

        def forward(self, x):
            return self.layers(x).square().mean().sqrt()

    x = torch.arange(24.0, dtype=torch.float64).reshape(6, 4) / 10
    mine = x[3 * pyrannc.get_rank() :][:3]

    def loss_of(**settings):
        torch.manual_seed(1)
        plain = Root().double()
        whole = plain(x)
        config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], **settings)
        # Micro-batch k is the k-th row of each rank.
        parts = [plain(x[[k, 3 + k]]) for k in range(3)]
        average = (sum(parts) / 3).item()
        model = pyrannc.RaNNCModule(plain, config=config)
        loss = model(mine)
        loss.backward()
        return model, loss.item(), average, whole.item()

    model, loss, average, whole = loss_of(pipeline_num=3)
    assert model.plan.micro_batches == 3
    assert abs(loss - average) < 1e-12 < abs(average - whole), (loss, average, whole)
    model, loss, average, whole = loss_of(exact_loss=True)
    assert model.plan.micro_batches == 1
    assert abs(loss - whole) < 1e-12, (loss, whole)
    print("all right", flush=True)
    """
)
def test_what_is_not_linear_is_averaged_with_one_warning_or_exact_in_one_micro_batch(done):
    all_right(done)
    warnings = [line for line in done.stderr.splitlines() if "is not linear in a mean" in line]
    assert len([line for line in warnings if "averaged by rows" in line]) == 1, done.stderr
    assert "aten::sqrt" in warnings[0] and "exact_loss=True" in warnings[0]


@pytest.mark.ranks(
    """
    import copy, pyrannc, torch
    from torch import nn
    from torch.nn import functional

    class Contrastive(nn.Module):
        def __init__(self):
            super().__init__()
            self.images, self.texts = nn.Linear(6, 4), nn.Linear(5, 4)

        def forward(self, images, texts):
            images = functional.normalize(self.images(images), dim=-1)
            texts = functional.normalize(self.texts(texts), dim=-1)
            similarities = texts @ images.t()
            labels = torch.arange(len(texts))
            loss = functional.cross_entropy(similarities, labels)
            return {"loss": loss, "similarities": similarities, "texts": texts}

    torch.manual_seed(1)
    plain = Contrastive().double()
    twin = copy.deepcopy(plain)
    batch = torch.randn(7, 6).double(), torch.randn(7, 5).double()
    mine = slice(0, 3) if pyrannc.get_rank() == 0 else slice(3, 7)
    own = [tensor[mine] for tensor in batch]
    model = pyrannc.RaNNCModule(plain)
    for step in range(2):
        ours, theirs = model(*own), twin(*batch)
        ours["loss"].backward()
        theirs["loss"].backward()
        torch.testing.assert_close(ours["loss"], theirs["loss"])
        torch.testing.assert_close(ours["texts"], theirs["texts"][mine])
        for name, parameter in model.named_parameters(from_global=False):
            torch.testing.assert_close(parameter.grad, twin.get_parameter(name).grad)
    model.eval()
    for output in (ours, model(*own)):
        try:
            output["similarities"].sum()
        except pyrannc.RaNNCError as error:
            assert "output['similarities'] was not sent: its size depends" in str(error), error
        else:
            raise AssertionError("something was sent")
    model = pyrannc.RaNNCModule(Contrastive().double(), outputs="all")
    try:
        model(*own)
    except pyrannc.PlanError as error:
        assert "size that depends on the batch" in str(error) and "module ''" in str(error)
        print("all right", flush=True)
    """
)
def test_a_contrastive_loss_is_that_of_all_ranks_and_the_similarities_stay_behind(done):
    """No entry of the matrix of similarities belongs to one rank."""
    all_right(done)


@pytest.mark.ranks(
    """
    import copy, pyrannc, torch
    from torch import nn

    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(6, 4), nn.Linear(4, 6)

        def forward(self, x):
            code = self.encode(x)
            error = (self.decode(code.tanh()) - x).square().mean()
            size = code.square().sum() / len(x)
            return {"size": size, "loss": error + 0.1 * size, "error": error, "code": code}

    torch.manual_seed(1)
    plain = Coder().double()
    twin = copy.deepcopy(plain)
    x = torch.randn(7, 6).double()
    mine = x[:3] if pyrannc.get_rank() == 0 else x[3:]
    config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], pipeline_num=2)
    model = pyrannc.RaNNCModule(plain, config=config)
    ours, theirs = model(mine), twin(x)
    assert model.plan.schedule == "1f1b", model.plan.schedule
    for name in ("size", "loss", "error"):
        torch.testing.assert_close(ours[name], theirs[name])
    try:
        ours["size"].backward()
    except pyrannc.RaNNCError as error:
        assert "only the loss has a gradient" in str(error), error
    else:
        raise AssertionError("a part had a gradient")
    ours = model(mine)
    ours["loss"].backward()
    theirs["loss"].backward()
    for name, parameter in model.named_parameters(from_global=False):
        torch.testing.assert_close(parameter.grad, twin.get_parameter(name).grad)
    print("all right", flush=True)
    """
)
def test_of_several_numbers_the_one_made_of_the_others_is_the_loss(done):
    all_right(done)
