"""``rannc show``: a plan file as a table."""

import typer

from pyrannc import plan


def show(path: str) -> None:
    try:
        plan.show_deployment(path)
    except plan.PlanFileError as error:
        typer.echo(f"rannc: {error}", err=True)
        raise typer.Exit(1) from None
