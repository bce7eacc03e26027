"""All that scripts and users of RaNNC 0.7.5 can name, in the order of its own documentation.

From its sources at version 0.7.5; ``docs/coming-from-0.7.md`` has a row for each.
"""

FUNCTIONS = [
    "get_rank",
    "get_world_size",
    "barrier",
    "clear",
    "delay_grad_allreduce",
    "keep_graph",
    "sync_params_on_init",
    "recreate_all_communicators",
    "show_deployment",
    "all_gather",
    "store_dist_param",
    "load_dist_param",
    "set_dist_param",
    "get_dist_param_range",
    "set_dist_param_dtype",
    "DistributeModelParams",
    "patch_optimizer",
    "_dump_events",
    "_run_dp_dry",
]

#: Of its submodules.
SUBMODULES = [
    "comm_utils.bcast_obj",
    "amp.zip_params",
    "amp.register_amp_params",
    "amp.named_master_params",
    "amp.patch_amp_scaler",
    "amp.unset_master_grads",
    "opt.gather_optimizer_state_dict",
    "opt.patch_optimizer",
    "opt.merge_state_dict",
    "opt.append_param_ranks",
    "opt.remove_params_from_state",
    "opt.to_cuda_tensor",
]

ARGUMENTS = [
    "model",
    "optimizer",
    "gather_inputs",
    "load_deployment",
    "enable_apex_amp",
    "allreduce_amp_master_params",
    "enable_zero",
    "check_unused_values",
    "offload_params",
]

METHODS = [
    "__call__",
    "to",
    "cuda",
    "train",
    "eval",
    "parameters",
    "named_parameters",
    "buffers",
    "named_buffers",
    "clip_grad_norm",
    "_calc_grad_norm",
    "state_dict",
    "load_state_dict",
    "zero_grad",
    "get_param",
    "get_param_grad",
    "save_deployment",
    "undeploy",
    "enable_dropout",
    "__getattr__",
    "allreduce_grads",
    "allreduce_grads_zero",
    "calc_grad_norm",
    "is_checkpointing_enabled",
    "use_amp_master_params",
    "align_params",
    "sync_param",
    "sync_param_grad",
    "sync_param_zero",
    "get_local_param_range",
    "get_local_param_segment",
    "_sync_orig_params",
]

#: Arguments of its methods that torch's do not have.
METHOD_ARGUMENTS = [
    "parameters(from_global)",
    "buffers(from_global)",
    "state_dict(no_hook)",
    "state_dict(amp_master_params)",
    "state_dict(rank0_only)",
    "get_param(amp_master_param)",
    "get_param_grad(amp_master_param)",
    "optimizer.state_dict(from_global)",
    "optimizer.load_state_dict(from_global)",
]

SETTINGS = [
    "show_config_items",
    "mem_limit_gb",
    "mem_margin",
    "save_deployment",
    "load_deployment",
    "deployment_file",
    "partition_num",
    "min_pipeline",
    "max_pipeline",
    "pipeline_num",
    "opt_param_factor",
    "trace_events",
    "event_trace_file",
    "profile_by_acc",
    "sync_allreduce",
    "partitioning_dry_run_np",
    "decomposer",
    "min_partition_num",
    "max_partition_num",
    "do_coarsening",
    "do_uncoarsening",
    "coarsen_by_time",
    "dp_search_all",
    "min_pipeline_bs",
    "limit_dev_num_pot",
    "limit_dev_num_more_than_bs",
    "alloc_repl_flat",
    "save_graph_profile",
    "load_graph_profile",
    "graph_profile_file",
    "save_mlpart_results",
    "load_mlpart_results",
    "mlpart_results_file",
    "save_alloc_solutions",
    "load_alloc_solutions",
    "alloc_solutions_file_prefix",
    "dump_dp_node_profiles",
    "dump_dp_cache",
    "verify_partitioning",
    "verify_recomp",
    "consolidate_grads",
    "profiling",
    "display_comm_value",
    "display_act_value",
    "dump_graph",
    "dump_graph_prefix",
    "force_dist_matmul",
    "use_mpi_to_gather_dist_params",
    "use_named_tensors",
    "profiler_cache_size",
    "enable_kineto",
    "run_watchdog",
    "watchdog_lockfile_dir",
    "checkpointing",
    "replica_num",
    "p2p_comm",
    "graph_profiling",
    "profile_dump_path",
    "validate_comm",
    "profiling_iter",
    "checkpointing_no_last",
    "disable_balancing",
    "auto_parallel",
    "max_mp_num",
    "conf_dir",
]

#: Variables of the environment that are not settings.
VARIABLES = ["RANNC_CONF_DIR", "RANNC_CUDA_DEVICES", "RANNC_SKIP_GRAD_SCALING"]

LOGGERS = [
    "RaNNCProcess",
    "RaNNCModule",
    "GraphLauncher",
    "GraphConnector",
    "GraphProfiler",
    "GraphValueStorage",
    "ParamStorage",
    "TorchDriver",
    "NCCLWrapper",
    "SComm",
    "MLPartitioner",
    "DPStaging",
    "Decomposer",
    "Decomposition",
    "ConvertGraph",
    "Validator",
    "SyncWatchDog",
    "DistLinearFunction",
    "DistTaskDispatcher",
    "main",
    "rannc",
]

FILES = ["rannc_conf.toml", "logging.toml"]

#: What its documentation and examples show, by number.
RECIPES = [str(number) for number in range(1, 11)]

#: The items of its checklist for a successor, as docs/parity.md puts them.
CHECKLIST = """
    a model and its optimizer are wrapped and trained
    rank, world size, barrier, clear
    keyword arguments and nested structures
    pieces, blocks, then stages, replicas and micro-batches
    plans that fit in memory
    forced stages and micro-batches, bounds and margins
    the fewest stages that fit, and the search of all
    computation that does not depend on rows is cloned into each stage
    tied parameters within and across stages
    connections between stages that are no neighbours
    several inputs that different stages use
    another number of replicas in each stage
    uneven micro-batches and local batches
    inputs of rank 0 only
    recompute replays random numbers
    recompute is verified
    saved inputs of stages on the host
    a switch for dropout
    train and eval
    accumulation of gradients
    a graph that is kept
    norm and clipping over the whole model
    mixed precision
    ranks skip a step together after an overflow
    optimizer states that are shared out
    parameters that are shared out as they are made
    a sharded linear layer
    parameters on the host
    model checkpoints that do not depend on the plan, with buffers
    optimizer checkpoints that do not depend on the plan
    one parameter, and one gradient
    plans are saved, loaded and shown, with fingerprints
    measured costs are kept
    a plan for another number of ranks
    plans and messages are verified
    a plan is held against one process
    settings from file, environment and code
    loggers for each module
    timers
    a trace for Chrome
    a rank that fails ends the job
    scripted functions with control flow
    custom operators
    constant tensors
    in-place operators on what a stage takes in
    booleans between stages
    tests that fail on a mismatch, on a CPU, against one process
""".strip().splitlines()
