"""All ranks call the function of on_preemption() at the same end of a step."""

import pytest


@pytest.mark.ranks(
    """
    import multiprocessing, os, signal, time
    import pyrannc, torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], calibrate=False, self_check=False)
    model = pyrannc.RaNNCModule(model, optimizer, config)
    calls = []
    pyrannc.on_preemption(lambda: calls.append((step, part)) or model.state_dict())  # collective
    last = pyrannc.get_world_size() - 1
    signals = {(1, 0, last): signal.SIGTERM, (4, 1, 0): signal.SIGUSR1}  # before and within a step
    for step in range(7):
        optimizer.zero_grad()
        for part in range(2):
            model(torch.randn(4, 4)).sum().backward()
            if number := signals.get((step, part, pyrannc.get_rank())):
                os.kill(os.getpid(), number)
        optimizer.step()
        with torch.no_grad():
            model(torch.randn(4, 4))
    # The call without gradients after a step is one of its end, too: part is that of the last one.
    assert calls == [(1, 1), (4, 1)], calls

    def work():
        begun.set()
        time.sleep(100)

    context = multiprocessing.get_context("fork")
    begun = context.Event()
    worker = context.Process(target=work)
    worker.start()
    begun.wait()  # Python forgets signals that come while it forks
    worker.terminate()
    worker.join(20)
    assert worker.exitcode == -signal.SIGTERM
    print("all right", flush=True)
    """
)
def test_ranks_call_it_at_the_same_step(done):
    assert done.stdout.count("all right") == 2, done.stderr
