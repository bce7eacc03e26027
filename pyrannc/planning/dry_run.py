"""``partitioning_dry_run_np``: a plan for another number of ranks than there are, and the end."""

import dataclasses

from pyrannc import _C, files, log
from pyrannc.planning import planner_inputs, schedules
from pyrannc.ranks import on_rank


def plan(task, agreed, measured, proved, make_planner):
    """Shows the plan for so many ranks with as many rows each, writes it with ``save_deployment``,
    and ends every rank by SystemExit. Collective."""
    config, world = task.config, task.world
    ranks = config.partitioning_dry_run_np
    rows = [max(agreed.local_rows)] * ranks

    def find():
        per_host = agreed.hosts.count(agreed.hosts[0])
        hosts = [f"host {rank // per_host}" for rank in range(ranks)]
        training, outputs = task.model.training, task.outputs
        wanted = schedules.request(task.captured, training, config, proved.mixing, outputs)
        synced = planner_inputs.whole_batch(task.captured.graph)
        planner = make_planner(
            task,
            dataclasses.replace(agreed, local_rows=rows),
            dataclasses.replace(
                proved,
                request=planner_inputs.request(sum(rows), config, proved.mixing, synced, wanted),
            ),
            dataclasses.replace(
                measured, devices=planner_inputs.cluster(hosts, agreed.memory_bytes, measured.links)
            ),
        )
        found = planner.plan()
        log.warn(
            "deploy",
            f"partitioning_dry_run_np: the plan for {ranks} ranks\n{_C.plan.show(found)}",
        )
        if config.save_deployment:  # as was found possible before
            files.write_whole(config.deployment_file, found.to_indented_json())
        return ""

    on_rank(0, world, find)
    raise SystemExit(0)
