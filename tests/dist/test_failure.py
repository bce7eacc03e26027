"""A rank that fails or falls silent ends the job: exit code not 0, the cause printed, no hang."""

import re
import textwrap
import time

import mpi
import pytest
import standin

DEADLINE_S = 120  # against hangs only
pytestmark = pytest.mark.side_by_side

SETUP = """
import os, signal, sys, threading, time
from pyrannc import launch
world = launch.world()
world.barrier()  # all are up: the deadline is for what the test does
world.timeout_s = 5
"""


def run(*parts: str, ranks: int = 3, env=None):
    body = "".join(textwrap.dedent(part) for part in parts)
    return mpi.run(SETUP + body, ranks, timeout=DEADLINE_S, env=env)


# What was registered with atexit did not run: buffers of loggers and temporary folders stayed.
@pytest.mark.parametrize("at_exit", ["print('at exit')", "time.sleep(600)"])
def test_an_exception_on_one_rank_ends_the_job_with_its_traceback_first(at_exit):
    result = run(
        f"""
        import atexit
        atexit.register(lambda: {at_exit})
        """,
        """
        world.timeout_s = 600
        if world.rank == 1:
            raise ValueError("the data has a hole")
        world.barrier()
        """,
    )
    assert result.returncode != 0
    assert result.stderr.startswith("Traceback (most recent call last)"), result.stderr
    assert "ValueError: the data has a hole" in result.stderr
    assert "rannc: rank 1 ends the job: ValueError: the data has a hole" in result.stderr
    assert result.stderr.count("Traceback") == 1
    assert result.stdout.count("at exit") == at_exit.startswith("print")


@pytest.mark.parametrize(
    "begin",
    [
        "import pyrannc; pyrannc.init()",
        "from pyrannc.integrations.accelerate import Accelerator; Accelerator()",
        "from pyrannc.integrations.lightning import RaNNCStrategy; RaNNCStrategy()",
    ],
)
def test_an_exception_is_complete_after_torch_has_put_its_hook_around_ours(begin):
    # init_process_group() collects what the hook before it prints, and ours ends the process: of an
    # error there was one line, "rannc: rank 1 ends the job".
    result = run(
        begin,
        """
        world.timeout_s = 600
        if world.rank == 1:
            raise ValueError("the data has a hole\\n  Fill it.")
        world.barrier()
        """,
        ranks=2,
    )
    assert result.returncode != 0
    assert "Traceback (most recent call last)" in result.stderr
    assert "ValueError: the data has a hole\n  Fill it.\n" in result.stderr
    assert "rannc: rank 1 ends the job: ValueError: the data has a hole" in result.stderr


@pytest.mark.parametrize("shown", ["", "full"])
def test_ranks_that_fail_together_show_one_traceback_of_the_users_frames(shown):
    result = run(
        """
        import pyrannc, torch
        from torch import nn
        world.timeout_s = 600

        class Branches(nn.Linear):
            def forward(self, x):
                h = super().forward(x)
                return h if h.sum() > 0 else -h

        pyrannc.RaNNCModule(Branches(4, 4))(torch.ones(4, 4))
        """,
        ranks=2,
        env={"RANNC_TRACEBACK": shown} if shown else None,
    )
    assert result.returncode != 0
    ours = "pyrannc/module.py" in result.stderr
    left_out = "frames of RaNNC and torch are left out, which RANNC_TRACEBACK=full shows"
    if shown:
        assert ours and left_out not in result.stderr
        return
    assert result.stderr.count("Traceback") == result.stderr.count(left_out) == 1, result.stderr
    assert "in forward" in result.stderr and not ours
    assert "rannc: rank 0 ends the job: TraceError" in result.stderr


def test_an_exception_in_a_thread_ends_the_job():
    result = run(
        """
        world.timeout_s = 600
        if world.rank == 2:
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        world.barrier()
        """
    )
    assert result.returncode != 0
    assert "rannc: rank 2 ends the job: ZeroDivisionError: division by zero" in result.stderr


def test_a_setting_leaves_exceptions_as_python_has_them():
    # Rank 1 waits for the other as long as that is there, which it is: it goes on.
    result = run(
        """
        from pyrannc.job import process
        before = sys.excepthook, threading.excepthook
        process.end_job_on_error(world, True)
        assert sys.excepthook != before[0] and threading.excepthook != before[1]
        process.end_job_on_error(world, False)
        assert (sys.excepthook, threading.excepthook) == before
        if world.rank == 1:
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        world.barrier()
        """,
        env={"RANNC_END_JOB_ON_ERROR": "false"},
    )
    assert result.returncode == 0, result.stderr
    assert "ZeroDivisionError" in result.stderr and "ends the job" not in result.stderr


def test_sys_exit_with_an_error_ends_the_job():
    result = run(
        """
        world.timeout_s = 600
        if world.rank == 0:
            sys.exit(7)
        world.barrier()
        """
    )
    assert result.returncode == 7, result.stderr
    assert "rannc: rank 0 has left with exit code 7, which ends the job" in result.stderr


def test_a_killed_rank_ends_the_job():
    result = run(
        """
        world.timeout_s = 600
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        world.barrier()
        """
    )
    assert result.returncode != 0
    assert "signal 9" in result.stderr


# Steps of layers that two ranks compute together, in which rank 1 gets a signal.
IN_A_GROUP = """
import pyrannc, torch

class Signal(torch.autograd.Function):
    sent = None

    @staticmethod
    def forward(ctx, x):
        if Signal.sent is not None:
            os.kill(os.getpid(), Signal.sent)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone()

class Two(torch.nn.Module):
    "Rank 0 waits in a node of the second block, once rank 1 has the signal between both."

    def __init__(self):
        super().__init__()
        self.first, self.second = (
            torch.nn.Sequential(
                torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 64))
            for _ in range(2))

    def forward(self, x):
        return self.second(Signal.apply(self.first(x)))

model = Two()
model = pyrannc.RaNNCModule(
    model, torch.optim.SGD(model.parameters(), lr=1e-3),
    pyrannc.Config(tensor_parallel=2, comm_timeout_s=5, audit="off"))
model(torch.randn(8, 64)).sum().backward()
assert any(hasattr(p, "place_of_part") for p in model.module.parameters())
os.write(1, f"begun {time.time()}\\n".encode())  # in one piece
if world.rank == 1:
    Signal.sent = SIGNAL
model(torch.randn(8, 64)).sum().backward()
"""


@pytest.mark.parametrize("signal", ["KILL", "STOP"])
def test_a_rank_that_is_gone_inside_of_a_group_ends_the_job(signal):
    begin = time.time()
    result = run(IN_A_GROUP.replace("SIGNAL", f"signal.SIG{signal}"), ranks=2)
    begin = max(
        [begin, *(float(each.split()[1]) for each in re.findall(r"begun [\d.]+", result.stdout))]
    )
    assert result.returncode != 0
    assert time.time() - begin < 30  # 10 where nobody else is at work
    if signal == "KILL":
        assert "signal 9" in result.stderr, result.stderr
    else:
        assert "rank 0 waited 5 s" in result.stderr, result.stderr
        assert "tensor parallel" in result.stderr, result.stderr
        assert (
            "It was in node 'second.2.linear.sum' of a model that the ranks 0, 1 compute together"
            in result.stderr
        ), result.stderr
        assert "rank 1" in result.stderr, result.stderr


@pytest.mark.skipif(not standin.built(), reason="the stand-in device was not built")
def test_a_killed_rank_ends_the_job_while_another_one_waits_for_a_copy_of_its_device():
    result = run(
        """
        import standin, torch
        from pyrannc import _C
        world.timeout_s = 600
        standin.start(devices=2, delay_us=0)
        standin.set_device(world.rank)
        device = f"standin:{world.rank}"
        stream = _C.runtime.device_stream(device)
        staged = _C.runtime.staged(world, device)
        data = torch.ones(1000, device=device)
        if world.rank == 1:
            world.receive(8, 0)
            os.kill(os.getpid(), signal.SIGKILL)
        with standin.held():  # the device does not come to the copy
            waiting = _C.runtime.start_sum(data, staged, stream, [0, 1])
            world.send(b"8 bytes.", 1)
            waiting.wait()
        """,
        ranks=2,
    )
    assert result.returncode != 0
    assert "signal 9" in result.stderr, result.stderr


# In the three that follow rank 0 waits for 1, which waits for 2: the message must name 2.
CHAIN = """
if world.rank < 2:
    world.receive(8, world.rank + 1)
"""


def test_a_stopped_rank_is_named_at_the_deadline():
    result = run(
        """
        if world.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        """,
        CHAIN,
    )
    assert result.returncode != 0
    assert (
        "rank 0 waited 5 s for the message of the script from rank 1; rank 1 waits for the message "
        "of the script from rank 2; rank 2 does not answer: it is stopped or dead" in result.stderr
    )


def test_a_rank_that_never_calls_is_named_at_the_deadline():
    result = run(
        """
        if world.rank == 2:
            time.sleep(600)
        """,
        CHAIN,
    )
    assert result.returncode != 0
    assert (
        "rank 1 waits for the message of the script from rank 2; rank 2 waits for nobody: it "
        "computes, or its script does not make this step" in result.stderr
    )


def test_a_rank_that_ends_early_is_named_long_before_the_deadline():
    result = run(
        """
        world.timeout_s = 600
        if world.rank == 2:
            sys.exit(0)
        """,
        CHAIN,
    )
    assert result.returncode != 0
    assert "rank 2 has left: its script ended" in result.stderr


def test_a_rank_that_never_starts_mpi_ends_the_others_at_the_start_deadline():
    result = mpi.run(
        """
        import os, time
        from pyrannc import _C
        if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
            _C.comm.make_mpi(20.0, 2.0)
        time.sleep(600)
        """,
        ranks=2,
        timeout=DEADLINE_S,
    )
    assert result.returncode == 1
    assert "rannc: MPI start-up not finished after 2 s: a rank never reached it" in result.stderr


def test_a_message_of_another_size_is_an_error_of_the_receiver():
    result = run(
        """
        if world.rank == 0:
            world.send(b"0123456789", 1, 5)
        elif world.rank == 1:
            world.receive(8, 0, 5)
        """
    )
    assert result.returncode != 0
    assert "rank 1 got more than the 8 bytes that it expected from rank 0 (tag 5" in result.stderr


# A forked child ran the exit handler of its parent and waited there for ranks to leave; a daemon
# thread that was woken at the end came back to a Python that was gone, which ends the process by
# std::terminate.
def test_forked_children_and_blocked_daemon_threads_do_not_disturb_the_end():
    result = run(
        """
        import pyrannc, warnings
        # Python 3.12 begins to warn of what this test is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        world.timeout_s = 600
        child = os.fork()
        if child == 0:
            # It waited for ever, as a worker of a DataLoader did that calls the model.
            try:
                world.barrier()
            except pyrannc.RaNNCError as error:
                sys.exit(0 if f"was forked from rank {world.rank}" in str(error) else 4)
            sys.exit(5)
        assert os.waitpid(child, 0)[1] == 0
        if world.rank == 0:
            threading.Thread(target=lambda: world.receive(8, 1), daemon=True).start()
            time.sleep(0.2)
        world.barrier()
        """
    )
    assert result.returncode == 0, result.stderr
    assert mpi.without_leaks_of_triton(result.stderr) == ""


# The hook failed when it flushed standard output, and the job went on without the thread.
def test_an_exception_in_a_thread_ends_the_job_when_its_output_is_closed():
    result = run(
        """
        world.timeout_s = 600
        if world.rank == 2:
            sys.stdout.close()
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
            time.sleep(600)
        """
    )
    assert result.returncode != 0
    assert "rannc: rank 2 ends the job: ZeroDivisionError: division by zero" in result.stderr


# It was 60 s, whatever was set: too short for a rank that first prepares the data for all.
def test_the_timeout_that_is_set_holds_for_the_first_call_too():
    result = mpi.run(
        """
        import os, time, pyrannc, torch
        if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
            config = pyrannc.Config(comm_timeout_s=3)
            pyrannc.RaNNCModule(torch.nn.Linear(2, 2), config=config)(torch.ones(2, 2))
        time.sleep(600)
        """,
        ranks=2,
        timeout=50,
    )
    assert result.returncode == 1
    assert "rannc: MPI start-up not finished after 3 s: a rank never reached it" in result.stderr


# More nanoseconds than a clock counts were none at all.
def test_a_timeout_may_be_as_long_as_one_likes():
    result = run(
        """
        world.timeout_s = 1e300
        if world.rank == 0:
            time.sleep(1)
        world.barrier()
        """
    )
    assert result.returncode == 0, result.stderr


# Every rank raised, in another micro-batch, and went on. After 64 calls the tags came round, and
# activations of the failed call were taken for those of the new one: gradients were wrong.
def test_after_an_error_that_leaves_messages_behind_no_call_follows_but_the_state_can_be_saved():
    result = run(
        """
        import pyrannc, torch
        from torch import nn

        fails = {0: 7, 1: 1}[world.rank]  # in which micro-batch
        countdown = None

        class Check(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, rank):
                global countdown
                if countdown is not None and rank == world.rank:
                    countdown -= 1
                    if countdown == 0:
                        raise ValueError(f"bad value on {rank}")
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                return gradient, None

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem, self.head = nn.Linear(300, 300), nn.Linear(300, 300)

            def forward(self, x):
                x = Check.apply(torch.tanh(self.stem(x)), 0)
                return Check.apply(torch.tanh(self.head(x)), 1)

        config = pyrannc.Config(
            audit="off", comm_timeout_s=20, calibrate=False, schedule="gpipe",
            partition_num=2, replica_nums=[1, 1], pipeline_num=8,
        )
        model = pyrannc.RaNNCModule(Model(), config=config)
        x = torch.randn(4, 300)
        model(x).sum().backward()
        countdown = fails
        try:
            model(x)
            raise AssertionError("no error")
        except pyrannc.RaNNCError as error:
            assert f"bad value on {world.rank}" in str(error), error
        countdown = None
        assert len(model.state_dict(rank0_only=False)) == 4
        for _ in range(2):
            try:
                model(x)
                raise AssertionError("it goes on")
            except pyrannc.RaNNCError as error:
                assert "a call failed on rank" in str(error), error
                assert "Messages of that call are left over" in str(error), error
        print("all right", flush=True)
        """,
        ranks=2,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("all right") == 2


def test_ranks_that_fail_alike_without_messages_under_way_go_on():
    result = run(
        """
        import pyrannc, torch
        from torch import nn
        config = pyrannc.Config(comm_timeout_s=20, calibrate=False, replica_nums=[2])
        plain = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4))
        model = pyrannc.RaNNCModule(plain, config=config)
        good, bad = torch.arange(4), torch.tensor([1, 2, 3, 99])
        before = model(good)
        try:
            model(bad)
            raise AssertionError("no error")
        except (pyrannc.RaNNCError, IndexError) as error:
            assert "out of range" in str(error), error
        for _ in range(70):
            model(good).sum().backward()
        torch.testing.assert_close(model(good), before)
        print("all right", flush=True)
        """,
        ranks=2,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("all right") == 2
