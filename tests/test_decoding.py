"""Decoding: what may be continued, how a token is drawn, and that the cache never changes the text."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import decoding, model
from attnlab import knobs as knobs_lib
from attnlab.decoding import Choice
from attnlab.masks import mask_text

T, V = 8, 17


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


TASK = tiny.group(tiny.config(positions="learned+rope")).task
ARCH = TASK.architecture


def knobs(**changes):
    return knobs_lib.knobs(tiny.config(positions="learned+rope", **changes), ARCH)


@functools.cache
def params():
    """Sharp enough that the likeliest token depends on all that is read."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: model.init(ARCH, jnp.uint32(0)))
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)


def generate(prompt, count, made=None, **choice):
    made = knobs() if made is None else made
    return list(decoding.generate(TASK, params(), made, prompt, count, Choice(**choice)))


@jax.jit
def forward(params, tokens_1T, made):
    return model.apply(ARCH, params, tokens_1T, made.mask, made.model)[0]


def uncached(prompt, count, made, least=1, head=()):
    """The stated rule, one whole forward pass a token: likeliest next, half a context when it is full."""
    head = list(head)
    room = T - len(head)
    tokens, window = list(prompt), head + list(prompt)[-room:]
    for _ in range(count):
        if len(window) > T:
            window = head + tokens[-max(room // 2, least - len(head)) :]
        padded = np.zeros((1, T), np.int32)
        padded[0, : len(window)] = window
        token = int(np.argmax(forward(params(), padded, made)[0, len(window) - 1]))
        tokens.append(token)
        window.append(token)
    return tokens[len(prompt) :]


@pytest.mark.parametrize("mask", ["causal", "sliding_window(3)", "prefix_lm(3)", "prefix_lm(6)"])
@pytest.mark.parametrize("length", [6, T, 11])
def test_text_is_that_of_whole_forward_passes_within_and_beyond_the_context(mask, length):
    made = knobs(mask=mask)
    prompt = np.random.default_rng(length).integers(0, V, length).tolist()
    least = {"prefix_lm(3)": 3, "prefix_lm(6)": 6}.get(mask, 1)
    expected = uncached(prompt, 20, made, least)
    assert len(set(expected)) > 1
    assert generate(prompt, 20, made, temperature=0) == expected


@pytest.mark.parametrize("prompt", [[], [3], [5, 1, 2, 4, 9, 8, 7, 7, 3]])
def test_a_member_trained_with_bos_reads_it_before_every_window(prompt):
    made = knobs(bos=True)
    expected = uncached(prompt, 20, made, head=[TASK.inputs.bos_id])
    assert generate(prompt, 20, made, temperature=0) == expected


def test_every_token_runs_one_program():
    generate([1], 12, temperature=0.5, seed=1)
    programs = decoding._step._cache_size(), decoding._prefill._cache_size()
    for mask in ("causal", "sliding_window(2)"):
        for prompt in ([1], [1, 2, 3]):
            generate(prompt, 12, knobs(mask=mask), temperature=0.5, seed=3)
    assert (decoding._step._cache_size(), decoding._prefill._cache_size()) == programs


def test_a_seed_decides_the_text():
    drawn = [generate([1, 2], 16, temperature=2.0, seed=seed) for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (2.5, None), (0.7, 3)])
def test_draws_follow_the_tempered_softmax_of_the_largest(temperature, top_k):
    logits_V = np.array([0.3, -1.0, 1.2, 0.0, 2.0], np.float32)
    n = 20_000
    drawn = decoding.choose(
        jnp.broadcast_to(logits_V, (n, 5)), jax.random.key(0), temperature=temperature, top_k=top_k
    )
    p_V = np.exp(logits_V / temperature)
    p_V[np.argsort(logits_V)[: 5 - (top_k or 5)]] = 0
    p_V /= p_V.sum()
    found_V = np.bincount(np.asarray(drawn), minlength=5) / n
    assert (np.abs(found_V - p_V) <= 4 * np.sqrt(p_V * (1 - p_V) / n)).all()


def test_temperature_zero_and_a_choice_of_one_take_the_largest_whatever_the_key():
    logits_BV = jnp.array([[0.0, 3.0, 3.0], [-5.0, -9.0, -4.0]])
    for seed in range(3):
        for heat, top_k in ((0.0, None), (3.0, 1)):
            key = jax.random.key(seed)
            drawn = decoding.choose(logits_BV, key, temperature=heat, top_k=top_k)
            assert drawn.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("mask", "least"),
    [
        ("causal", 0), ("causal(offset=-1)", 0), ("sliding_window(3)", 0), ("chunked(4)", 0),
        ("prefix_lm(5)", 5), ("prefix_lm(1)", 0), ("sliding_window([[2, 4]])", 0),
        ("full", 8), ("window(left=1, right=1)", 8), ("block_causal(2)", 8), ("prefix_lm(8)", 8),
        ("documents([0, 0, 0, 1, 1, 1, 1, 1], prefix_len=2)", 5), ("~causal", 8),
    ],
)  # fmt: skip
def test_a_prompt_must_hold_what_is_read_both_ways(mask, least):
    assert decoding.least_prompt(mask_text.parse(mask, T)) == least


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"objective": "masked_lm"}, ("objective", "masked_lm", "next_token")),
        ({"objective": "next_token(2)"}, ("objective", "next_token(2)", "allowed: next_token")),
        ({"mask": "full"}, ("mask", "after them", "causal behind a prefix")),
    ],
)
def test_what_cannot_be_continued_is_refused(changes, parts):
    with pytest.raises(ValueError, match=parts[0]) as error:
        generate([1], 1, knobs(**changes))
    assert all(part in str(error.value) for part in parts)


@pytest.mark.parametrize(
    ("prompt", "count", "mask", "message"),
    [
        ([], 1, "causal", "prompt: 0 tokens; allowed: at least 1"),
        ([1, 2], 1, "prefix_lm(3)", "prompt: 2 tokens; allowed: at least 3"),
        ([1], 0, "causal", "count: must be at least 1, got 0"),
    ],
)
def test_impossible_requests_are_refused_before_the_first_token(prompt, count, mask, message):
    with pytest.raises(ValueError, match=message):
        decoding.generate(TASK, params(), knobs(mask=mask), prompt, count, Choice())
    with pytest.raises(ValueError, match="top_k: got 18; allowed"):
        decoding.generate(TASK, params(), knobs(), [1], 1, Choice(top_k=18))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"temperature": -0.1}, "temperature: .* got -0.1"),
        ({"temperature": float("nan")}, "temperature: .* got nan"),
        ({"temperature": float("inf")}, "temperature: .* got inf"),
        ({"top_k": 0}, "top_k: .* got 0"),
        ({"seed": -1}, "seed: .* got -1"),
    ],
)
def test_a_choice_out_of_range_is_refused(choice, message):
    with pytest.raises(ValueError, match=message):
        Choice(**choice)
