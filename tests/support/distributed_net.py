"""The net and the rows of the tests of accumulation, for processes of their own."""

import torch

import memload

ROWS = 22


def rows_and_targets(dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(ROWS, 5, dtype=dtype, generator=generator), torch.randn(
        ROWS, 2, dtype=dtype, generator=generator
    )


def net(dtype=torch.float64):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2)).to(dtype)


def gradients(model):
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])


def dataset():
    x, y = rows_and_targets()
    return memload.from_arrays(x=x.clone(), y=y.clone()).as_tuple("x", "y")
