"""Random graphs and plans of four ranks, each a thread of this process, against one process.

All of them compute on one device, with a stream of their own or with the one that torch has first;
messages go through pinned memory of the host.
"""

import device
import torch
from on_devices import equal, on_rank, one_process, problem
from pipeline import run_ranks
from report import Report

from pyrannc import _C

RANKS = 4
SEEDS = range(9)  # each schedule three times
DEADLINE_S = 20.0


def differing(seed, place, own_streams):
    made = problem(seed, ranks=RANKS)
    expected = one_process(made)

    def one_rank(host):
        torch.accelerator.set_device_index(place.index)
        if own_streams:
            torch.accelerator.set_stream(device.new_stream(place))
        comm = _C.runtime.staged(host, str(place))
        found = on_rank(made, expected, comm, str(place))
        comm.barrier()  # nobody ends what another one still receives from
        return found

    found = [each for rank in run_ranks(RANKS, one_rank, DEADLINE_S) for each in rank]
    return [what for what, ours, theirs in found if not equal(ours, theirs)]


def main():
    report = Report()
    place = device.start()
    for seed in SEEDS:
        for own_streams in (False, True):
            name = f"seed {seed}, {'streams of their own' if own_streams else 'one stream'}"
            with report.case(name):
                wrong = differing(seed, place, own_streams)
                report.expect(not wrong, f"{name}: {len(wrong)} differ, first {wrong[:1]}")
    report.figures["plans"] = 2 * len(SEEDS)
    report.show()


if __name__ == "__main__":
    main()
