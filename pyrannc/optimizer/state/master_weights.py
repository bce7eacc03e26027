"""Weights of 16 bits have masters: copies of 32 bits, which are stepped in their place.

A step of a bfloat16 weight that is smaller than 1/512 of it is lost, and most steps are. The master
of a parameter adds them up, and the parameter is the master, rounded (Micikevicius et al., *Mixed
Precision Training*, ICLR 2018, section 3.1).
"""

import torch

#: Of a master in the state of its parameter.
KEY = "master"
SHORT = (torch.bfloat16, torch.float16)


def has_master(parameter) -> bool:
    return parameter.requires_grad and parameter.dtype in SHORT


def bytes_of(parameter) -> int:
    """Of its master."""
    return 4 * parameter.numel() if has_master(parameter) else 0


def stepped_bytes(parameter) -> int:
    """Of what an optimizer steps in its place, to which its state is as large."""
    return bytes_of(parameter) or parameter.nbytes


def stepped_dtype(tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in SHORT else tensor.dtype
