"""A table of each row's log-partition over scales: evaluations whose cost does not depend on the number of classes.

Leaving out the largest logit, and measuring from the second largest, the row's

    g(s) = log sum_{j != top} exp(s * (z_j - rival)),    F(s) = log(1 + exp(s * (rival - top) + g(s)))

has no sharp bends. Between nodes that lie a factor exp(`SPACING`) apart it is taken as the polynomial of degree five
with g's value and two derivatives at either end. `error_bound` proves how far that can be off, 7e-5 at a thousand
classes; on rows of real networks it is off by 1e-8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from recal.engine.kernels import instructions
from recal.engine.kernels.compiled import CONTRACT, FAST, kernel
from recal.engine.kernels.exponential import exp
from recal.engine.kernels.instructions import Lane, Number, is_fields, maximum

# Twelve nodes for each factor of e in the scale.
SPACING = 1.0 / 12.0
# Rows stand in blocks of as many, all fields of a block side by side in one array: offsets that a compiler knows are
# what lets it use vector instructions on this many fields.
LANES = 64
# A row's piece: its lower end, one over its width, six coefficients; then rival - top, at most 0, and a scale.
LOW, PER_WIDTH, C0, C1, C2, C3, C4, C5, GAP, SCALE, PIECE = range(11)
# What is known of a row at a scale s: F, then s F', s**2 F'' and so on, 1 - p, and whether it must be read instead.
VALUE, FIRST, SECOND, THIRD, FOURTH, AGAINST, TO_READ, KNOWN = range(8)
# Where those fields begin in a block that a loop writes to.
_LOW, _PER_WIDTH, _C0, _C1, _C2, _C3, _C4, _C5, _GAP, _SCALE = range(0, PIECE * LANES, LANES)
_TO_READ = TO_READ * LANES
_PIECE_SIZE, _KNOWN_SIZE = PIECE * LANES, KNOWN * LANES
# Why a row must be read: no node near its scale is filled, or it lies too close to the edge of a bin.
MISSING, NEAR_AN_EDGE = 1.0, 2.0
# Blocks whose sums are taken together, so that they do not depend on the number of threads.
CHUNK = 64
# Per group: samples, mistakes, the sum of s * d at the truth, and those of the first four derivatives.
COUNT, MISTAKES, PULL, N_SUMS = 0, 1, 2, 7


def error_bound(n_classes: int) -> float:
    """Return how far a piece's polynomial can lie from g, whatever the logits.

    The error of this interpolation is at most h**6 / 46080 times the largest sixth derivative, the sixth cumulant of
    z under weights p ~ exp(s z), m6 - 15 m4 m2 - 10 m3**2 + 30 m2**3 in central moments, at most 31 m6 in size since
    all four terms are at most m6 times their factors. Up to a shift s z is log p, so s**6 m6 is the central moment of
    log(1/p) >= 0, at most twice the plain one, E log(1/p)**6. The function p log(1/p)**6 is convex above exp(-5) and
    concave below: its sum is largest with one large p and all others equal, which leaves one number to maximise over.
    """
    share = np.exp(np.linspace(-12.0, -1e-9, 2000))  # of all classes but one
    moment = share * np.log(max(n_classes - 2, 1) / share) ** 6 + (1.0 - share) * np.log1p(-share) ** 6
    width = np.expm1(SPACING)  # of a piece, as a part of its lower end
    # One per cent for the steps between the shares tried.
    return float(1.01 * 31.0 * 2.0 * moment.max() * width**6 / 46080.0)


@kernel(fastmath=FAST)
def read_rows(index, start, stop, logits, columns, rivals, scales, out):  # type: ignore[no-untyped-def]
    """Fill out[k] with g of row index[k] at scales[k], and as many of its derivatives as there is room for, up to four.

    The largest logit is left out by a weight of 0, not by a loop of two parts: short loops have no vectors.
    """
    room = out.shape[1]
    for k in range(start, stop):
        i = index[k]
        column, rival, scale = columns[i], rivals[i], scales[k]
        total = first = second = third = fourth = 0.0
        for j in range(logits.shape[1]):
            drop = min(np.float64(logits[i, j]) - rival, 0.0)
            weight = 0.0 if j == column else exp(scale * drop)
            pull = weight * drop
            total += weight
            first += pull
            pull *= drop
            second += pull
            pull *= drop
            third += pull
            fourth += pull * drop
        per = 1.0 / total
        mean, square = first * per, second * per
        out[k, 0] = np.log(total)
        out[k, 1] = mean
        out[k, 2] = square - mean * mean
        if room > 3:
            cube, fourth = third * per, fourth * per
            out[k, 3] = cube - 3.0 * mean * square + 2.0 * mean * mean * mean
            out[k, 4] = fourth - 4.0 * mean * cube - 3.0 * square * square + 12.0 * mean * mean * square
            out[k, 4] -= 6.0 * mean * mean * mean * mean


@intrinsic
def _from_piece(typing_context: Any, own: Any, out: Any, lane: Any, error: Any, n_bins: Any) -> Any:
    """Fill what is known of the row in one lane from its piece and scale."""
    if not is_fields(own, out):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        own, out = (Lane(context, builder, signature.args[k], arguments[k], arguments[2], LANES) for k in range(2))
        _write_from_piece(own, out, Number(builder, arguments[3]), Number(builder, arguments[4]))
        return context.get_dummy_value()

    return types.none(own, out, types.intp, types.float64, types.float64), generate


def _write_from_piece(own: Lane, out: Lane, error: Number, n_bins: Number) -> None:
    s, per_width = own[SCALE], own[PER_WIDTH]
    t, per = (s - own[LOW]) * per_width, s * per_width
    a1, a2, a3, a4, a5 = (own[field] for field in range(C1, C5 + 1))
    apart = s * own[GAP]
    # The log of the odds against the prediction, then s times its derivative, s**2 times the second and so on.
    x = apart + own[C0] + t * (a1 + t * (a2 + t * (a3 + t * (a4 + t * a5))))
    x1 = apart + per * (a1 + t * (2.0 * a2 + t * (3.0 * a3 + t * (4.0 * a4 + t * (5.0 * a5)))))
    square = per * per
    x2 = square * (2.0 * a2 + t * (6.0 * a3 + t * (12.0 * a4 + t * (20.0 * a5))))
    x3 = square * per * (6.0 * a3 + t * (24.0 * a4 + t * (60.0 * a5)))
    x4 = square * square * (24.0 * a4 + t * (120.0 * a5))
    small = instructions.exp(0.0 - x.call("fabs"))
    larger = 1.0 / (1.0 + small)
    against = (small * larger).where(x < 0.0, larger)
    bend = small * larger * larger  # against * (1 - against); its derivatives in x follow
    turn = bend * (1.0 - 2.0 * against)
    steep = x1 * x1
    out[VALUE] = maximum(x, 0.0) + instructions.log1p(small)
    out[FIRST] = against * x1
    out[SECOND] = against * x2 + bend * steep
    out[THIRD] = against * x3 + x1 * (3.0 * bend * x2 + turn * steep)
    last = bend * (4.0 * x1 * x3 + 3.0 * x2 * x2 + (1.0 - 6.0 * bend) * steep * steep)
    out[FOURTH] = against * x4 + 6.0 * turn * steep * x2 + last
    out[AGAINST] = against
    place = (1.0 - against) * n_bins
    off = (place - (place + 0.5).call("floor")).call("fabs")
    near = off < 1.01 * place * error * against
    to_read = out[TO_READ]
    out[TO_READ] = maximum(to_read, NEAR_AN_EDGE).where(near, to_read)


@kernel(fastmath=CONTRACT)
def evaluate(  # type: ignore[no-untyped-def]
    blocks, start, stop, scales, groups, betas, pieces, known, table, lowest, node_scales, filled, error, n_bins
):
    """Fill what is known of each row at scale * beta of its group; rows of beta 0 are left out.

    A row keeps its piece while its scale stays within: scales move little from one iteration to the next.
    """
    for block in range(start, stop):
        own = pieces[block * _PIECE_SIZE : (block + 1) * _PIECE_SIZE]
        out = known[block * _KNOWN_SIZE : (block + 1) * _KNOWN_SIZE]
        for lane in range(min(LANES, len(scales) - block * LANES)):
            i = block * LANES + lane
            s = scales[i] * betas[groups[i]]
            out[_TO_READ + lane] = 0.0
            if s == 0.0 or 0.0 <= (s - own[_LOW + lane]) * own[_PER_WIDTH + lane] < 1.0:
                own[_SCALE + lane] = s
                continue
            k = int(np.floor((np.log(s) - lowest) / SPACING))
            if k < 0 or k + 1 >= len(filled) or not (filled[k] and filled[k + 1]):
                out[_TO_READ + lane] = MISSING
                continue
            h = node_scales[k + 1] - node_scales[k]
            f0, d0, c0 = table[k, i, 0], table[k, i, 1] * h, table[k, i, 2] * (h * h)
            rise, d1, c1 = table[k + 1, i, 0] - f0, table[k + 1, i, 1] * h, table[k + 1, i, 2] * (h * h)
            own[_LOW + lane] = node_scales[k]
            own[_PER_WIDTH + lane] = 1.0 / h
            own[_C0 + lane] = f0
            own[_C1 + lane] = d0
            own[_C2 + lane] = 0.5 * c0
            own[_C3 + lane] = 10.0 * rise - 6.0 * d0 - 4.0 * d1 - 1.5 * c0 + 0.5 * c1
            own[_C4 + lane] = -15.0 * rise + 8.0 * d0 + 7.0 * d1 + 1.5 * c0 - c1
            own[_C5 + lane] = 6.0 * rise - 3.0 * (d0 + d1) - 0.5 * (c0 - c1)
            own[_SCALE + lane] = s
        for lane in range(LANES):
            _from_piece(own, out, lane, error, n_bins)


@kernel(fastmath=CONTRACT)
def sum_groups(sums, start, stop, groups, known, scales, drops):  # type: ignore[no-untyped-def]
    """Fill sums[chunk, group] with what a fit of one beta per group needs to know; see `N_SUMS`."""
    n_samples, rows = len(scales), CHUNK * LANES
    for chunk in range(start, stop):
        part = sums[chunk]
        for g in range(len(part)):
            for field in range(N_SUMS):
                part[g, field] = 0.0
        for i in range(chunk * rows, min((chunk + 1) * rows, n_samples)):
            g = groups[i]
            place = (i // LANES) * _KNOWN_SIZE + i % LANES
            part[g, COUNT] += 1.0
            part[g, MISTAKES] += 1.0 if drops[i] < 0.0 else 0.0
            part[g, PULL] += scales[i] * drops[i]
            for order in range(FIRST, AGAINST):
                part[g, PULL + order] += known[place + order * LANES]


@kernel()
def sum_bins(log_partition, correct, edges, gaps):  # type: ignore[no-untyped-def]
    """Add correctness minus confidence to each sample's bin: (lo, hi], with 0 in the first."""
    n_bins = len(gaps)
    for i in range(len(correct)):
        confidence = exp(-log_partition[i])
        b = min(max(int(np.ceil(confidence * n_bins)) - 1, 0), n_bins - 1)
        # The product may be rounded across an edge: the edges themselves decide.
        if b > 0 and confidence <= edges[b]:
            b -= 1
        elif confidence > edges[b + 1]:
            b += 1
        gaps[b] += correct[i] - confidence
