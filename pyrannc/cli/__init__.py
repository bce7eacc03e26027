"""The command ``rannc``. Commands are loaded when they are called: planning needs no torch."""

from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Trains PyTorch models across MPI ranks by an automatic plan.",
)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="Start a script on several ranks: rannc run -n 4 train.py --its --arguments",
)
def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="Python script")],
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="number of ranks")] = 1,
):
    from pyrannc.cli.run import run as start

    raise typer.Exit(start(ranks, [script, *context.args]))


@app.command(help="Show a plan file as a table.")
def show(path: Annotated[str, typer.Argument(help="plan.json")]):
    from pyrannc.cli.show import show as print_plan

    print_plan(path)


@app.command(help="Check this machine: versions, MPI, memory, message passing.")
def doctor():
    from pyrannc.cli.doctor import doctor as examine

    raise typer.Exit(examine())


def main():
    app()
