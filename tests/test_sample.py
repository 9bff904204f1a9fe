"""`attnlab sample`: text out, or one line that says what is wrong with the request."""

import argparse
import json

import pytest
import tiny
import trained_run
from cli_runner import Cli

from attnlab import cli
from attnlab.commands import sample
from attnlab.data.vocabulary import ByteVocabulary, CharVocabulary, NumberVocabulary

TOP = ("--top-k", "5")  # the same for all, because it is compiled for


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


@pytest.fixture(autouse=True)
def _no_cache_on_disk(monkeypatch):
    monkeypatch.setenv("ATTNLAB_COMPILE_CACHE", "off")


def run(workdir, *words, member="learned s0"):
    parser = argparse.ArgumentParser()
    sample.add_arguments(parser)
    return sample.run(parser.parse_args([str(workdir), "--member", member, *words]), tiny.BASE)


def test_the_text_begins_with_the_prompt_and_a_seed_decides_the_rest(trained_workdir, capsys):
    words = ("--prompt", "abc", "--tokens", "20", "--temperature", "0.9", *TOP)
    texts = []
    for seed in ("1", "1", "2"):
        assert run(trained_workdir, *words, "--seed", seed) == 0
        out, err = capsys.readouterr()
        texts.append(out.removesuffix("\n"))
        assert err == "learned s0, after 8 updates\n"
    assert texts[0] == texts[1] != texts[2]
    for text in texts:
        assert text.startswith("abc")
        assert len(text) == 23
        assert set(text) <= set(trained_run.TEXT)


def test_the_end_of_a_long_prompt_is_read_and_that_is_said(trained_workdir, capsys):
    """The text goes on as from the last tokens alone; what is printed is all of it."""
    greedy = ("--tokens", "6", "--temperature", "0", *TOP)
    run(trained_workdir, "--prompt", "a" * 5 + "abcdefgh", *greedy)
    out, err = capsys.readouterr()
    assert "of 13 tokens the last 8 are read" in err
    run(trained_workdir, "--prompt", "abcdefgh", *greedy)
    assert capsys.readouterr().out == out.removeprefix("a" * 5)


def test_a_member_trained_with_bos_needs_no_prompt(trained_workdir, capsys):
    assert run(trained_workdir, "--prompt", "", "--tokens", "9", *TOP, member="window s0") == 0
    assert len(capsys.readouterr().out) == 10


@pytest.mark.parametrize(
    ("words", "member", "parts"),
    [
        (("--prompt", ""), "learned s0", ("prompt", "0 tokens", "at least 1")),
        (("--prompt", "aßb€cß"), "learned s0", ("--prompt", "'ß', '€' not in", "12 ids")),
        (("--prompt", "a", "--tokens", "0"), "learned s0", ("--tokens", "at least 1", "0")),
        (("--prompt", "a", "--temperature", "-1"), "learned s0", ("temperature", "-1", ">= 0")),
        (("--prompt", "a", "--top-k", "0"), "learned s0", ("top_k", "at least 1", "0")),
        (("--prompt", "a", "--top-k", "99"), "learned s0", ("top_k", "99", "1..12")),
        (("--prompt", "a", "--seed", "-3"), "learned s0", ("seed", "-3", "2^32")),
        (("--prompt", "a"), "encoder s0", ("RUN", "encoder s0", "masked_lm", "never learned what comes next")),
        (("--prompt", "a"), "encoder", ("--member", "'encoder'", "encoder s0")),
    ],
)  # fmt: skip
def test_bad_requests_get_one_line(trained_workdir, words, member, parts, capsys):
    with pytest.raises(ValueError, match=parts[0]) as error:
        run(trained_workdir, *words, member=member)
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)
    assert capsys.readouterr().out == ""


def test_the_command_line_says_it_in_one_line_and_exits_with_2(trained_workdir, capsys):
    words = ["sample", str(trained_workdir), "--member", "learned s0", "--prompt"]
    assert cli.main([*words, "ß"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("attnlab: --prompt: 'ß' not in the vocabulary")
    assert cli.main([*words, "a", "--tokens", "3", *TOP]) == 0
    assert len(capsys.readouterr().out) == 5
    assert cli.main(["sample", str(trained_workdir / "runs"), "--prompt", "a"]) == 2
    assert "not a run directory" in capsys.readouterr().err


def test_everything_outside_the_vocabulary_is_named_once():
    with pytest.raises(ValueError, match="'x', 'y' not in the vocabulary"):
        sample.encoded(CharVocabulary("abc"), "axbyxc")
    with pytest.raises(ValueError, match="'a' not in"):
        sample.encoded(NumberVocabulary(5), "1 a")
    with pytest.raises(ValueError, match="'12' is not in the vocabulary"):
        sample.encoded(NumberVocabulary(5), "1 12")
    assert sample.encoded(ByteVocabulary(), "é").tolist() == [0xC3, 0xA9]


@pytest.mark.slow
def test_a_member_that_was_just_trained_is_sampled_and_evaluated(tmp_path):
    """From training to text and error bars, each in a process of its own."""
    attnlab = Cli(tmp_path, tmp_path / "xla")
    (attnlab.cwd / "my.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    small = [f"--config.{key}={value}" for key, value in tiny.TINY.items() if key != "corpus"]
    config = str(tiny.BASE_FILE)
    attnlab(
        "train", "--config", config, "--workdir", "work", "--wandb", "disabled", *small,
        "--config.corpus=text:my.txt", "--config.steps=400", "--config.positions=rope",
    )  # fmt: skip
    out = attnlab(
        "sample", "work", "--prompt", "the quick ", "--tokens", "35", "--temperature", "0"
    )
    assert out.startswith("the quick brown fox jumps over the lazy dog. ")
    out = attnlab("eval", "work", "--json", "eval.json", "--png", "eval.png")
    assert "bits per byte" in out
    assert (attnlab.cwd / "eval.png").exists()
    written = json.loads((attnlab.cwd / "eval.json").read_text())
    assert written["loss"]["high"] < written["references"]["bigram"]
