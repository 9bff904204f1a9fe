"""The specification of attention as loops over sets, in numpy float64: what every implementation must equal.

Nothing here knows `Mask`: who may read whom is a predicate written from the definition in words.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnlab import masks
from attnlab.masks import Mask

Allowed = Callable[[int, int, int, int], bool]  # (batch, head, query, key)


@dataclass(frozen=True)
class Answer:
    """Everything attention gives, and its gradients for the output cotangent it was asked with."""

    out: np.ndarray
    lse: np.ndarray
    max_logit: np.ndarray
    entropy: np.ndarray
    weights: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dscale: np.ndarray  # per head
    dbias: np.ndarray  # [B, N, T, S]


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    allowed: Allowed,
    *,
    scale: float | np.ndarray,
    softcap: float | None = None,
    bias: np.ndarray | None = None,
    dout: np.ndarray | None = None,
) -> Answer:
    """Attention of q [B, T, N, H] over k, v [B, S, K, H], and the gradients of sum(out * dout)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    B, T, N, _ = q.shape
    S, K = k.shape[1:3]
    scales = np.broadcast_to(np.asarray(scale, np.float64), (N,))
    dout = np.zeros((B, T, N, v.shape[-1])) if dout is None else np.asarray(dout, np.float64)
    out = np.zeros_like(dout)
    lse, max_logit = np.full((B, N, T), -np.inf), np.full((B, N, T), -np.inf)
    entropy, weights = np.zeros((B, N, T)), np.zeros((B, N, T, S))
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    dscale, dbias = np.zeros(N), np.zeros((B, N, T, S))
    for b, n, i in np.ndindex(B, N, T):
        keys = [j for j in range(S) if allowed(b, n, i, j)]
        if not keys:
            continue
        g = n // (N // K)
        kk, vv, do = k[b, keys, g], v[b, keys, g], dout[b, i, n]
        dot = kk @ q[b, i, n]
        raw = dot * scales[n] + (0 if bias is None else bias[b, n, i, keys])
        s = raw if softcap is None else softcap * np.tanh(raw / softcap)
        m = s.max()
        lse[b, n, i], max_logit[b, n, i] = m + np.log(np.exp(s - m).sum()), m
        p = np.exp(s - lse[b, n, i])
        weights[b, n, i, keys] = p
        entropy[b, n, i] = lse[b, n, i] - p @ s
        out[b, i, n] = p @ vv
        dv[b, keys, g] += np.outer(p, do)
        dp = vv @ do
        ds = p * (dp - p @ dp)
        if softcap is not None:
            ds = ds * (1 - np.tanh(raw / softcap) ** 2)
        dbias[b, n, i, keys] = ds
        dscale[n] += ds @ dot
        dq[b, i, n] = scales[n] * (ds @ kk)
        dk[b, keys, g] += scales[n] * np.outer(ds, q[b, i, n])
    return Answer(out, lse, max_logit, entropy, weights, dq, dk, dv, dscale, dbias)


@functools.cache
def named_masks(q_len: int, kv_len: int) -> dict[str, tuple[Mask, Allowed]]:
    """One of every kind the shapes admit, for 2 examples and 2 heads, beside its definition in words."""
    T, S = q_len, kv_len
    rng = np.random.default_rng(T * 1000 + S)
    graph = rng.random((T, S)) < 0.4
    graph[0] = False  # one query that reads nothing
    per_head = rng.random((2, 2, T, S)) < 0.6
    segments = np.sort(rng.integers(-1, 3, (2, T)), axis=1)  # the padding, -1, comes first
    offset = S - T
    found: dict[str, tuple[Mask, Allowed]] = {
        "full": (masks.full(T, S), lambda b, n, i, k: True),
        "nothing": (
            masks.key_padding(T, starts=S, kv_len=S),
            lambda b, n, i, k: False,
        ),
        "causal_top_left": (
            masks.causal(T, S, align="top_left"),
            lambda b, n, i, k: k <= i,
        ),
        "causal_bottom_right": (
            masks.causal(T, S, align="bottom_right"),
            lambda b, n, i, k: k <= i + offset,
        ),
        "strict_causal": (masks.causal(T, S, offset=-1), lambda b, n, i, k: k < i),
        "sliding_window_3": (
            masks.sliding_window(T, 3, S, offset=0),
            lambda b, n, i, k: i - 3 < k <= i,
        ),
        "band": (
            masks.window(T, S, left=2, right=1, offset=1),
            lambda b, n, i, k: i - 1 <= k <= i + 2,
        ),
        "left_padded_causal": (
            masks.causal(T, S, offset=0) & masks.key_padding(T, starts=2, kv_len=S),
            lambda b, n, i, k: 2 <= k <= i,
        ),
        "right_padded": (
            masks.key_padding(T, lengths=max(S - 2, 0), kv_len=S),
            lambda b, n, i, k: k < S - 2,
        ),
        "graph": (
            masks.dense(graph),
            lambda b, n, i, k: bool(graph[i, k]),
        ),
        "graph_and_causal": (
            masks.dense(graph) & masks.causal(T, S, offset=0),
            lambda b, n, i, k: bool(graph[i, k]) and k <= i,
        ),
    }
    found["per_batch_and_head"] = (
        masks.dense(per_head),
        lambda b, n, i, k: bool(per_head[b, n, i, k]),
    )
    found["heads_differ"] = (
        Mask.at_heads([masks.causal(T, S, offset=0), masks.full(T, S)]),
        lambda b, n, i, k: n == 1 or k <= i,
    )
    if T == S:
        found["documents"] = (
            masks.documents(segments),
            lambda b, n, i, k: segments[b, i] == segments[b, k] >= 0 and k <= i,
        )
        found["prefix_lm"] = (
            masks.prefix_lm(T, T // 2),
            lambda b, n, i, k: k <= i or k < T // 2,
        )
        found["chunked"] = (
            masks.chunked(T, 3),
            lambda b, n, i, k: i // 3 == k // 3 and k <= i,
        )
        found["block_causal"] = (masks.block_causal(T, 2), lambda b, n, i, k: k // 2 <= i // 2)
    return found
