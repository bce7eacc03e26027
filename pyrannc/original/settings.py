"""Settings of RaNNC 0.7: those with another name here, and those with nothing to set any more.

The rest have kept their names, and stand with the others in :mod:`pyrannc.config`.
"""

#: The setting here.
RENAMED = {
    "replica_num": "replica_nums",
    "checkpointing": "recompute",
    "run_watchdog": "end_job_on_error",
}

_SEARCH = "the planner searches blocks and stages in a way of its own"
_KEPT = "the planner keeps no such file; save_deployment keeps the plan, profile_cache the costs"
_NEVER_READ = "RaNNC 0.7 never read it either"

#: What replaced a setting that is accepted and does nothing.
REPLACED = {
    "profile_by_acc": "a stage's time is always computed from that of its operators",
    "sync_allreduce": "sums of gradients need no barrier; comm_timeout_s is their deadline",
    "decomposer": "there is one planner, and it needs no other",
    "min_partition_num": _SEARCH,
    "do_coarsening": _SEARCH,
    "do_uncoarsening": _SEARCH,
    "coarsen_by_time": _SEARCH,
    "limit_dev_num_more_than_bs": "no plan has a replica without a row",
    "alloc_repl_flat": "the planner lays stages out over the hosts, by the speed of their links",
    "save_mlpart_results": _KEPT,
    "load_mlpart_results": _KEPT,
    "mlpart_results_file": _KEPT,
    "save_alloc_solutions": _KEPT,
    "load_alloc_solutions": _KEPT,
    "alloc_solutions_file_prefix": _KEPT,
    "dump_dp_node_profiles": "the command rannc capture writes what the planner knows",
    "dump_dp_cache": "the command rannc capture writes what the planner knows",
    "consolidate_grads": "gradients are always summed in buckets",
    "force_dist_matmul": "no weight is cut; stages and replicas share out the model",
    "use_mpi_to_gather_dist_params": "all messages go through MPI",
    "use_named_tensors": "rows of the batch are found without names of dimensions",
    "profiler_cache_size": "measured costs are in profile_cache, which bounds itself",
    "enable_kineto": "operators are timed without Kineto",
    "watchdog_lockfile_dir": "end_job_on_error ends the job without lock files",
    "p2p_comm": "messages always go from rank to rank",
    "graph_profiling": _NEVER_READ,
    "profile_dump_path": _NEVER_READ,
    "validate_comm": _NEVER_READ,
    "profiling_iter": _NEVER_READ,
    "checkpointing_no_last": _NEVER_READ,
    "disable_balancing": _NEVER_READ,
    "auto_parallel": _NEVER_READ,
    "max_mp_num": _NEVER_READ,
    "conf_dir": "RANNC_CONF_DIR names the folder",
    # Not settings of its Config, but variables of its scripts.
    "cuda_devices": "mpirun and CUDA_VISIBLE_DEVICES say which rank has which device",
    "skip_grad_scaling": "gradients are those of the mean over the whole batch",
}
