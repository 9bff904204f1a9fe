"""A model that does not fit is refused before it is compiled, with the estimate and ways out."""

import jax
import pytest
import tiny

from attnlab import costs, fitting, population, sweeps


def too_large(**changes):
    """Members for which the machine under test has too little memory; nothing is allocated for them."""
    return tiny.plan([tiny.config({"seed.init": i, **changes}) for i in range(2)])


def test_a_group_that_does_not_fit_names_what_is_large_and_the_ways_out(monkeypatch):
    groups = too_large(batch_size=8, **{"eval.windows": 8})
    wanted = fitting.need(groups[0].task, 2)
    assert wanted.activations > wanted.state + wanted.gradients
    monkeypatch.setattr(fitting, "available", lambda: wanted.total - 1)
    with pytest.raises(ValueError, match=r"^config\.batch_size: 8 does not fit: group 0 ") as error:
        fitting.refuse_too_large(groups)
    text = str(error.value)
    assert "\n" not in text
    assert "accumulation=8 (" in text
    assert "fewer members at once" in text
    assert "remat" not in text, "one layer has nothing to gain from it"
    monkeypatch.setattr(fitting, "available", lambda: wanted.total)
    fitting.refuse_too_large(groups)


@pytest.mark.parametrize(
    ("fit_at_once", "sizes"), [(7, [7]), (4, [4, 3]), (3, [3, 3, 1]), (1, [1] * 7), (0, [7])]
)
def test_members_train_in_as_few_waves_as_fit(fit_at_once, sizes, monkeypatch):
    group = tiny.group(*(tiny.config({"seed.init": seed}) for seed in range(7)))
    monkeypatch.setattr(fitting, "need", lambda _, members: fitting.Need(members, 0, 0, 0))
    monkeypatch.setattr(fitting, "available", lambda: int(fitting.MARGIN * fit_at_once + 0.5))
    assert fitting.in_waves([group]) == [group], "on a CPU members train one after another anyway"
    monkeypatch.setattr(fitting.jax, "default_backend", lambda: "gpu")
    waves = fitting.in_waves([group])
    assert [len(wave.members) for wave in waves] == sizes
    assert [m for wave in waves for m in wave.members] == list(group.members)
    assert fitting.in_waves([group], {group.id}) == [group], "a checkpoint is of the whole group"


def test_a_state_that_does_not_fit_is_the_fault_of_the_model(monkeypatch):
    monkeypatch.setattr(fitting, "available", lambda: 10)
    groups = too_large(context=1, batch_size=4, **{"model.width": 64})
    with pytest.raises(ValueError, match=r"^config\.model\.width: 64 .* allowed: a smaller model$"):
        fitting.refuse_too_large(groups)


def test_a_sweep_that_does_not_fit_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "available", lambda: 10)
    planned = sweeps.Plan("tiny", tuple(too_large()))
    with pytest.raises(ValueError, match="does not fit"):
        sweeps.open_session(planned, sweeps.Settings(tmp_path / "new", wandb="disabled"))
    assert not (tmp_path / "new").exists()


def test_host_devices_share_one_memory():
    (group,) = too_large()
    one, two = (fitting.need(group.task, members) for members in (1, 2))
    each = costs.memory(group.task)
    assert (one.state, two.state) == (each.state, 2 * each.state)
    assert two.activations == 2 * one.activations, "both rows are updated at the same time"
    assert fitting.need(group.task, 4).activations == two.activations, "members take turns"


def test_new_states_lie_beside_old_ones_once_the_activations_are_gone():
    (group,) = too_large()
    wanted = fitting.need(group.task, 2)
    assert wanted.successor == wanted.state
    assert fitting.Need(state=10, gradients=3, activations=4, successor=10).total == 23
    assert fitting.Need(state=10, gradients=3, activations=14, successor=10).total == 27


def test_the_free_memory_of_this_machine_is_a_number_of_bytes():
    assert 2**20 < fitting.available() < 2**50
    assert jax.default_backend() == "cpu"


def test_the_state_of_a_group_is_what_its_program_holds():
    (group,) = too_large()
    program = population.Program(group.task, fitting.sharding.make_mesh(2))
    states = jax.eval_shape(program.init, program.place(group.knobs()))
    held = sum(
        x.size * x.dtype.itemsize
        for x in jax.tree.leaves((states.params, states.moments.mu, states.moments.nu))
    )
    assert fitting.need(group.task, 2).state == held
