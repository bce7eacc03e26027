"""How what NCCL's communicators launch gets an order."""

from pyrannc.job import nccl

WHY = "torch.distributed had started NCCL before"


def test_without_an_order_of_nccls_own_each_communicator_asks_for_one_or_there_is_one_stream():
    assert nccl.launches("", 23004, False) == (False, False, "")
    assert nccl.launches("", 23004, True) == (True, False, "")
    one_stream, order_each, warning = nccl.launches(WHY, 23004, False)
    assert (one_stream, order_each) == (True, False)
    assert warning == f"all of NCCL's work goes on one stream, which is slower, because {WHY}"
    one_stream, order_each, warning = nccl.launches(WHY, 23100, False)
    assert (one_stream, order_each) == (False, True)
    assert warning == f"NCCL orders only what RaNNC's own communicators launch, because {WHY}"
    assert nccl.launches(WHY, 23100, True) == (True, False, "")  # somebody has decided
