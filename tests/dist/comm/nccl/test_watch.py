"""What goes wrong on the device, or in NCCL, ends the job soon, with what it was waiting for.

All on the stand-in device and the stand-in NCCL: the real one has not been seen to fail.
"""

import os
import re
import time

import mpi
import nccl
import pytest

pytestmark = pytest.mark.skipif(not nccl.FILE.exists(), reason=f"{nccl.FILE} was not built")
SCRIPT = str(mpi.JOBS / "nccl_faults.py")
DEADLINE_S = 60  # against hangs
# From where the fault begins to the end of the job: 5 s, of which 2 are the ranks' own deadline;
# some times as long where all processors are busy.
ENDED_S = 20
MESSAGE = r"(for the|to send the) (activation|gradient) of micro-batch \d (from|to) rank \d"
SUM = r"for the (gradient|loss) reduction over the ranks 0, 1"


def failure(when, shape, fault, **env):
    job = mpi.run([SCRIPT, when, shape, fault], 2, timeout=DEADLINE_S, env=env)
    assert job.returncode != 0, job.stdout + job.stderr
    ended = time.time()
    assert "got through" not in job.stdout
    began = re.findall(r"process (\d+) begins at ([\d.]+)", job.stdout)
    assert len(began) == 2, job.stdout + job.stderr
    assert ended - min(float(at) for _, at in began) < ENDED_S, job.stderr
    for process, _ in began:
        assert_nothing_is_left(int(process))
    return job.stderr


def assert_nothing_is_left(process):
    """Of a rank: neither the process, which mpirun may have killed just now, nor shared memory."""
    deadline = time.monotonic() + ENDED_S
    while is_there(process) and time.monotonic() < deadline:
        time.sleep(0.05)  # it is being ended
    assert not is_there(process)
    assert not [n for n in os.listdir("/dev/shm") if n.startswith(f"standin-nccl-{process}-")]


def is_there(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_rank_that_never_joins_and_the_network_that_was_tried():
    text = failure("start", "stages", "never_joins:1,warns:0")
    assert re.search(r"rank 0 waited 2 s for NCCL to start with 2 ranks", text), text
    assert "NCCL's first warning: Connect to 192.0.2.1<4791> failed\n" in text, text
    assert "NCCL_SOCKET_IFNAME" in text
    assert re.search(r"NCCL tries the network interface '\w+'", text), text


def test_an_operation_that_never_completes_while_the_abort_hangs():
    text = failure("step", "stages", "never_completes:1:2", TEST_ALSO="abort_hangs:0,abort_hangs:1")
    assert re.search(rf"rank \d waited 2 s {MESSAGE}", text), text


@pytest.mark.parametrize("fault", ["hangs_inside", "stays_inside"])
def test_a_call_that_does_not_return_from_nccl(fault):
    """Its communicator is aborted under it, which makes it return, or it never does: the process
    ends all the same."""
    text = failure("step", "stages", f"{fault}:1:1", TEST_PATIENT="0")
    inside = rf"rank 1 has been inside of NCCL for 2 s, to issue what is {MESSAGE}"
    seen = rf"rank 1 ends the job: {inside} \(stage \d\): it does not return"
    assert re.search(seen, text), text


def test_a_rank_that_dies_while_it_is_connected():
    text = failure("start", "stages", "dies:1:1", TEST_PATIENT="0")
    assert "rank 1" in text, text


def test_an_asynchronous_error():
    text = failure("step", "replicas", "async_error:1:1")
    # Said by the rank's next call, or by who watches NCCL, whichever is first.
    seen = rf"NCCL (reports|\S+ could not issue what is {SUM}): remote process exited"
    assert re.search(f"rank 1: {seen}", text), text
    assert "peer closed the connection" in text  # NCCL's own words


@pytest.mark.all
@pytest.mark.parametrize(("shape", "waits"), [("stages", MESSAGE), ("replicas", SUM)])
@pytest.mark.parametrize(
    "fault", ["stops:1:1", "never_completes:1:1", "hangs_inside:0:1", "stays_inside:0:1"]
)
def test_a_rank_that_stops_in_the_middle(fault, shape, waits):
    text = failure("step", shape, fault)
    inside = "has been inside of NCCL for 2 s, to issue what is"
    assert re.search(rf"rank \d (waited 2 s|{inside}) {waits}", text), text


@pytest.mark.all
@pytest.mark.parametrize("fault", ["stops:1:1", "never_completes:1:1", "async_error:1:1"])
def test_a_rank_that_fails_while_it_is_connected(fault):
    text = failure("start", "stages", fault)
    seen = r"waited 2 s|remote process exited"
    assert re.search(rf"rank \d.*({seen})", text), text


@pytest.mark.all
@pytest.mark.parametrize("shape", ["stages", "replicas"])
def test_a_rank_that_dies_in_the_middle(shape):
    failure("step", shape, "dies:1:1")


@pytest.mark.all
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("version:1:22703", "Mismatched NCCL version detected"),
        ("world:1:3", r"rank \d and rank \d join \d and \d ranks"),
    ],
)
def test_ranks_with_different_versions_or_worlds_that_only_nccl_sees(fault, told):
    text = failure("start", "stages", fault)
    assert re.search(told, text), text


@pytest.mark.all
def test_a_rank_without_the_library_is_everybodys_error(tmp_path):
    broken = tmp_path / "libnccl.so.2"
    broken.write_text("no library")
    text = failure("start", "stages", "", TEST_LIBRARY=str(broken))
    assert "NCCL cannot be opened" in text, text
    assert "RANNC_NCCL_LIBRARY" in text
