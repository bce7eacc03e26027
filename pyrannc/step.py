"""One training step as one node of the user's autograd graph."""

import torch

from pyrannc.errors import RaNNCError


class PipelineStep(torch.autograd.Function):
    """Joins a call of the executor to the user's graph: all outputs, and all of its inputs.

    The real parameters are inputs, so that autograd itself does everything about ``.grad``:
    accumulation, hooks, ``torch.autograd.grad``. What belongs to a call is kept in its ``ctx``, so
    several forwards before a backward are right. Backward runs in a
    ``with during(gradients, keep_graph)`` block.

    Where the backward of the pipeline has run with its forward, outputs beside the loss belong to
    the node all the same, so that a backward through them is an error and not a missing gradient.
    """

    @staticmethod
    def forward(ctx, call, during, differentiable, gate, *leaves):
        # `gate` requires grad on every rank: a rank without trainable parameters must still have a
        # loss that backward can be called on, because its backward takes part in the pipeline.
        ctx.call, ctx.during = call, during
        ctx.set_materialize_grads(False)
        # None where the schedule does not return an output.
        outputs = tuple(output if output is None else output.detach() for output in call.outputs)
        ctx.mark_non_differentiable(
            *(
                output
                for output, wanted in zip(outputs, differentiable, strict=True)
                if output is not None and not wanted
            )
        )
        return outputs

    @staticmethod
    def backward(ctx, *gradients):
        if torch.is_grad_enabled():
            raise RaNNCError(
                "backward(create_graph=True) through a RaNNCModule is not possible: second "
                "derivatives would have to run the pipeline again"
            )
        keep_graph = torch._C._autograd._get_current_graph_task_keep_graph()
        with ctx.during(gradients, keep_graph):
            gradients = ctx.call.backward(list(gradients), keep_graph)
        return (None, None, None, None, *gradients)
