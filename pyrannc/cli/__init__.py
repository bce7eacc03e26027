"""The command ``rannc``. Commands are loaded when they are called: planning needs no torch."""

from typing import Annotated

import typer

from pyrannc.cli import ckpt

_RANKS = ("-n", "-np", "--ranks", "--nproc_per_node", "--nproc-per-node")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Trains PyTorch models across MPI ranks by an automatic plan.",
)
app.add_typer(ckpt.app, name="ckpt")


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,  # what follows the script is the script's
    },
    help="Start a script on several ranks: rannc run -n 4 train.py --its --arguments",
)
def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="Python script")],
    ranks: Annotated[
        int | None, typer.Option("-n", "-np", "--ranks", min=1, help="number of ranks; else 1")
    ] = None,
    hosts: Annotated[str, typer.Option(help="hosts and their ranks, a:2,b:2")] = "",
    hostfile: Annotated[str, typer.Option(help="file of hosts, as mpirun reads it")] = "",
    log_dir: Annotated[
        str, typer.Option(help="folder for what each rank writes, too: rank_0.log, rank_1.log, ...")
    ] = "",
    max_restarts: Annotated[
        int, typer.Option(min=0, help="how often a job that fails is started again")
    ] = 0,
    min_hosts: Annotated[
        int, typer.Option(min=0, help="a restart goes on without the others; 0: waits for all")
    ] = 0,
    env: Annotated[
        list[str] | None,
        typer.Option(help="name of a variable that ranks on other hosts get, too (repeatable)"),
    ] = None,
):
    from pyrannc.cli.run import run as start

    command = [script, *context.args]
    late = next((each for each in context.args if each in _RANKS), None)
    if ranks is None and late is not None:
        raise typer.BadParameter(
            f"{late} stands after the script, to which it would go, and there is no number of ranks"
            f" before it: rannc run -n 4 {script} ... (-n 1 where the script is to get it)"
        )
    raise typer.Exit(
        start(
            ranks or 1, command, hosts, hostfile, log_dir, max_restarts, tuple(env or ()), min_hosts
        )
    )


def planning_command(name: str, summary: str) -> None:
    """A command of the program ``rannc-plan``, which reads its arguments and prints its help."""

    @app.command(
        name,
        help=summary,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def command(context: typer.Context):
        from pyrannc import planner

        planner.become([name, *context.args])


planning_command("plan", "Find the fastest plan for a graph, a cluster and a request, from files.")
planning_command("evaluate", "Time and memory of any plan, and what is wrong with it.")


@app.command(
    help="Show a plan file: stages, memory, where the time goes; as a page with --html.",
    epilog="rannc show plan.json --html plan.html --graph g.json",
)
def show(
    plan: Annotated[str, typer.Argument(help="rannc-plan, JSON")],
    html: Annotated[str | None, typer.Option(help="write a page to look at instead")] = None,
    graph: Annotated[
        str | None, typer.Option(help="rannc-graph-profile that it is a plan of")
    ] = None,
    record: Annotated[
        str | None, typer.Option(help="record of a run: predicted beside measured, in the page")
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(min=1, help="rows, where the plan does not say how many")
    ] = None,
    width: Annotated[int | None, typer.Option(min=40, help="default: the terminal's")] = None,
    timeline: Annotated[bool, typer.Option("--timeline", help="who computes when")] = False,
    names: Annotated[bool, typer.Option("--names", help="also the names of all operators")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the figures as JSON")] = False,
):
    from pyrannc.cli import plans

    if as_json:
        if html is not None or timeline or names:
            raise typer.BadParameter("--json goes with --graph and --record only")
        plans.figures(plan, graph, record)
        return
    if html is not None:
        plans.write_page(html, [plan], graph, record)
        return
    if record is not None:
        raise typer.BadParameter("a record is shown in a page: give --html, or --json")
    plans.show(plan, graph, global_batch, width, timeline, names)


@app.command(
    help="Which stage of a plan holds a module; with --graph and --cluster also what it would cost "
    "to move or to recompute it."
)
def explain(
    plan: Annotated[str, typer.Argument(help="rannc-plan, JSON")],
    module: Annotated[str, typer.Argument(help="a module's path, or a node's name")],
    graph: Annotated[str | None, typer.Option(help="rannc-graph-profile of the plan")] = None,
    cluster: Annotated[str | None, typer.Option(help="rannc-cluster, TOML")] = None,
    request: Annotated[
        str | None, typer.Option(help="rannc-plan-request; else the plan's rows alone")
    ] = None,
    width: Annotated[int | None, typer.Option(min=40, help="default: the terminal's")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of text")] = False,
):
    from pyrannc.cli import plans

    if (graph is None) != (cluster is None):
        raise typer.BadParameter("costs need both: --graph and --cluster")
    plans.explain(plan, module, graph, cluster, request, width, as_json)


@app.command(
    help="What training would take on other numbers of devices: "
    "rannc advise train.py:build --cluster cluster.toml --batch 1024"
)
def advise(
    target: Annotated[str, typer.Argument(help="FILE:FUNCTION as for capture, or a graph-profile")],
    cluster: Annotated[str, typer.Option(help="rannc-cluster, TOML: the largest that there is")],
    batch: Annotated[str, typer.Option(help="rows of the global batch; several: 512,1024")],
    devices: Annotated[str, typer.Option(help="numbers; else powers of two, and all")] = "",
    memory: Annotated[str, typer.Option(help="GB of a device instead of the cluster's")] = "",
    recompute: Annotated[str, typer.Option(help="auto, never, always, or several")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="of the weights of a build: bf16, fp16, fp32, or several")
    ] = "bf16",
    autocast: Annotated[
        str | None, typer.Option(help="bf16 or fp16: a build computes under torch.autocast")
    ] = None,
    device: Annotated[str, typer.Option(help="whose costs a build is captured with")] = "a100",
    request: Annotated[
        str | None, typer.Option(help="rannc-plan-request; its batch is replaced")
    ] = None,
    price: Annotated[float, typer.Option(min=0, help="of a device for an hour")] = 0.0,
    html: Annotated[str | None, typer.Option(help="write a page with a chart, too")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
):
    from pyrannc.cli import what_if

    what_if.advise(
        target, cluster, batch, devices, memory, recompute, dtype, autocast, device, request,
        price, html, as_json,
    )  # fmt: skip


@app.command(help="What two plans differ in: rannc diff a.json b.json, as a page with --html.")
def diff(
    first: Annotated[str, typer.Argument(help="rannc-plan, JSON")],
    second: Annotated[str, typer.Argument(help="rannc-plan, JSON")],
    html: Annotated[str | None, typer.Option(help="write a page to look at instead")] = None,
    graph: Annotated[
        str | None, typer.Option(help="rannc-graph-profile of both, for the page")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
):
    from pyrannc.cli import plans

    if html is not None:
        plans.write_page(html, [first, second], graph, None)
        return
    plans.diff(first, second, as_json)


@app.command(
    help="Write the graph-profile of a model, without a GPU: rannc capture train.py:build, or of "
    "transformers: rannc capture --hf config.json --batch 16 --length 2048 --autocast bf16"
)
def capture(
    target: Annotated[
        str | None, typer.Argument(help="FILE:FUNCTION that returns (model, inputs)")
    ] = None,
    output: Annotated[str, typer.Option("-o", "--output", help="file to write")] = "graph.json",
    device: Annotated[
        str,
        typer.Option(help="as h100 (all: docs/device-models.md), or measured: timed on this CPU"),
    ] = "a100",
    dtype: Annotated[
        str | None, typer.Option(help="of the weights: bf16, fp16, fp32 or fp64; else as built")
    ] = None,
    hf: Annotated[
        str, typer.Option(help="a config.json of transformers, or its folder, instead of TARGET")
    ] = "",
    batch: Annotated[int, typer.Option(min=1, help="rows of the call, with --hf")] = 8,
    length: Annotated[int, typer.Option(min=1, help="tokens of a row, with --hf")] = 512,
    autocast: Annotated[
        str | None, typer.Option(help="bf16 or fp16: compute under torch.autocast")
    ] = None,
    rows: Annotated[str, typer.Option(help="numbers of samples to take costs at")] = "1,2,4,8",
    level: Annotated[str, typer.Option(help="operator, or module: a node per call")] = "operator",
    depth: Annotated[int, typer.Option(help="components of a module's path; 0: all")] = 0,
    real: Annotated[bool, typer.Option("--real", help="build with real memory")] = False,
):
    from pyrannc.cli.capture import capture as write_profile

    if (target is None) == (not hf):
        raise typer.BadParameter("one model is wanted: FILE:FUNCTION, or --hf CONFIG.json")
    write_profile(
        target, output, device, dtype, rows, level, depth, real, hf, batch, length, autocast
    )


@app.command(
    help="Check this machine: versions, MPI, memory, message passing; with --hosts those hosts: "
    "who reaches whom, versions, names, networks, links, devices."
)
def doctor(
    hosts: Annotated[str, typer.Option(help="hosts that ssh reaches, a,b")] = "",
    env: Annotated[
        list[str] | None, typer.Option(help="name of a variable for them (repeatable)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
):
    from pyrannc.cli.doctor import doctor as examine

    raise typer.Exit(examine(as_json, hosts, tuple(env or ())))


def main():
    app()
