"""What a file of configs/ may say, and which members its sweeps give."""

import pytest

from attnlab import config_files

FILE = """
from configs import base

def get_config(preset="small"):
    c = base.get_config()
    c.context = {"small": 8, "large": 16}[preset]
    return c
"""


@pytest.fixture
def load(tmp_path):
    def load(sweeps="", spec="", overrides=()):
        path = tmp_path / "mine.py"
        path.write_text(FILE + sweeps)
        return config_files.load(f"{path}{spec}", overrides)

    return load


def test_a_preset_and_overrides_make_the_configuration(load):
    assert load().config["context"] == 8
    file = load(spec=":large", overrides=["--config.model.width=32", "--config.bos=true"])
    assert (file.config["context"], file.config["model"]["width"], file.config["bos"]) == (
        16,
        32,
        True,
    )
    assert (file.name, load().name) == ("mine-large", "mine")


def test_a_file_without_sweeps_is_one_member(load):
    assert load().members() == [{}]
    with pytest.raises(ValueError, match=r"^--seeds: got 3, but this file has no sweep"):
        load().members(seeds=3)


def test_a_sweep_is_told_what_it_asks_for_and_nothing_else(load):
    sweep = """
def sweep_told(preset, config, seeds):
    yield {"arm": f"{preset} {config['context']} {seeds}"}
"""
    file = load(sweep, ":large", ["--config.context=4"])
    assert file.members() == [{"arm": "large 4 None"}]
    assert file.members("told", 5) == [{"arm": "large 4 5"}]


def test_the_default_of_a_sweep_stands_where_no_seeds_are_given(load):
    file = load("\ndef sweep_own(seeds=2):\n    return [{'seed.init': s} for s in range(seeds)]\n")
    assert len(file.members()) == 2
    assert len(file.members(seeds=4)) == 4


@pytest.mark.parametrize(
    ("sweeps", "arguments", "message"),
    [
        (
            "\ndef sweep_a(): return []\ndef sweep_b(): return []\n",
            {},
            r"^--sweep: the file has several; allowed: a, b$",
        ),
        ("\ndef sweep_a(): return []\n", {"sweep": "b"}, r"^--sweep: got 'b'; allowed: a$"),
        (
            "\ndef sweep_a(): return []\n",
            {"seeds": 2},
            r"^--seeds: got 2, but sweep_a takes no seeds$",
        ),
        (
            "\ndef sweep_a(seeds): return []\n",
            {"seeds": 0},
            r"^--seeds: must be at least 1, got 0$",
        ),
        (
            "\ndef sweep_a(width): return []\n",
            {},
            r"^sweep_a: unknown parameter 'width'; allowed: preset, config, seeds$",
        ),
    ],
)
def test_what_a_file_does_not_have_is_refused(load, sweeps, arguments, message):
    with pytest.raises(ValueError, match=message):
        load(sweeps).members(**arguments)
