"""``rannc ckpt``: looks at checkpoints of ``pyrannc.save()``, and writes them otherwise."""

import enum
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Look at a checkpoint, or write it otherwise.")
Folder = Annotated[Path, typer.Argument(help="folder that pyrannc.save() has written")]
Target = Annotated[Path, typer.Argument(help="new folder")]


class Layout(enum.StrEnum):
    huggingface = "huggingface"
    torch = "torch"


def _done(work, *args):
    from pyrannc.errors import RaNNCError

    try:
        return work(*args)
    except (RaNNCError, OSError) as error:
        print(f"rannc ckpt: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command(help="Say what is in it: tensors, optimizers, schedulers.")
def inspect(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of lines")] = False,
):
    from pyrannc.checkpoint import tools

    if as_json:
        print(json.dumps(_done(tools.facts, folder), indent=1))
        return
    print("\n".join(_done(tools.inspect, folder)))


@app.command(help="Read all of it, and compare with the checksums.")
def verify(folder: Folder):
    from pyrannc.checkpoint import tools

    print(f"{folder}: {_done(tools.verify, folder)} tensors are as they were saved")


@app.command(help="Write the weights as one model.safetensors in a new folder.")
def merge(folder: Folder, target: Target):
    from pyrannc.checkpoint import tools

    _done(tools.merge, folder, target)
    print(f"{target / 'model.safetensors'}: the weights of {folder}")


@app.command(help="Write it as from_pretrained() of transformers, or torch.load(), reads it.")
def convert(
    folder: Folder,
    target: Target,
    to: Annotated[Layout, typer.Option(help="whose layout")] = Layout.huggingface,
):
    from pyrannc.checkpoint import tools

    _done(tools.to_hugging_face if to is Layout.huggingface else tools.to_torch, folder, target)
    print(f"{target}: {folder} as {to} reads it")
