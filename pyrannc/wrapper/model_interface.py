"""What nn.Module promises, kept for the wrapped model: its names, state and modes."""

from contextlib import nullcontext

from torch import nn

from pyrannc import log
from pyrannc.materialize import initialised, values
from pyrannc.state import checkpoint, moving, named_tensors
from pyrannc.state.released import is_released
from pyrannc.wrapper import on_rank_0, own_names


class ModelInterface(nn.Module):
    """The methods of nn.Module of a wrapper around ``self.module``.

    The model is no registered child, so that every name stays that of the user's model, without a
    prefix. ``self._deployment`` is None before the first call.
    """

    def parameters(self, recurse=True, *, from_global=True):
        """The model's parameters in its order, on every rank the same number of them.

        From the first call on a rank holds those of its own stages. Of the others shape, dtype,
        device and ``requires_grad`` can be read; any other use is an error that names the ranks
        that hold them. ``from_global=False``: this rank's own only.
        """
        for _, parameter in self.named_parameters(recurse=recurse, from_global=from_global):
            yield parameter

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True, *, from_global=True):
        """As :meth:`parameters`, with their names in the model."""
        for name, parameter in self.module.named_parameters(prefix, recurse, remove_duplicate):
            if from_global or not is_released(parameter):
                yield name, parameter

    def buffers(self, recurse=True, *, from_global=True):
        """The model's buffers, as :meth:`parameters`."""
        for _, buffer in self.named_buffers(recurse=recurse, from_global=from_global):
            yield buffer

    def named_buffers(self, prefix="", recurse=True, remove_duplicate=True, *, from_global=True):
        """As :meth:`buffers`, with their names in the model."""
        for name, buffer in self.module.named_buffers(prefix, recurse, remove_duplicate):
            if from_global or not is_released(buffer):
                yield name, buffer

    register_buffer = own_names.of_model("register_buffer")
    register_parameter = own_names.of_model("register_parameter")
    add_module = register_module = own_names.of_model("add_module")
    register_state_dict_pre_hook = own_names.of_model(
        "register_state_dict_pre_hook", at_any_time=True
    )
    register_state_dict_post_hook = own_names.of_model(
        "register_state_dict_post_hook", at_any_time=True
    )
    register_load_state_dict_pre_hook = own_names.of_model(
        "register_load_state_dict_pre_hook", at_any_time=True
    )
    register_load_state_dict_post_hook = own_names.of_model(
        "register_load_state_dict_post_hook", at_any_time=True
    )
    # Under which older scripts know two of these.
    _register_state_dict_hook = own_names.of_model("_register_state_dict_hook", at_any_time=True)
    _register_load_state_dict_pre_hook = own_names.of_model(
        "_register_load_state_dict_pre_hook", at_any_time=True
    )

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        return self.module.named_modules(memo, prefix, remove_duplicate)

    def named_children(self):
        return self.module.named_children()

    def apply(self, fn):
        """Of the model and its modules: ``fn`` may ask for their classes."""
        if self._deployment is None:
            with initialised.refuse_writes(self.module, "apply()"):
                self.module.apply(fn)
        else:
            self.module.apply(fn)
        return self

    def train(self, mode=True):
        self.training = mode
        self.module.train(mode)
        return self

    def requires_grad_(self, requires_grad=True):
        self.module.requires_grad_(requires_grad)
        return self

    def compile(self, *_, **__):
        """Does nothing: what a call does is captured, and not Python."""
        log.warn("module", "compile() of a RaNNCModule does nothing")

    def _apply(self, fn, recurse=True):
        if self._deployment is None:
            self.module._apply(fn, recurse)
        else:
            moving.refuse_other_dtypes(self.module, fn)
            log.warn("module", "to() and the like do nothing after the first call")
        return self

    def state_dict(
        self,
        destination=None,
        prefix="",
        keep_vars=False,
        *,
        rank0_only=True,
        no_hook=False,
        amp_master_params=True,
    ):
        """The whole model's state by name, as the unwrapped model would give it.

        Every rank calls it. With ``rank0_only`` the other ranks get an empty dict, which
        ``torch.save()`` to a path leaves to rank 0; without, every rank gets everything, on the
        CPU. The first three arguments are those with which an outer module collects its state;
        after the first call there are copies only (``keep_vars``). With ``no_hook``, hooks on
        ``state_dict()`` of the model do not run. ``amp_master_params``: of RaNNC 0.7; parameters
        have no other copies.
        """
        without = named_tensors.without_state_hooks(self.module) if no_hook else nullcontext()
        with without:
            if self._deployment is None:
                return self.module.state_dict(
                    destination=destination, prefix=prefix, keep_vars=keep_vars
                )
            self._deployment.given_copies.refuse_written()
            self._deployment.call_agreement.other("state_dict()", inside_summon=True)
            if self._deployment.call_agreement.summoned is None:
                self._deployment.call_agreement.check_replicas()
            of_outer = set(destination or ())  # whose tensors are no copies
            found = checkpoint.gather_state(
                self.module, self._deployment, rank0_only, destination, prefix
            )
            rank = self._deployment.world.rank
            if rank0_only and rank:
                return on_rank_0.given_to(rank, destination)
            own = {name: value for name, value in found.items() if name not in of_outer}
            self._deployment.given_copies.add(own)
            return found

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Loads a whole model's state by name; each rank keeps its part. Every rank calls it.

        After the first call a rank may pass an empty dict: then rank 0's values count everywhere.
        """
        if self._deployment is None:
            values.refuse_loading(self.module, state_dict, assign)
            found = self.module.load_state_dict(state_dict, strict, assign)
            self._first_values.loaded |= checkpoint.persistent(self.module).keys()
            self._first_values.loaded.difference_update(found.missing_keys)
            return found
        self._deployment.given_copies.forget()
        self._deployment.call_agreement.other("load_state_dict()")
        return checkpoint.scatter_state(self.module, self._deployment, state_dict, strict)

    def _load_from_state_dict(
        self,
        state_dict,
        prefix,
        local_metadata,
        strict,
        missing_keys,
        unexpected_keys,
        error_msgs,
    ):
        """Loads this module's part of the state of an outer one; torch calls it on every rank."""
        state = checkpoint.part_of(self.module, state_dict, prefix, local_metadata)
        assign = local_metadata.get("assign_to_params_buffers", False)
        found = self.load_state_dict(state, strict=False, assign=assign)
        if strict:
            missing_keys.extend(prefix + name for name in found.missing_keys)
            unexpected_keys.extend(prefix + name for name in found.unexpected_keys)
