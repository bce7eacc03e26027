"""Other planners' rules, as generators of plans: what the planner is compared with.

Each takes (graph, cluster, request), the parsed files, and yields candidates that it expects to
fit. What a rule leaves open (micro-batches, schedule, recompute) is yielded in all ways, so that
the rule is judged at its best.
"""

from benchmarks.planner.pipedream import pipedream
from benchmarks.planner.piper import piper
from benchmarks.planner.rannc_07 import rannc_07
from benchmarks.planner.uniform import data_parallel, equal_layers, torchgpipe

BASELINES = {
    "equal layers": equal_layers,
    "data parallel": data_parallel,
    "torchgpipe": torchgpipe,
    "RaNNC 0.7": rannc_07,
    "PipeDream": pipedream,
    "Piper": piper,
}
