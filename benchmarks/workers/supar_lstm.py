"""supar's bidirectional LSTM and PyTorch's products in float32, faster on one core. `install` replaces both.

supar calls an LSTM cell for each position, so that each position multiplies inputs and hidden states by its weights,
forward and backward. Here one product takes the inputs of all positions, and one computes the gradient of a weight.
PyTorch multiplies with MKL, which on AMD's processors runs at half the rate of oneDNN. Both replacements change the
order of sums only. On one core of an AMD EPYC (Zen 5), a step of CRAFT's parser takes 0.56 of the time.

Shapes: R rows, the words of all sentences, ordered by position; I inputs; H size of the hidden state.
"""

from __future__ import annotations

from typing import Any

import torch
from supar.modules.lstm import SharedDropout, VariationalLSTM
from torch.nn.utils.rnn import PackedSequence, pack_sequence

LARGEST_ERROR = 1e-12  # relative, in float64
_library = torch.library.Library("aten", "IMPL")


class Direction(torch.autograd.Function):
    """One direction of one layer: x [R, I] to hidden states [R, H]."""

    @staticmethod
    def forward(ctx: Any, x: Any, mask: Any, w_x: Any, w_h: Any, bias: Any, sizes: list[int], reverse: bool) -> Any:
        """`mask`, or None, is the dropout mask of each sentence's hidden states; `sizes` counts the sentences at each
        position, longest first.
        """
        H = w_h.shape[1]
        gates = torch.addmm(bias, x, w_x.t())
        before, cells, tanh, hidden = (x.new_zeros(len(x), H) for _ in range(4))
        starts = [sum(sizes[:t]) for t in range(len(sizes))]
        order = range(len(sizes))[:: -1 if reverse else 1]
        last = None
        for t in order:
            here = slice(starts[t], starts[t] + sizes[t])
            gate = gates[here]
            if last is not None:
                n = min(sizes[t], sizes[last])  # sentences with both positions
                h = hidden[starts[last] : starts[last] + n]
                before[starts[t] : starts[t] + n] = h if mask is None else h * mask[:n]
                gate[:n] += before[starts[t] : starts[t] + n] @ w_h.t()
            gate[:, : 2 * H].sigmoid_()
            gate[:, 2 * H : 3 * H].tanh_()
            gate[:, 3 * H :].sigmoid_()
            cell = torch.mul(gate[:, :H], gate[:, 2 * H : 3 * H], out=cells[here])
            if last is not None:
                cell[:n].addcmul_(gate[:n, H : 2 * H], cells[starts[last] : starts[last] + n])
            torch.mul(gate[:, 3 * H :], torch.tanh(cell, out=tanh[here]), out=hidden[here])
            last = t
        ctx.save_for_backward(x, mask, w_x, w_h, gates, before, cells, tanh)
        ctx.positions = sizes, starts, order
        return hidden

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, mask, w_x, w_h, gates, before, cells, tanh = ctx.saved_tensors
        sizes, starts, order = ctx.positions
        H = w_h.shape[1]
        d_gates, d_h, d_cell = torch.zeros_like(gates), None, None  # d_h and d_cell come from the position after t
        for t, last in zip(reversed(order), [*reversed(order[:-1]), None], strict=True):
            here = slice(starts[t], starts[t] + sizes[t])
            i, f, c, o = gates[here].split(H, 1)
            d_i, d_f, d_c, d_o = d_gates[here].split(H, 1)
            d = gradient[here]
            if d_h is not None:
                d = d.clone()
                d[: len(d_h)] += d_h
            torch.mul(d * tanh[here], o * (1 - o), out=d_o)
            d = d * o * (1 - tanh[here] ** 2)
            if d_cell is not None:
                d[: len(d_cell)] += d_cell
            torch.mul(d * c, i * (1 - i), out=d_i)
            torch.mul(d * i, 1 - c**2, out=d_c)
            if last is not None:
                n = min(sizes[t], sizes[last])
                d_cell = d[:n] * f[:n]
                torch.mul(cells[starts[last] : starts[last] + n] * d_cell, 1 - f[:n], out=d_f[:n])
                d_h = d_gates[here][:n] @ w_h
                d_h = d_h if mask is None else d_h * mask[:n]
        return d_gates @ w_x, None, d_gates.t() @ x, d_gates.t() @ before, d_gates.sum(0), None, None


def forward(self: VariationalLSTM, sequence: PackedSequence) -> tuple[PackedSequence, None]:
    """Returns what `VariationalLSTM.forward` returns, without the last states, which supar's parser does not read."""
    x, sizes = sequence.data, sequence.batch_sizes.tolist()
    for layer in range(self.num_layers):
        if self.training:
            mask = SharedDropout.get_mask(x[: sizes[0]], self.dropout)
            x = x * torch.cat([mask[:n] for n in sizes])
        both = []
        for cells, reverse in ((self.f_cells, False), (self.b_cells, True)):
            cell, states = cells[layer], x.new_zeros(sizes[0], self.hidden_size)
            mask = SharedDropout.get_mask(states, self.dropout) if self.training else None
            weights = cell.weight_ih, cell.weight_hh, cell.bias_ih + cell.bias_hh
            both.append(Direction.apply(x, mask, *weights, sizes, reverse))
        x = torch.cat(both, -1)
    return PackedSequence(x, sequence.batch_sizes, sequence.sorted_indices, sequence.unsorted_indices), None


def product(a: Any, b: Any, bias: Any = None) -> Any:
    """Returns a b + bias by oneDNN, or by PyTorch if it is not float32."""
    if a.dtype == torch.float32:
        return torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
    y = torch.bmm(a[None], b[None])[0]
    return y if bias is None else y + bias


def addmm(bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """aten::addmm, of which supar uses only the sum of a product and a bias."""
    if (beta, alpha, bias.dim()) != (1, 1, 1):
        return beta * bias + alpha * product(a, b)
    return product(a, b, bias)


def install() -> None:
    """Replaces both, after a comparison with what they replace. Raises RuntimeError if they differ."""
    largest = max(_error(is_training) for is_training in (True, False))
    if largest > LARGEST_ERROR:
        raise RuntimeError(f"the faster LSTM differs from supar's by {largest}, expected at most {LARGEST_ERROR}")
    a, b, bias = (torch.randint(-8, 9, shape).float() for shape in ((50, 70), (70, 30), (30,)))  # exact sums
    if not (torch.equal(product(a, b), a @ b) and torch.equal(addmm(bias, a, b), torch.addmm(bias, a, b))):
        raise RuntimeError("oneDNN's product differs from PyTorch's, expected the same integers")
    VariationalLSTM.forward = forward
    _library.impl("mm", product, "CPU")
    _library.impl("addmm", addmm, "CPU")


def _error(is_training: bool) -> float:
    """Returns the largest relative difference of outputs and gradients from supar's own, in float64."""
    lstm = VariationalLSTM(10, 12, num_layers=2, bidirectional=True, dropout=0.3).double().train(is_training)
    x = pack_sequence([torch.randn(length, 10).double() for length in (6, 6, 4, 1)])
    found = []
    for function in (VariationalLSTM.forward, forward):
        torch.manual_seed(1)  # the same dropout
        lstm.zero_grad()
        y = function(lstm, x)[0].data
        y.square().sum().backward()
        found.append([y.detach(), *(each.grad.clone() for each in lstm.parameters())])
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*found, strict=True))
