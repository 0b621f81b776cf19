"""Muon: momentum whose direction is made orthogonal, for matrices.

Newton-Schulz coefficients after Keller Jordan's Muon; updates are scaled by
0.2 * sqrt(longer side), so that AdamW's learning rates stay comparable.
"""

import torch


def orthogonalised(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """(batch, rows, columns): singular values pushed towards one."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Works on all matrices of one shape in one batch."""

    def __init__(self, parameters, learning_rate: float, weight_decay: float, momentum: float = 0.95):
        self.learning_rate, self.weight_decay, self.momentum = learning_rate, weight_decay, momentum
        self.groups: dict[tuple, list] = {}
        for parameter in parameters:
            self.groups.setdefault(tuple(parameter.shape), []).append(parameter)
        self.momenta = {
            shape: torch.zeros(len(group), *shape, device=group[0].device) for shape, group in self.groups.items()
        }

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One update at `factor` times the learning rate."""
        rate = self.learning_rate * factor
        for shape, group in self.groups.items():
            gradients = torch.stack([parameter.grad for parameter in group])
            momentum = self.momenta[shape]
            momentum.lerp_(gradients, 1 - self.momentum)
            update = orthogonalised(gradients.lerp(momentum, self.momentum)) * (0.2 * max(shape) ** 0.5)
            torch._foreach_mul_(group, 1 - rate * self.weight_decay)
            torch._foreach_add_(group, list(update.unbind(0)), alpha=-rate)
