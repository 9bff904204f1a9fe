"""One member's updates: which batch, which gradient, and what freezes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.extend.core import jaxprs_in_params

from attnlab import knobs as knobs_lib
from attnlab import masks, model, objectives, optimizer, training
from attnlab.data import sampling
from attnlab.training import NEVER, Task, TrainState

ARCH = knobs_lib.architecture(tiny.config(), vocab_size=17, input_size=19)
TASK = Task(ARCH, knobs_lib.budget(tiny.config()), objectives.Inputs(17, 18))
CHUNK = TASK.budget.log_every
TOKENS = np.random.default_rng(0).integers(0, 17, 500).astype(np.uint8)
WINDOWS = sampling.evaluation_windows(TOKENS, count=8, length=10)

init_state = jax.jit(training.init_state, static_argnums=0)
train_step = jax.jit(training.train_step, static_argnums=0)
train_chunk = jax.jit(training.train_chunk, static_argnums=0)
evaluate = jax.jit(training.evaluate, static_argnums=0)


def knobs(overrides=None, **top_level):
    return knobs_lib.knobs(tiny.config(overrides, **top_level), ARCH)


def with_model(made, **changes):
    return dataclasses.replace(made, model=dataclasses.replace(made.model, **changes))


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


@pytest.fixture(scope="module")
def start() -> TrainState:
    return init_state(TASK, knobs())


@pytest.fixture(scope="module")
def by_hand():
    """Loss, count and gradient of a batch, written down once more: the gradient is that of the mean."""

    @jax.jit
    def value_and_gradient(params, batch, made):
        def mean(params):
            logits, _ = model.apply(ARCH, params, batch.inputs, batch.mask, made.model)
            losses = -jnp.take_along_axis(
                jax.nn.log_softmax(logits), batch.targets[..., None], axis=-1
            )[..., 0]
            total, count = jnp.sum(losses * batch.weights), jnp.sum(batch.weights)
            return total / count, (total, count)

        (_, (total, count)), gradient = jax.value_and_grad(mean, has_aux=True)(params)
        return total, count, gradient

    return value_and_gradient


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def batch_of(made, step):
    windows = sampling.windows(TOKENS, made.seed_data, step, batch_size=4, length=10)
    key = jax.random.fold_in(sampling.batch_key(made.seed_data, step), 1)
    return objectives.make_batch(made.objective, windows, made.mask, key=key, inputs=TASK.inputs)


@pytest.mark.parametrize("objective", ["next_token", "next_token(0)", "masked_lm(0.5)"])
@pytest.mark.parametrize("step", [0, 3])
def test_an_update_is_adamw_on_the_batch_of_seed_and_step(start, by_hand, objective, step):
    """The windows are those of (data seed, step), whatever the objective."""
    made = knobs({"seed.data": 5}, objective=objective)
    state = dataclasses.replace(start, step=jnp.int32(step))
    total, count, gradient = by_hand(state.params, batch_of(made, np.int32(step)), made)
    new, metrics = train_step(TASK, state, made, TOKENS)
    assert float(metrics["loss_sum"]) == pytest.approx(float(total), rel=1e-5)
    assert float(metrics["count"]) == float(count)
    assert int(metrics["updates"]) == 1
    params, _, norm = jax.jit(optimizer.update)(
        gradient, state.moments, state.params, made.optimizer, state.step
    )
    assert float(metrics["grad_norm"]) == pytest.approx(float(norm), rel=1e-5)
    assert float(metrics["learning_rate"]) == pytest.approx(
        float(optimizer.learning_rate(made.optimizer, state.step)), rel=1e-6
    )
    # Adam's first directions are signs: where a gradient is all but 0 its rounding decides.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), new.params, params)
    assert (int(new.step), int(new.diverged_at), int(new.moments.count)) == (step + 1, NEVER, 1)


def test_an_update_depends_on_state_and_knobs_only(start):
    first, again = (train_step(TASK, start, knobs(), TOKENS) for _ in range(2))
    same(first, again)


@pytest.mark.parametrize(
    "change",
    [{"seed.data": 1}, {"mask": "full"}, {"objective": "masked_lm"}, {"model.norm": "rmsnorm"},
     {"model.logit_scale": "none"}],
    ids=str,
)  # fmt: skip
def test_every_knob_of_the_batch_and_of_the_network_moves_the_loss(start, change):
    _, base = train_step(TASK, start, knobs(), TOKENS)
    _, other = train_step(TASK, start, knobs(change), TOKENS)
    assert float(base["loss_sum"]) != float(other["loss_sum"])


def test_the_initial_parameters_depend_on_the_init_seed_only(start):
    other_data = init_state(
        TASK, knobs({"seed.data": 9, "optimizer.learning_rate": 1.0}, mask="full")
    )
    same(start, other_data)
    moved = init_state(TASK, knobs({"seed.init": 9}))
    kernel = [s.params["head_kernel"] for s in (start, moved)]
    assert (np.asarray(kernel[0]) != np.asarray(kernel[1])).all()
    assert (int(start.step), int(start.diverged_at), bool(start.stopped)) == (0, NEVER, False)


def test_a_chunk_is_its_updates_one_after_another(start):
    made = knobs(objective="masked_lm(0.3)")
    state, steps = start, []
    for _ in range(CHUNK):
        state, metrics = train_step(TASK, state, made, TOKENS)
        steps.append(jax.device_get(metrics))
    chunk_state, chunk = train_chunk(TASK, start, made, TOKENS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), chunk_state, state)
    total, count = (sum(m[name] for m in steps) for name in ("loss_sum", "count"))
    assert len({float(m["count"]) for m in steps}) > 1, "equal counts cannot tell the means apart"
    assert float(chunk["train/loss"]) == pytest.approx(total / count, rel=1e-5)
    assert float(chunk["train/grad_norm"]) == pytest.approx(
        max(float(m["grad_norm"]) for m in steps), rel=1e-4
    )
    assert float(chunk["opt/learning_rate"]) == pytest.approx(
        float(steps[-1]["learning_rate"]), rel=1e-6
    )
    assert int(chunk["updates"]) == CHUNK


def test_a_chunk_reports_what_its_last_update_did_to_each_layer(start):
    made, state = knobs(objective="masked_lm(0.3)"), start
    _, whole = train_chunk(TASK, start, made, TOKENS)
    for _ in range(CHUNK):
        before, (state, _) = state, train_step(TASK, state, made, TOKENS)
    grads = jax.jit(
        lambda s: training.loss_and_grads(
            TASK, s.params, made, training.batch_at(TASK, made, s.step, TOKENS)
        )[1]
    )(before)

    def flat(tree):
        leaves = jax.tree.leaves(tree["block_00"])
        return np.concatenate([np.asarray(x, np.float64).ravel() for x in leaves])

    wanted = {
        "opt/grad_norm": np.linalg.norm(flat(grads)),
        "opt/update_rms": np.sqrt(np.mean((flat(state.params) - flat(before.params)) ** 2)),
        "params/norm": np.linalg.norm(flat(state.params)),
    }
    assert {name: float(whole[name][0]) for name in wanted} == pytest.approx(wanted, rel=1e-3)


def test_doing_nothing_reports_the_same_metrics_as_doing_something(start):
    _, metrics = jax.eval_shape(lambda s: training.train_chunk(TASK, s, knobs(), TOKENS), start)
    for name, nothing in training.no_metrics(start).items():
        assert (nothing.shape, nothing.dtype) == (metrics[name].shape, metrics[name].dtype), name
    assert metrics.keys() == training.no_metrics(start).keys()


# Accumulation, rematerialisation, precision


def with_budget(**changes):
    return dataclasses.replace(TASK, budget=dataclasses.replace(TASK.budget, **changes))


def with_architecture(**changes):
    return dataclasses.replace(TASK, architecture=dataclasses.replace(ARCH, **changes))


loss_and_grads = jax.jit(training.loss_and_grads, static_argnums=0)


def close(a, b, atol=2e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=atol), a, b)


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("objective", ["next_token", "masked_lm(0.3)"])
def test_accumulated_micro_batches_equal_one_batch(start, objective, parts):
    made = knobs(objective=objective)
    batch = batch_of(made, 2)
    counts = np.asarray(batch.weights).reshape(4 // parts, parts, -1).sum(axis=(0, 2))
    uneven = objective != "next_token"
    assert (len(set(counts)) > 1) == uneven, "equal counts cannot tell a mean of means apart"
    whole = loss_and_grads(TASK, start.params, made, batch)
    close(loss_and_grads(with_budget(accumulation=parts), start.params, made, batch), whole)


def test_every_example_keeps_its_own_mask_in_a_micro_batch(start):
    """Example b may read the documents of b: masks are split as the examples are."""
    rng = np.random.default_rng(1)
    made = knobs()
    mask = masks.documents(np.sort(rng.integers(0, 3, (4, 8)), axis=1)).canonical(4, 1)
    batch = dataclasses.replace(batch_of(made, 0), mask=mask)
    whole = loss_and_grads(TASK, start.params, made, batch)
    close(loss_and_grads(with_budget(accumulation=2), start.params, made, batch), whole)
    other = dataclasses.replace(batch, mask=jax.tree.map(lambda x: x[::-1], mask))
    assert float(loss_and_grads(TASK, start.params, made, other)[0][0]) != float(whole[0][0])


def test_evaluation_in_micro_batches_equals_that_in_batches(start):
    made = knobs(objective="masked_lm(0.4)")
    whole = evaluate(TASK, start, made, WINDOWS, np.int32(1))
    parts = evaluate(with_budget(accumulation=2), start, made, WINDOWS, np.int32(1))
    for name in training.SUMMED:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-5, err_msg=name)


def equations(jaxpr):
    """Every equation of a jaxpr, those of inner ones included."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from equations(inner)


def test_recomputing_changes_neither_loss_nor_gradient(start):
    made, batch = knobs(), batch_of(knobs(), 0)
    plain = loss_and_grads(TASK, start.params, made, batch)
    for remat in ("dots", "block"):
        task = with_architecture(remat=remat)
        same(init_state(task, made).params, start.params)
        close(loss_and_grads(task, start.params, made, batch), plain)


def test_each_policy_repeats_more_than_the_one_before(start):
    """Products of the backward pass: 2 a forward one, and those that are done again."""
    made = knobs()

    def products(remat):
        task = with_architecture(remat=remat, attention="dense")
        jaxpr = jax.make_jaxpr(lambda p, b: training.loss_and_grads(task, p, made, b))(
            start.params, batch_of(made, 0)
        )
        return sum(e.primitive.name == "dot_general" for e in equations(jaxpr.jaxpr))

    none, dots, block = map(products, ("none", "dots", "block"))
    assert none < dots < block


def test_bfloat16_activations_leave_parameters_softmax_and_loss_in_float32(start):
    task, made = with_architecture(activations="bfloat16", attention="dense"), knobs()
    jaxpr = jax.make_jaxpr(lambda s: training.train_step(task, s, made, TOKENS))(start).jaxpr
    halves, wide = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)
    inputs = {"exp": set(), "log": set(), "dot_general": set()}
    for eqn in equations(jaxpr):
        if eqn.primitive.name in inputs:
            inputs[eqn.primitive.name] |= {v.aval.dtype for v in eqn.invars}
    assert inputs["exp"] == inputs["log"] == {wide}, "softmax or cross-entropy left float32"
    assert halves in inputs["dot_general"], "nothing is computed in bfloat16"
    after, metrics = jax.eval_shape(lambda s: training.train_step(task, s, made, TOKENS), start)
    for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(start), strict=True):
        assert x.dtype == y.dtype
    assert {x.dtype for x in jax.tree.leaves(after.params)} == {wide}
    assert metrics["loss_sum"].dtype == wide


# What freezes


def test_a_member_whose_loss_is_not_finite_keeps_its_state_and_says_when(start):
    after_two = start
    for _ in range(2):
        after_two, _ = train_step(TASK, after_two, knobs(), TOKENS)
    poisoned = with_model(knobs(), logit_scale=jnp.float32(np.nan))
    state, metrics = train_step(TASK, after_two, poisoned, TOKENS)
    assert int(state.diverged_at) == 2
    same(dataclasses.replace(state, diverged_at=after_two.diverged_at), after_two)
    assert {k: float(metrics[k]) for k in ("loss_sum", "count", "updates", "grad_norm")} == {
        "loss_sum": 0.0, "count": 0.0, "updates": 0.0, "grad_norm": 0.0,
    }  # fmt: skip
    # It stays frozen, also when the cause goes away.
    same(train_step(TASK, state, knobs(), TOKENS)[0], state)


def test_a_huge_learning_rate_diverges_at_the_update_after_the_one_that_blew_up(start):
    huge = knobs({"optimizer.learning_rate": 1e30, "optimizer.warmup_steps": 0})
    state, metrics = train_chunk(TASK, start, huge, TOKENS)
    assert (int(state.step), int(state.diverged_at)) == (1, 1)
    assert int(metrics["updates"]) == 1
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(state.params)))
    assert all(np.isfinite(x).all() for x in metrics.values())


@pytest.mark.parametrize(
    "change", [{"step": jnp.int32(8)}, {"stopped": jnp.bool_(True)}, {"diverged_at": jnp.int32(0)}],
    ids=str,
)  # fmt: skip
def test_a_member_that_is_over_does_not_move(start, change):
    over = dataclasses.replace(start, **change)
    assert not bool(training.is_active(over, knobs()))
    state, metrics = train_chunk(TASK, over, knobs(), TOKENS)
    same(state, over)
    assert int(metrics["updates"]) == 0
    assert float(metrics["train/loss"]) == 0.0


def test_a_member_ends_after_exactly_its_steps(start):
    made = knobs(steps=8)
    counts, state = [], start
    for _ in range(3):
        state, metrics = train_chunk(TASK, state, made, TOKENS)
        counts.append(int(metrics["updates"]))
    assert counts == [4, 4, 0]
    assert int(state.step) == 8


# Evaluation


def test_evaluation_equals_the_losses_of_its_windows(start, by_hand):
    made = knobs()
    result = evaluate(TASK, start, made, WINDOWS, np.int32(0))
    key = jax.random.key(0)  # next_token draws nothing
    total = 0.0
    for part in (WINDOWS[:4], WINDOWS[4:]):
        batch = objectives.make_batch(made.objective, part, made.mask, key=key, inputs=TASK.inputs)
        total += float(by_hand(start.params, batch, made)[0])
    assert float(result["loss_by_position"].sum()) == pytest.approx(total, rel=1e-5)
    np.testing.assert_array_equal(result["count_by_position"], np.full(8, 8.0))


def test_evaluation_hides_the_same_places_for_every_member_and_others_in_every_block(start):
    def counts(block, **overrides):
        made = knobs({"seed.data": overrides.get("seed", 0)}, objective="masked_lm(0.5)")
        state = dataclasses.replace(start, step=jnp.int32(overrides.get("step", 0)))
        return np.asarray(
            evaluate(TASK, state, made, WINDOWS, np.int32(block))["count_by_position"]
        )

    np.testing.assert_array_equal(counts(0), counts(0, seed=3, step=4))
    assert (counts(0) != counts(1)).any()
    assert 0 < counts(0).sum() < 64


@pytest.mark.parametrize(("mask", "last"), [("causal", 8), ("full", 8), ("sliding_window(1)", 1)])
def test_attention_is_summarised_by_layer_and_head(start, mask, last):
    result = evaluate(TASK, start, knobs(mask=mask), WINDOWS, np.int32(0))
    assert result["max_logit"].shape == (1,)
    assert result["entropy"].shape == (1, 2)
    entropy = np.asarray(result["entropy"])
    # Near the start attention is close to uniform; with one visible key there is nothing to choose.
    assert (entropy == 0).all() if last == 1 else ((entropy > 0.5) & (entropy <= 1)).all()


def test_the_summary_follows_the_logit_scale(start):
    def max_logit(scale):
        made = with_model(knobs(), logit_scale=jnp.float32(scale))
        return float(evaluate(TASK, start, made, WINDOWS, np.int32(0))["max_logit"][0])

    assert max_logit(0.5) == pytest.approx(2 * max_logit(0.25), rel=1e-5)


def test_one_trace_serves_every_value_of_the_knobs(start):
    traces = 0

    @jax.jit
    def counted(state, made):
        nonlocal traces
        traces += 1
        return training.train_step(TASK, state, made, TOKENS)

    for change in ({}, {"mask": "full"}, {"objective": "masked_lm"}, {"seed.data": 3},
                   {"model.norm": "rmsnorm"}, {"optimizer.b1": 0.5}, {"steps": 12}):  # fmt: skip
        jax.eval_shape(counted, start, knobs(change))
    assert traces == 1


def test_the_first_tensor_that_is_not_finite_is_named(start):
    poisoned = with_model(knobs(), logit_scale=jnp.float32(np.nan))
    finite = training.finiteness(TASK, start, poisoned, TOKENS)
    assert next(name for name, ok in finite.items() if not ok) == "residual stream after block_00"
    assert finite["residual stream after embedding"]
    assert finite["parameter head_kernel"]
    assert not finite["gradient of head_kernel"]


def test_health_follows_the_updates(start):
    state, metrics = train_step(TASK, start, knobs(), TOKENS)
    loss = float(metrics["loss_sum"] / metrics["count"])
    assert float(state.health.last_loss) == pytest.approx(loss)
    assert float(state.health.last_grad_norm) == pytest.approx(float(metrics["grad_norm"]))
    assert np.isnan(start.health.last_loss)
