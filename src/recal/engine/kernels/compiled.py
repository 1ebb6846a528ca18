"""How kernels are compiled: once, kept on disk, without what is never used of them.

A first fit waits for its kernels, so each says only what it needs to: no entry for C callers, and none for Python in
functions that other kernels alone call. Divisions by zero give what numpy gives, without which no loop that divides
would be turned into vector instructions.
"""

from __future__ import annotations

from functools import partial

from numba import njit

kernel = partial(njit, cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
part_of_kernel = partial(kernel, no_cpython_wrapper=True)
# Sums may be reordered to use vector instructions; the order depends on the number of classes alone.
FAST = {"reassoc", "contract", "nsz"}
