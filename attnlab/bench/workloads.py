"""The training that `attnlab bench step` and `attnlab bench population` time, in every form that competes.

All forms of one size do the same arithmetic: the same model, AdamW with clipping, batches drawn on the device from
uniform random tokens.
"""

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import jax
from jax import Array

from attnlab import optimizer, plan, population, sharding, training
from attnlab.bench.turns import Contender
from attnlab.data import corpora
from attnlab.knobs import set_flat
from attnlab.model import Params
from attnlab.plan import Group

CORPUS = "random:65"  # as many classes as the characters of Tiny Shakespeare


@dataclass(frozen=True)
class Size:
    """A model and a batch: layers, width, heads, context, batch size."""

    layers: int
    width: int
    heads: int
    context: int
    batch: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """`"4,128,4,64,12"`: layers, width, heads, T, batch size.

        Raises:
          ValueError: anything else.
        """
        try:
            numbers = [int(word) for word in text.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) != 5 or min(numbers) < 1 or numbers[1] % numbers[2]:
            raise ValueError(
                f"--sizes: got {text!r}; allowed: LAYERS,WIDTH,HEADS,T,BATCH, each at least 1, "
                "the width a multiple of the heads"
            )
        return cls(*numbers)

    def __str__(self) -> str:
        return f"{self.layers},{self.width},{self.heads},{self.context},{self.batch}"


def group(size: Size, base: Mapping[str, Any], members: int, chunk: int) -> Group:
    """Members that differ in seed and learning rate, as a sweep of both has them; `chunk` updates a call."""
    configs = []
    for member in range(members):
        config = copy.deepcopy(dict(base))
        for key, value in {
            "corpus": CORPUS, "context": size.context, "batch_size": size.batch, "mask": "causal",
            "positions": "learned", "steps": chunk * 10**6, "log_every": chunk,
            "model.layers": size.layers, "model.width": size.width, "model.heads": size.heads,
            "model.kv_heads": size.heads, "model.norm": "layernorm",
            "optimizer.learning_rate": 1e-3 * (1 + member / 4), "optimizer.warmup_steps": 100,
            "seed.init": member, "seed.data": member,
            "eval.every": chunk * 10**6, "eval.windows": size.batch, "eval.final_windows": size.batch,
        }.items():  # fmt: skip
            set_flat(config, key, value)
        configs.append(config)
    (only,) = plan.plan("bench", configs, base, corpora.load)
    return only


class Population:
    """The members as attnlab trains them: one program, a chunk of updates a call. Calling it gives seconds."""

    def __init__(self, made: Group):
        self.program = population.Program(made.task, sharding.make_mesh(len(made.members)))
        self.knobs = self.program.place(made.knobs())
        self.states = self.program.init(self.knobs)
        self.tokens = jax.device_put(made.corpus.train, self.program.everywhere)

    def __call__(self) -> float:
        start = time.perf_counter()
        self.states, metrics = self.program.train(self.states, self.knobs, self.tokens)
        jax.block_until_ready(metrics)
        return time.perf_counter() - start

    @property
    def params(self) -> Params:
        """Of all members, stacked."""
        return self.states.params


class SingleRun:
    """The first member as an ordinary program: its settings are constants, one jitted call an update.

    It may use every core for each operation, donates its state, waits for nothing but the last call, and does none of
    the book-keeping of a member: what an attentive user would write for one run. Calling it gives seconds.
    """

    def __init__(self, made: Group):
        task, knobs = made.task, made.knobs()[0]

        @partial(jax.jit, donate_argnums=(0, 1))
        def step(params: Params, moments: Any, number: Array, tokens: Array) -> tuple[Any, ...]:
            batch = training.batch_at(task, knobs, number, tokens)
            (loss, _), grads = training.loss_and_grads(task, params, knobs, batch)
            params, moments, _ = optimizer.update(grads, moments, params, knobs.optimizer, number)
            return params, moments, number + 1, loss

        state = jax.jit(lambda: training.init_state(task, knobs))()
        self.params, self.moments, self.number = state.params, state.moments, state.step
        self.tokens = jax.device_put(made.corpus.train, jax.devices()[0])
        self.step, self.updates = step, task.budget.log_every

    def __call__(self) -> float:
        start = time.perf_counter()
        for _ in range(self.updates):
            self.params, self.moments, self.number, loss = self.step(
                self.params, self.moments, self.number, self.tokens
            )
        loss.block_until_ready()
        return time.perf_counter() - start


def contenders(made: Group) -> list[Contender]:
    """attnlab's form first, then the ordinary one."""
    updates, members = made.task.budget.log_every, len(made.members)
    return [
        Contender(
            "population" if members > 1 else "attnlab",
            lambda: (Population(made), updates * members),
        ),
        Contender("single jitted run", lambda: (SingleRun(made), updates)),
    ]
